"""Files of columns (.csv, .tsv, .parquet) and of arrays (.npz, .npy), read without trusting them.

    whatever the bytes are  →  named NumPy arrays, or a DataError    (1)

Columns come as one of five kinds: whole numbers, numbers, truth values, text, times. A missing value is NaN in a column
of numbers and None in one of text. A cell may hold a whole sequence, as a list: then each of its steps gets a row.
Nothing in a file is ever run: arrays of Python objects are refused. What a small
compressed file would take when it is read is worked out from its headers first: see ``limits``.
"""

from __future__ import annotations

import collections
import dataclasses
import gzip
import itertools
import math
import os
import re
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

import numpy as np

from holdfast.errors import DataError, MissingExtraError, SettingError
from holdfast.tasks.limits import check_size, data_limit

__all__ = [
    "ARRAYS",
    "COLUMNS",
    "EXTENSIONS",
    "SEQUENCE_NAMES",
    "Cases",
    "Data",
    "Table",
    "decompressed",
    "either",
    "guarded",
    "read_arrays",
    "read_table",
    "suffix_of",
    "table_of_arrow",
]

COLUMNS = (".csv", ".tsv", ".csv.gz", ".tsv.gz", ".parquet")
ARRAYS = (".npz", ".npy")
EXTENSIONS = (*ARRAYS, *COLUMNS, ".ts", ".arff", ".xlsx")
SEQUENCE_NAMES = (
    *("sequence", "sequence_id", "seq", "seq_id", "series", "series_id", "id", "sample", "sample_id"),
    *("case", "case_id", "instance", "instances", "unique_id", "item_id"),  # as other libraries call it
)
_DECIMAL_COMMA = re.compile(r"[+-]?\d*,\d+")


@dataclasses.dataclass(frozen=True)
class Table:
    """The columns of a file.

    Args:
        path: of the file.
        columns: arrays of equal length by name, in the file's order.
        unusable: columns of a kind that is neither number, truth value, text nor time.
        note: what a person should know of how it was read.

    Example:
        >>> Table(Path("a.csv"), {"x": np.arange(3.0)}).rows
        3
    """

    path: Path
    columns: dict[str, np.ndarray]
    unusable: tuple[str, ...] = ()
    note: str = ""

    @property
    def rows(self) -> int:
        return len(next(iter(self.columns.values()))) if self.columns else 0

    def __getitem__(self, name: str) -> np.ndarray:
        """A column by its name, or an error that lists the names there are."""
        if name not in self.columns:
            kind = "holds lists or other nested values" if name in self.unusable else "is not in it"
            raise DataError(f"{self.path}: the column {name!r} {kind}; columns: {', '.join(self.columns) or 'none'}.")
        return self.columns[name]


class Cases(dict[str, np.ndarray]):
    """Arrays whose ``x`` is known to be (sequences, time, features): from a .ts file, or a list of sequences."""

    order = "time-first"


Data = Table | dict[str, np.ndarray]
"""What a file holds: columns or arrays."""


def suffix_of(path: str | Path) -> str:
    """The extension of a data file that is there and has one we read.

    Example:
        >>> suffix_of("holdfast.xls")
        Traceback (most recent call last):
        holdfast.errors.DataError: holdfast.xls: data comes as .npz, .npy, .csv, ... or .xlsx, or as a folder of ...
    """
    path = Path(path)
    suffix = next((known for known in EXTENSIONS if path.name.lower().endswith(known)), None)
    if suffix is None:
        where = "" if path.exists() else " This one is not there; check the path."
        raise DataError(
            f"{path}: data comes as {either(EXTENSIONS)}, or as a folder of such files, one per sequence.{where}"
        )
    if path.is_dir():
        raise DataError(f"{path} is a folder; name the file in it.")
    if not path.is_file():
        raise DataError(f"{path} is not there; check the path.")
    if path.stat().st_size == 0:
        raise DataError(f"{path} is empty.")
    return suffix


def read_table(path: str | Path) -> Table:
    """The columns of a .csv, .tsv or .parquet file (1).

    A .csv has a header line; its values are separated by commas, semicolons or tabs, whichever the header has most of.
    Where the first line is all numbers it is no header, and the columns are called f0, f1, ….

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = Path(folder, "a.csv")
        ...     _ = path.write_text("x;label" + chr(10) + "1.5;up" + chr(10) + "2;down")
        ...     read_table(path).columns
        {'x': array([1.5, 2. ]), 'label': array(['up', 'down'], dtype=object)}
    """
    path = Path(path)
    suffix = suffix_of(path)
    try:
        import pyarrow  # noqa: F401 - asked for here, so that the error names the file
    except ImportError as error:
        raise MissingExtraError(f"Reading {path} needs pyarrow: pip install 'holdfast[data]'.") from error
    if suffix == ".parquet":
        return table_of_arrow(guarded(path, lambda: _read_parquet(path)), path)
    return _read_csv(path)


def table_of_arrow(table: Any, path: Path) -> Table:
    """A pyarrow table as a ``Table`` of the five kinds; ``path`` is what errors call it.

    Example:
        >>> import pyarrow
        >>> table_of_arrow(pyarrow.table({"x": [[1.5, 2.0], [3.0]], "label": ["a", "b"]}), Path("a")).columns
        {'sequence': array([0, 0, 1]), 'x': array([1.5, 2. , 3. ]), 'label': array(['a', 'a', 'b'], dtype=object)}
    """
    import pyarrow
    import pyarrow.compute

    names = guarded(path, lambda: list(table.column_names))
    if twice := sorted(name for name, count in collections.Counter(names).items() if count > 1):
        raise DataError(f"{path}: columns with the same name: {', '.join(twice)}; rename them.")
    columns, unusable, lists = {}, [], {}
    for index, name in enumerate(names):  # by number: a lookup by name goes through all names
        array = guarded(path, lambda index=index: _numpy(table.column(index), pyarrow))
        if array is not None:
            columns[name] = array
        elif (nested := guarded(path, lambda index=index: _steps(table.column(index), pyarrow))) is not None:
            lists[name], columns[name] = nested, np.empty(0)
        else:
            unusable.append(name)
    if lists:
        return _exploded(path, columns, lists, tuple(unusable))
    if not columns:
        raise DataError(f"{path} has no column of numbers or text.")
    if not table.num_rows:
        raise DataError(f"{path} has the columns {', '.join(names)} and no rows.")
    return Table(path, columns, tuple(unusable))


def _steps(column: Any, pyarrow: Any) -> tuple[np.ndarray, np.ndarray] | None:
    """Lists of numbers, or of equally many numbers at every step: (all steps, channels), and the lengths; else None."""
    types, widths = pyarrow.types, []
    lengths = np.empty(0)
    for depth in range(2):
        if not (
            types.is_list(column.type) or types.is_large_list(column.type) or types.is_fixed_size_list(column.type)
        ):
            break
        counts = pyarrow.compute.list_value_length(column).to_numpy(zero_copy_only=False)
        if column.null_count:
            raise DataError("a list is missing")
        if depth == 0:
            lengths = counts.astype(np.int64)
        else:
            widths = np.unique(counts).tolist()
        column = pyarrow.compute.list_flatten(column)
    kind = column.type
    if not len(lengths) or not (types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind)):
        return None
    if len(widths) > 1 or not lengths.all():
        raise DataError(f"the steps of a list have {widths} values; expected as many at every step")
    return np.asarray(column.to_numpy(), dtype=np.float64).reshape(int(lengths.sum()), -1), lengths


def _exploded(path: Path, columns: dict[str, np.ndarray], lists: dict[str, Any], unusable: tuple[str, ...]) -> Table:
    """A row for every step of the lists; what stands beside them is repeated."""
    (first, (_, lengths)), *others = lists.items()
    for name, (_, counts) in others:
        if (odd := counts != lengths).any():
            row = int(odd.argmax())
            raise DataError(
                f"{path}: in row {row + 1} the list {first!r} has {lengths[row]} steps and {name!r} has {counts[row]}; "
                "expected as many in all columns of a row."
            )
    check_size(path, 8 * int(lengths.sum()) * (len(columns) + 1))
    made: dict[str, np.ndarray] = {}
    names = {name.lower(): name for name in columns if name not in lists}
    if not any(
        key in names and len(np.unique(columns[names[key]].astype(str))) == len(lengths) for key in SEQUENCE_NAMES
    ):
        made["sequence"] = np.repeat(np.arange(len(lengths)), lengths)
    for name, values in columns.items():
        if name not in lists:
            made[name] = np.repeat(values, lengths)
            continue
        steps = lists[name][0]
        made |= {name if steps.shape[1] == 1 else f"{name}_{index}": steps[:, index] for index in range(steps.shape[1])}
    return Table(path, made, unusable, "each row holds whole sequences, as lists")


def decompressed(path: Path) -> bytes:
    """The bytes of a text file; of a .gz file those inside, at most as many as the limit of ``limits`` allows."""
    if path.suffix.lower() != ".gz":
        return path.read_bytes()
    parts, total = [], 0
    with gzip.open(path) as file:
        while part := file.read(1 << 20):
            check_size(path, total := total + len(part))
            parts.append(part)
    return b"".join(parts)


def _read_csv(path: Path) -> Table:
    raw = guarded(path, lambda: decompressed(path))
    header = raw[: raw.find(b"\n") + 1 or None]
    delimiter = max(",;\t", key=lambda sign: header.count(sign.encode()))
    check_size(path, 8 * (raw.count(delimiter.encode()) + raw.count(b"\n")))
    headless = _all_numbers(header, delimiter)
    note = "the first line is not a header, so its columns are called f0, f1, …" if headless else ""
    made = table_of_arrow(guarded(path, lambda: _parsed(raw, delimiter, headless, ".")), path)
    if commas := {name: text for name in made.columns if (text := _decimal_comma(made[name]))}:
        name, text = next(iter(commas.items()))
        if all(len(text.partition(",")[2]) == 3 for text in commas.values()):
            raise DataError(
                f"{path}: the column {name!r} holds {text!r}, which may be a decimal comma or one between thousands; "
                "save the file with decimal points."
            )
        made = table_of_arrow(guarded(path, lambda: _parsed(raw, delimiter, headless, ",")), path)
        if wrong := next((name for name in commas if made[name].dtype.kind not in "iuf"), None):
            raise DataError(
                f"{path}: the column {wrong!r} has decimal commas, such as {commas[wrong]!r}, and other text; save the "
                "file with decimal points."
            )
        note = "; ".join(filter(None, [note, f"decimal commas, such as {text} in {name!r}, are read as points"]))
    return dataclasses.replace(made, note=note)


def _parsed(raw: bytes, delimiter: str, headless: bool, point: str) -> Any:
    import pyarrow
    from pyarrow import csv

    # one block, so that a column's kind is worked out from all of it and not from its beginning
    block = min(max(len(raw) + 1, 1 << 16), 2**31 - 1)
    return csv.read_csv(
        pyarrow.BufferReader(raw),
        read_options=csv.ReadOptions(block_size=block, use_threads=False, autogenerate_column_names=headless),
        parse_options=csv.ParseOptions(delimiter=delimiter),
        convert_options=csv.ConvertOptions(strings_can_be_null=True, decimal_point=point),
    )


def _all_numbers(header: bytes, delimiter: str) -> bool:
    """Whether a first line is of data: numbers, at least two, and not counting, as the names of columns may."""
    words = header.decode("utf-8", errors="replace").strip().split(delimiter)
    try:
        values = [float(word.strip().strip('"')) for word in words]
    except ValueError:
        return False
    return len(values) > 1 and any(after != before + 1 for before, after in itertools.pairwise(values))


def _decimal_comma(values: np.ndarray) -> str:
    """A text such as "1,5" from a column of nothing else; one that cannot be thousands if there is one; else ""."""
    if values.dtype != object:
        return ""
    texts = [value for value in values.tolist() if value is not None]
    if not texts or not all(
        isinstance(text, str) and (_DECIMAL_COMMA.fullmatch(text.strip()) or _whole(text)) for text in texts
    ):
        return ""
    found = [text for text in texts if "," in text]
    return next((text for text in found if len(text.strip().partition(",")[2]) != 3), found[0] if found else "")


def _whole(text: str) -> bool:
    return re.fullmatch(r"\s*[+-]?\d+\s*", text) is not None


def _read_parquet(path: Path) -> Any:
    import pyarrow
    from pyarrow import parquet

    with parquet.ParquetFile(path) as file:
        metadata, schema = file.metadata, file.schema_arrow
    chunks, types = _chunks(metadata), pyarrow.types
    check_size(path, sum(_decoded(chunk, rows) for chunk, rows in chunks))
    named = zip(schema.names, schema.types, strict=True)
    text = {name for name, kind in named if types.is_string(kind) or types.is_large_string(kind)}
    delta = {chunk.path_in_schema for chunk, _ in chunks if "DELTA_BYTE_ARRAY" in chunk.encodings}
    # text as numbers into a list of different texts: a long text that is repeated is in memory once
    options = {"page_checksum_verification": True, "read_dictionary": sorted(text - delta)}
    with parquet.ParquetFile(path, metadata=metadata, **options) as file:
        if not delta:
            return file.read(use_threads=False)
        # Texts that share beginnings: how long they are is known only when they are read. None is longer than its chunk
        limit, longest = data_limit()[0], max(chunk.total_uncompressed_size for chunk, _ in chunks)
        batches, total = [], 0
        for batch in file.iter_batches(min(1 << 16, max(1, limit // max(1, longest))), use_threads=False):
            check_size(path, total := total + batch.nbytes)
            batches.append(batch)
        return pyarrow.Table.from_batches(batches, file.schema_arrow)


def _chunks(metadata: Any) -> list[tuple[Any, int]]:
    """Every column of every row group, with the rows of the group."""
    groups = [metadata.row_group(index) for index in range(metadata.num_row_groups)]
    return [(group.column(index), group.num_rows) for group in groups for index in range(group.num_columns)]


def _decoded(chunk: Any, rows: int) -> int:
    """Bytes that a column of a row group takes when it is read. A value that repeats takes next to none in the file."""
    values = max(chunk.num_values, rows)
    return 8 * values + (chunk.total_uncompressed_size if chunk.physical_type.endswith("BYTE_ARRAY") else 0)


def _numpy(column: Any, pyarrow: Any) -> np.ndarray | None:
    """A column as an array of one of the five kinds, or None."""
    types = pyarrow.types
    if types.is_dictionary(column.type):
        if str(column.type.value_type) in ("string", "large_string", "string_view"):
            return _texts(column)
        column = column.cast(column.type.value_type)
    if types.is_string_view(column.type):  # as polars has them
        column = column.cast(pyarrow.large_string())
    kind = column.type
    if types.is_null(kind):
        return np.full(len(column), np.nan)
    if types.is_decimal(kind) or types.is_float16(kind):
        column = column.cast(pyarrow.float64())
    elif types.is_boolean(kind) and column.null_count:
        column = column.cast(pyarrow.int8())
    elif types.is_date(kind):
        column = column.cast(pyarrow.timestamp("s"))
    elif not (
        types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind) or types.is_timestamp(kind)
        or types.is_string(kind) or types.is_large_string(kind)
    ):  # fmt: skip
        return None
    return np.asarray(column.to_numpy())


def _texts(column: Any) -> np.ndarray:
    """A dictionary column of texts, each different text in memory once; None where there is no value."""
    parts = [np.empty(0, dtype=object)]
    for chunk in column.chunks:
        different = np.array([*chunk.dictionary.to_pylist(), None], dtype=object)
        parts.append(different[chunk.indices.fill_null(len(different) - 1).to_numpy()])
    return np.concatenate(parts)


def read_arrays(path: str | Path) -> dict[str, np.ndarray]:
    """The arrays of a .npz file (1), or the one of a .npy file as x: numbers, truth values or text.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     np.savez(Path(folder, "a.npz"), x=np.zeros((2, 3)))
        ...     read_arrays(Path(folder, "a.npz"))["x"].shape
        (2, 3)
    """
    path = Path(path)
    suffix = suffix_of(path)

    def read() -> dict[str, np.ndarray]:
        if suffix == ".npy":
            with path.open("rb") as file:
                header = _header(path, file, "x", os.fstat(file.fileno()).st_size)
                check_size(path, header.size_in_memory)
                return {"x": _read_array(file, header)}
        with zipfile.ZipFile(path) as archive:
            entries, headers = [entry for entry in archive.infolist() if entry.filename.endswith(".npy")], []
            for entry in entries:
                with archive.open(entry) as file:
                    headers.append(_header(path, file, entry.filename.removesuffix(".npy"), entry.file_size))
            check_size(path, sum(header.size_in_memory for header in headers))
            arrays = {}
            for entry, header in zip(entries, headers, strict=True):
                with archive.open(entry) as file:
                    file.read(header.begin)
                    arrays[header.name] = _read_array(file, header)
            return arrays

    if not (arrays := guarded(path, read)):
        raise DataError(f"{path} holds no arrays; write it with numpy.savez(path, x=…, y=…).")
    return arrays


@dataclasses.dataclass(frozen=True)
class _Header:
    """What a file says of one of its arrays, before the array is read."""

    name: str
    begin: int
    shape: tuple[int, ...]
    column_major: bool
    dtype: np.dtype

    @property
    def size_in_memory(self) -> int:
        """As numbers of 64 bits, or as text with 4 bytes per letter."""
        each = 4 * self.dtype.itemsize if self.dtype.kind == "S" else self.dtype.itemsize
        return math.prod(self.shape) * max(8, each)


def _header(path: Path, file: IO[bytes], name: str, size: int) -> _Header:
    version = np.lib.format.read_magic(file)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, column_major, dtype = read(file)
    header = _Header(name, file.tell(), shape, column_major, dtype)
    if dtype.hasobject or dtype.kind not in "biufSU":
        raise DataError(
            f"{path}: the array {header.name!r} holds {dtype}, which is not read: Python objects could run code. "
            "Save numbers or text: numpy.asarray(…, dtype=float) or dtype=str; pad sequences of unequal lengths."
        )
    # a header is believed only as far as the archive has bytes for it, so that it cannot ask for all memory
    expected, there = math.prod(shape) * dtype.itemsize, size - header.begin
    if expected != there:
        raise DataError(f"{path}: the array {header.name!r} announces {expected:,} bytes and has {there:,}.")
    return header


def _read_array(file: IO[bytes], header: _Header) -> np.ndarray:
    values = np.frombuffer(file.read(), header.dtype)
    array = values.reshape(header.shape, order="F" if header.column_major else "C")
    return array.astype(str) if header.dtype.kind == "S" else array


def guarded(path: Path, read: Callable[[], Any]) -> Any:
    """What ``read`` returns; whatever it raises becomes a DataError that names the file."""
    try:
        return read()
    except (SettingError, MissingExtraError):
        raise
    except DataError as error:
        raise error if str(path) in str(error) else DataError(f"{path}: {error}.") from None
    except Exception as error:  # what damaged bytes raise in the readers is a long list and changes with their versions
        problem = " ".join(str(error).split())[:300] or type(error).__name__
        kind = f"{path.suffix.lower()} file" if path.suffix else "folder"
        raise DataError(f"{path} is not a readable {kind}: {problem}") from error


def either(names: tuple[str, ...]) -> str:
    """Names, the last one behind "or"."""
    return f"{', '.join(names[:-1])} or {names[-1]}"
