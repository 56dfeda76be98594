"""Files of columns (.csv, .parquet) and of arrays (.npz), read without trusting them.

    whatever the bytes are  →  named NumPy arrays, or a DataError    (1)

Columns come as one of five kinds: whole numbers, numbers, truth values, text, times. A missing value is NaN in a column
of numbers and None in one of text. Nothing in a file is ever run: arrays of Python objects are refused. What a small
compressed file would take when it is read is worked out from its headers first: see ``limits``.
"""

from __future__ import annotations

import collections
import dataclasses
import math
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from holdfast.errors import DataError, MissingExtraError, SettingError
from holdfast.tasks.limits import check_size, data_limit

__all__ = ["EXTENSIONS", "Data", "Table", "read_arrays", "read_table", "suffix_of", "table_of_arrow"]

EXTENSIONS = (".npz", ".csv", ".parquet")


@dataclasses.dataclass(frozen=True)
class Table:
    """The columns of a file.

    Args:
        path: of the file.
        columns: arrays of equal length by name, in the file's order.
        unusable: columns of a kind that is neither number, truth value, text nor time.

    Example:
        >>> Table(Path("a.csv"), {"x": np.arange(3.0)}).rows
        3
    """

    path: Path
    columns: dict[str, np.ndarray]
    unusable: tuple[str, ...] = ()

    @property
    def rows(self) -> int:
        return len(next(iter(self.columns.values()))) if self.columns else 0

    def __getitem__(self, name: str) -> np.ndarray:
        """A column by its name, or an error that lists the names there are."""
        if name not in self.columns:
            kind = "holds lists or other nested values" if name in self.unusable else "is not in it"
            raise DataError(f"{self.path}: the column {name!r} {kind}; columns: {', '.join(self.columns) or 'none'}.")
        return self.columns[name]


Data = Table | dict[str, np.ndarray]
"""What a file holds: columns or arrays."""


def suffix_of(path: str | Path) -> str:
    """The extension of a data file that is there and has one we read.

    Example:
        >>> suffix_of("holdfast.xlsx")
        Traceback (most recent call last):
        holdfast.errors.DataError: holdfast.xlsx: data comes as .npz, .csv or .parquet...
    """
    path = Path(path)
    if (suffix := path.suffix.lower()) not in EXTENSIONS:
        raise DataError(f"{path}: data comes as {_either(EXTENSIONS)}; save it as one of them.")
    if path.is_dir():
        raise DataError(f"{path} is a folder; name the file in it.")
    if not path.is_file():
        raise DataError(f"{path} is not there; check the path.")
    if path.stat().st_size == 0:
        raise DataError(f"{path} is empty.")
    return suffix


def read_table(path: str | Path) -> Table:
    """The columns of a .csv or .parquet file (1).

    A .csv has a header line; its values are separated by commas, semicolons or tabs, whichever the header has most of.

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
    return table_of_arrow(_guarded(path, lambda: _read_csv(path) if suffix == ".csv" else _read_parquet(path)), path)


def table_of_arrow(table: Any, path: Path) -> Table:
    """A pyarrow table as a ``Table`` of the five kinds; ``path`` is what errors call it.

    Example:
        >>> import pyarrow
        >>> table_of_arrow(pyarrow.table({"x": [1.5, None], "nested": [[1], [2]]}), Path("a")).unusable
        ('nested',)
    """
    import pyarrow

    names = _guarded(path, lambda: list(table.column_names))
    if twice := sorted(name for name, count in collections.Counter(names).items() if count > 1):
        raise DataError(f"{path}: columns with the same name: {', '.join(twice)}; rename them.")
    columns, unusable = {}, []
    for index, name in enumerate(names):  # by number: a lookup by name goes through all names
        array = _guarded(path, lambda index=index: _numpy(table.column(index), pyarrow))
        if array is None:
            unusable.append(name)
        else:
            columns[name] = array
    if not columns:
        raise DataError(f"{path} has no column of numbers or text.")
    if not table.num_rows:
        raise DataError(f"{path} has the columns {', '.join(names)} and no rows.")
    return Table(path, columns, tuple(unusable))


def _read_csv(path: Path) -> Any:
    from pyarrow import csv

    with path.open("rb") as file:
        header = file.readline(1 << 20)
    delimiter = max(",;\t", key=lambda sign: header.count(sign.encode()))
    # one block, so that a column's kind is worked out from all of it and not from its beginning
    block = min(max(path.stat().st_size + 1, 1 << 16), 2**31 - 1)
    return csv.read_csv(
        path,
        read_options=csv.ReadOptions(block_size=block, use_threads=False),
        parse_options=csv.ParseOptions(delimiter=delimiter),
        convert_options=csv.ConvertOptions(strings_can_be_null=True),
    )


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
        if types.is_string(column.type.value_type) or types.is_large_string(column.type.value_type):
            return _texts(column)
        column = column.cast(column.type.value_type)
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
    """The arrays of a .npz file (1): numbers, truth values or text.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     np.savez(Path(folder, "a.npz"), x=np.zeros((2, 3)))
        ...     read_arrays(Path(folder, "a.npz"))["x"].shape
        (2, 3)
    """
    path = Path(path)
    suffix_of(path)

    def read() -> dict[str, np.ndarray]:
        with zipfile.ZipFile(path) as archive:
            entries = [entry for entry in archive.infolist() if entry.filename.endswith(".npy")]
            headers = [_header(path, archive, entry) for entry in entries]
            check_size(path, sum(header.size_in_memory for header in headers))
            return {header.name: _read_array(archive, header) for header in headers}

    if not (arrays := _guarded(path, read)):
        raise DataError(f"{path} holds no arrays; write it with numpy.savez(path, x=…, y=…).")
    return arrays


@dataclasses.dataclass(frozen=True)
class _Header:
    """What a .npz file says of one of its arrays, before the array is read."""

    entry: zipfile.ZipInfo
    begin: int
    shape: tuple[int, ...]
    column_major: bool
    dtype: np.dtype

    @property
    def name(self) -> str:
        return self.entry.filename.removesuffix(".npy")

    @property
    def size_in_memory(self) -> int:
        """As numbers of 64 bits, or as text with 4 bytes a letter."""
        each = 4 * self.dtype.itemsize if self.dtype.kind == "S" else self.dtype.itemsize
        return math.prod(self.shape) * max(8, each)


def _header(path: Path, archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> _Header:
    with archive.open(entry) as file:
        version = np.lib.format.read_magic(file)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, column_major, dtype = read(file)
        header = _Header(entry, file.tell(), shape, column_major, dtype)
    if dtype.hasobject or dtype.kind not in "biufSU":
        raise DataError(
            f"{path}: the array {header.name!r} holds {dtype}, which is not read: Python objects could run code. "
            "Save numbers or text: numpy.asarray(…, dtype=float) or dtype=str; pad sequences of unequal lengths."
        )
    # a header is believed only as far as the archive has bytes for it, so that it cannot ask for all memory
    expected, there = math.prod(shape) * dtype.itemsize, entry.file_size - header.begin
    if expected != there:
        raise DataError(f"{path}: the array {header.name!r} announces {expected:,} bytes and has {there:,}.")
    return header


def _read_array(archive: zipfile.ZipFile, header: _Header) -> np.ndarray:
    with archive.open(header.entry) as file:
        file.read(header.begin)
        values = np.frombuffer(file.read(), header.dtype)
    array = values.reshape(header.shape, order="F" if header.column_major else "C")
    return array.astype(str) if header.dtype.kind == "S" else array


def _guarded(path: Path, read: Callable[[], Any]) -> Any:
    try:
        return read()
    except (DataError, SettingError):
        raise
    except Exception as error:  # what damaged bytes raise in the readers is a long list and changes with their versions
        problem = " ".join(str(error).split())[:300] or type(error).__name__
        raise DataError(f"{path} is not a readable {path.suffix.lower()} file: {problem}") from error


def _either(names: tuple[str, ...]) -> str:
    return f"{', '.join(names[:-1])} or {names[-1]}"
