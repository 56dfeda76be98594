"""Files of other tools: .ts and .arff (aeon, sktime, Weka), .xlsx, and folders of files.

.ts          one line per sequence, channels separated by ":", the answer last                 arrays
.arff        one row per sequence: a table; with a relational attribute                        arrays
.xlsx        the first sheet, its first row the header                                         a table
a folder     one file per sequence; the answer is the name of its folder, or in labels.csv      a table
             or a data set that Hugging Face's ``save_to_disk`` wrote                           a table
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import re
import zipfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from holdfast.errors import DataError, MissingExtraError
from holdfast.files import sha256_of
from holdfast.tasks.limits import check_size
from holdfast.tasks.tables import (
    ARRAYS,
    COLUMNS,
    Cases,
    Data,
    Table,
    decompressed,
    either,
    guarded,
    read_arrays,
    read_table,
    suffix_of,
    table_of_arrow,
)

__all__ = ["data_digest", "read_data"]

LABELS = tuple(f"labels{suffix}" for suffix in COLUMNS)
FILE_NAMES = ("file", "filename", "file_name", "path", "name", "sequence", "id")
_TIMED = re.compile(r"\([^,()]*,([^()]*)\)")  # (time, value) of a .ts file with time stamps


def read_data(path: Path) -> Data:
    """The columns or arrays of a file or folder, by its extension.

    Example:
        >>> read_data(Path("nowhere.csv"))
        Traceback (most recent call last):
        holdfast.errors.DataError: nowhere.csv is not there; check the path.
    """
    if path.is_dir():
        return _read_folder(path)
    match suffix := suffix_of(path):
        case ".ts":
            return guarded(path, lambda: _read_ts(path))
        case ".arff":
            return guarded(path, lambda: _read_arff(path))
        case ".xlsx":
            return guarded(path, lambda: _read_xlsx(path))
        case _:
            return read_arrays(path) if suffix in ARRAYS else read_table(path)


def data_digest(path: Path) -> str:
    """The SHA-256 digest of a file, or of the names and digests of all files of a folder."""
    if not path.is_dir():
        return sha256_of(path)
    lines = [f"{file.relative_to(path).as_posix()} {sha256_of(file)}\n" for file in _files(path)]
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    """The lines of a text with something in them, and their numbers."""
    text = decompressed(path).decode("utf-8", errors="replace")
    for number, line in enumerate(text.splitlines(), 1):
        if (line := line.strip()) and line[0] not in "#%":
            yield number, line


# -- .ts --------------------------------------------------------------------------------------------------------------


def _read_ts(path: Path) -> Cases:
    header: dict[str, list[str]] = {}
    lines = _lines(path)
    for _, line in lines:
        words = line.split()
        if words[0].lower() == "@data":
            break
        if not line.startswith("@"):
            raise DataError(f"{path}: expected lines that begin with @ and then @data, got {line[:60]!r}.")
        header[words[0][1:].lower()] = words[1:]
    classes = _said(header, "classlabel")
    answers = classes or _said(header, "targetlabel")
    cases, labels = [], []
    for number, line in lines:
        channels = _TIMED.sub(r"\1", line).split(":")
        if answers:
            labels.append(channels.pop().strip())
        try:
            cases.append([_numbers(channel) for channel in channels])
        except ValueError as error:
            raise DataError(f"{path}, line {number}: {error}.") from None
    return _cases(path, cases, labels if answers else None, numbers=not classes)


def _said(header: dict[str, list[str]], name: str) -> bool:
    return [word.lower() for word in header.get(name, [])[:1]] == ["true"]


def _numbers(text: str) -> np.ndarray:
    """Numbers with commas between them; "?" is a missing one."""
    return np.array([np.nan if word.strip() in ("?", "") else float(word) for word in text.split(",")])


def _cases(path: Path, cases: list[list[np.ndarray]], labels: list[str] | None, numbers: bool) -> Cases:
    """Sequences, each a list of channels, as arrays padded to the longest."""
    if not cases:
        raise DataError(f"{path} holds no sequences.")
    for index, case in enumerate(cases):
        if len(case) != len(cases[0]) or len({len(channel) for channel in case}) != 1:
            sizes = ", ".join(str(len(channel)) for channel in case[:6])
            raise DataError(
                f"{path}: expected {len(cases[0])} channels of equal length in every sequence; sequence {index} has "
                f"{len(case)} of {sizes} steps."
            )
    lengths = np.array([len(case[0]) for case in cases])
    shape = len(cases), int(lengths.max()), len(cases[0])
    check_size(path, 8 * shape[0] * shape[1] * shape[2])
    x = np.zeros(shape)
    for row, case in zip(x, cases, strict=True):
        row[: len(case[0])] = np.stack(case, axis=1)
    arrays = Cases(x=x, lengths=lengths)
    if labels is not None:
        try:
            arrays["y"] = np.array(labels, dtype=float) if numbers else np.array(labels)
        except ValueError as error:
            raise DataError(f"{path}: the targets must be numbers, as the header says: {error}.") from None
    return arrays


# -- .arff ------------------------------------------------------------------------------------------------------------


def _read_arff(path: Path) -> Data:
    names: list[str] = []
    kinds: list[str] = []
    inside, relational, lines = False, False, _lines(path)
    for number, line in lines:
        low = line.lower()
        if low.startswith("@data"):
            break
        if low.startswith("@end"):
            inside = False
        elif low.startswith("@attribute"):
            match = re.fullmatch(r"@attribute\s+('[^']*'|\"[^\"]*\"|\S+)\s+(.+)", line, re.IGNORECASE)
            if match is None:
                raise DataError(f"{path}, line {number}: expected @attribute NAME KIND, got {line[:60]!r}.")
            if inside:
                continue
            names.append(match[1].strip("'\""))
            kinds.append(match[2].split()[0].lower())
            inside = kinds[-1] == "relational"
            relational |= inside
        elif not low.startswith("@relation"):
            raise DataError(f"{path}, line {number}: expected @attribute or @data, got {line[:60]!r}.")
    rows: list[list[str]] = []
    for number, line in lines:
        if line.startswith("{") and "," in line.partition("}")[0] and not names[0].startswith("{"):
            raise DataError(f"{path}, line {number}: sparse rows are not read; save the file in dense form.")
        quote = min((line.find(sign), sign) for sign in "'\"" if sign in line)[1] if re.search("['\"]", line) else '"'
        (row,) = csv.reader([line], quotechar=quote, skipinitialspace=True)
        if len(row) != len(names):
            raise DataError(f"{path}, line {number}: expected {len(names)} values, got {len(row)}.")
        rows.append(row)
    if not rows:
        raise DataError(f"{path} holds no rows behind @data.")
    columns = dict(zip(names, map(list, zip(*rows, strict=True)), strict=True))
    if relational:
        if len(names) > 2 or kinds[0] != "relational":
            raise DataError(f"{path}: expected a relational attribute and a class, got {', '.join(names)}.")
        cases = [[_numbers(channel) for channel in text.split("\\n")] for text in columns[names[0]]]
        return _cases(path, cases, columns[names[1]] if len(names) == 2 else None, kinds[-1] in _NUMERIC)
    table = {}
    for name, kind in zip(names, kinds, strict=True):
        missing = np.array([word in ("?", "") for word in columns[name]])
        if kind in _NUMERIC:
            words = np.where(missing, "nan", columns[name])
            try:
                table[name] = words.astype(float)
            except ValueError as error:
                raise DataError(f"{path}: the attribute {name!r} is {kind}, but {error}.") from None
        else:
            table[name] = np.array(columns[name], dtype=object)
            table[name][missing] = None
    return Table(path, table)


_NUMERIC = ("numeric", "real", "integer")

# -- .xlsx ------------------------------------------------------------------------------------------------------------


def _read_xlsx(path: Path) -> Table:
    try:
        import openpyxl
        import pyarrow
    except ImportError as error:
        raise MissingExtraError(f"Reading {path} needs {error.name}: pip install 'holdfast[data]'.") from None
    with zipfile.ZipFile(path) as archive:
        check_size(path, sum(entry.file_size for entry in archive.infolist()))
        for entry in archive.infolist():  # a document type may define entities that grow when they are read
            if entry.filename.endswith((".xml", ".rels")):
                raw = archive.read(entry)
                if any("<!DOCTYPE".encode(code) in raw for code in ("ascii", "utf-16-le", "utf-16-be")):
                    raise DataError(f"{path}: {entry.filename} has a document type, which no spreadsheet has.")
    book = openpyxl.load_workbook(path, read_only=True, data_only=True)
    try:
        rows = [row for row in book.worksheets[0].iter_rows(values_only=True) if any(cell is not None for cell in row)]
    finally:
        book.close()
    if len(rows) < 2:
        raise DataError(f"{path}: expected a header and rows in the first sheet, got {len(rows)} rows.")
    width = max(index for row in rows for index, cell in enumerate(row) if cell is not None) + 1
    rows = [(*row, *[None] * width)[:width] for row in rows]
    names = ["" if name is None else str(name) for name in rows[0]]
    columns = []
    for values in zip(*rows[1:], strict=True):
        try:
            columns.append(pyarrow.array(values))
        except (pyarrow.ArrowException, OverflowError):  # cells of several kinds: text
            columns.append(pyarrow.array([None if value is None else str(value) for value in values]))
    return table_of_arrow(pyarrow.table(columns, names=names), path)


# -- folders ----------------------------------------------------------------------------------------------------------


def _files(folder: Path) -> list[Path]:
    return sorted(
        file for file in folder.rglob("*") if file.is_file() and not any(part.startswith(".") for part in
        file.relative_to(folder).parts)
    )  # fmt: skip


def _read_folder(folder: Path) -> Table:
    if (state := folder / "state.json").is_file():
        return guarded(folder, lambda: _read_hugging_face(folder, state))
    labels = next((folder / name for name in LABELS if (folder / name).is_file()), None)
    files = [file for file in _files(folder) if file != labels and _is_sequence(file)]
    if not files:
        raise DataError(
            f"{folder} holds no sequences: expected files {either((*COLUMNS, '.npy'))}, one per sequence, in folders "
            "named after their classes, or beside a labels.csv with the columns file and label."
        )
    tables = [_one_sequence(file) for file in files]
    first = tables[0]
    for table in tables:
        if list(table.columns) != list(first.columns):
            raise DataError(
                f"{table.path} has the columns {', '.join(table.columns)}, but {first.path} has "
                f"{', '.join(first.columns)}; every file of a folder needs the same."
            )
    counts = [table.rows for table in tables]
    check_size(folder, 8 * sum(counts) * (len(first.columns) + 2))
    names = [file.relative_to(folder).as_posix() for file in files]
    columns: dict[str, np.ndarray] = {"sequence": np.repeat(np.array(names, dtype=object), counts)}
    if clash := {"sequence", "label"} & {*first.columns}:
        raise DataError(f"{first.path} has a column {min(clash)!r}, which a folder of files adds; rename it.")
    for name in first.columns:
        parts = [table[name] for table in tables]
        if len({part.dtype.kind in "biuf" for part in parts}) > 1:
            odd = next(
                table.path for table in tables if (table[name].dtype.kind in "biuf") != (parts[0].dtype.kind in "biuf")
            )
            raise DataError(f"{odd}: the column {name!r} is not of the same kind as in {first.path}.")
        columns[name] = np.concatenate(parts)
    if labels is not None:
        columns |= {name: np.repeat(values, counts) for name, values in _labels(labels, files, folder).items()}
    elif all(file.parent != folder for file in files):
        columns["label"] = np.repeat(np.array([file.relative_to(folder).parts[0] for file in files], object), counts)
    return Table(folder, columns)


def _is_sequence(file: Path) -> bool:
    return file.name.lower().endswith((*COLUMNS, ".npy"))


def _one_sequence(file: Path) -> Table:
    if not file.name.lower().endswith(".npy"):
        return read_table(file)
    x = read_arrays(file)["x"]
    if x.ndim not in (1, 2) or not x.size or x.dtype.kind not in "biuf":
        raise DataError(f"{file}: expected one sequence of shape (time,) or (time, channels), got {x.dtype} {x.shape}.")
    x = x.reshape(len(x), -1)
    return Table(file, {f"x{index}": column for index, column in enumerate(x.T)})


def _labels(path: Path, files: list[Path], folder: Path) -> dict[str, np.ndarray]:
    """The columns of ``path`` in the order of the files that its column of names has."""
    table = read_table(path)
    there = {name.lower(): name for name in table.columns}
    key = next((there[name] for name in FILE_NAMES if name in there), None)
    if key is None:
        raise DataError(f"{path}: expected a column {either(FILE_NAMES)}; columns: {', '.join(table.columns)}.")
    rows = {Path(str(name)).as_posix(): row for row, name in enumerate(table[key])}
    which = []
    for file in files:
        name = file.relative_to(folder)
        row = next((rows[one] for one in (name.as_posix(), name.name, name.with_suffix("").as_posix(), name.stem)
                    if one in rows), None)  # fmt: skip
        if row is None:
            raise DataError(f"{path}: no row for {name.as_posix()} in the column {key!r}; add one, or remove the file.")
        which.append(row)
    return {name: values[which] for name, values in table.columns.items() if name != key}


def _read_hugging_face(folder: Path, state: Path) -> Table:
    """A data set that ``datasets.Dataset.save_to_disk`` wrote: Arrow streams, named in state.json."""
    try:
        import pyarrow
    except ImportError:
        raise MissingExtraError(f"Reading {folder} needs pyarrow: pip install 'holdfast[data]'.") from None
    tables = []
    for entry in json.loads(state.read_bytes())["_data_files"]:
        file = folder / Path(str(entry["filename"])).name  # never outside of the folder
        check_size(file, file.stat().st_size)
        with pyarrow.ipc.open_stream(io.BytesIO(file.read_bytes())) as stream:
            tables.append(stream.read_all())
    return table_of_arrow(pyarrow.concat_tables(tables), folder)
