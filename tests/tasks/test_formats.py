"""Files of other tools and folders of files: the same sequences from each of them, and no bytes do harm."""

import functools
import gzip
import io
import json
import tempfile
import zipfile
from pathlib import Path

import numpy as np
import openpyxl
import pandas
import polars
import pyarrow
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast.errors import DataError, HoldfastError
from holdfast.tasks import OwnData, in_memory
from holdfast.tasks.formats import data_digest, read_data

few = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
COUNT, STEPS = 12, 5


def _sequences():
    """(cases, time, 2), of which some have fewer steps, and their classes."""
    lengths = np.array([STEPS - index % 3 for index in range(COUNT)])
    return np.random.default_rng(0).normal(size=(COUNT, STEPS, 2)).round(4), lengths, np.array(["no", "yes"] * 6)


def _ts(path):
    x, lengths, y = _sequences()
    lines = [
        ":".join(",".join(map(str, channel[:steps])) for channel in case.T) + f":{label}"
        for case, steps, label in zip(x, lengths, y, strict=True)
    ]
    head = "# made up\n@problemName Mine\n@timeStamps false\n@univariate false\n@classLabel true no yes\n@data\n"
    path.write_text(head + "\n".join(lines) + "\n")


def _arff(path):
    x, lengths, y = _sequences()
    lines = [
        '"' + "\\n".join(",".join(map(str, channel[:steps])) for channel in case.T) + f'",{label}'
        for case, steps, label in zip(x, lengths, y, strict=True)
    ]
    head = "% made up\n@relation mine\n@attribute r relational\n@attribute att0 numeric\n@end r\n"
    path.write_text(f"{head}@attribute label {{no,yes}}\n@data\n" + "\n".join(lines) + "\n")


def _rows():
    """One row per step: header, and values."""
    x, lengths, y = _sequences()
    yield ["id", "a", "b", "label"]
    for index, steps in enumerate(lengths):
        yield from ([f"s{index}", *map(float, x[index, step]), str(y[index])] for step in range(steps))


def _text(path, sign=","):
    text = "\n".join(sign.join(map(str, row)) for row in _rows()) + "\n"
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())


def _xlsx(path):
    book = openpyxl.Workbook()
    for row in _rows():
        book.active.append(row)
    book.save(path)


def _folder(path):
    x, lengths, y = _sequences()
    for index, (case, steps, label) in enumerate(zip(x, lengths, y, strict=True)):
        (path / label).mkdir(parents=True, exist_ok=True)
        np.save(path / label / f"{index:02}.npy", case[:steps])


def _labelled(path):
    x, lengths, y = _sequences()
    path.mkdir()
    for index, (case, steps) in enumerate(zip(x, lengths, strict=True)):
        lines = [f"{a},{b}" for a, b in case[:steps]]
        (path / f"s{index:02}.csv").write_text("\n".join(["a,b", *lines]) + "\n")
    rows = [f"s{index:02},{label}" for index, label in reversed([*enumerate(y)])]
    (path / "labels.csv").write_text("\n".join(["file,label", *rows]) + "\n")


def _hugging_face(path):
    x, lengths, y = _sequences()
    lists = [case[:steps].tolist() for case, steps in zip(x, lengths, strict=True)]
    table = pyarrow.table({"signal": lists, "label": y.tolist()})
    path.mkdir()
    with pyarrow.ipc.new_stream(path / "data-00000-of-00001.arrow", table.schema) as stream:
        stream.write_table(table)
    (path / "state.json").write_text(json.dumps({"_data_files": [{"filename": "data-00000-of-00001.arrow"}]}))


WRITERS = {
    "a.ts": _ts,
    "a.arff": _arff,
    "a.tsv": lambda path: _text(path, "\t"),
    "a.csv.gz": _text,
    "a.xlsx": _xlsx,
    "folder": _folder,
    "labelled": _labelled,
    "saved": _hugging_face,
}


def _matches(task):
    x, lengths, y = _sequences()
    data = task.data["train"]
    assert data.lengths.tolist() == lengths.tolist()
    assert [task.spec.classes[index] for index in data.targets] == y.tolist()
    inside = np.arange(STEPS) < lengths[:, None]
    torch.testing.assert_close(data.inputs[torch.from_numpy(inside)], torch.from_numpy(x[inside]))


@pytest.mark.parametrize("name", WRITERS)
def test_every_format_gives_the_same_sequences(tmp_path, name):
    WRITERS[name](tmp_path / name)
    task = OwnData(tmp_path / name, validation=0, test=0, standardise=False).load()
    if name == "folder":  # in the order of the files: "no" first
        order = [*range(0, COUNT, 2), *range(1, COUNT, 2)]
        back = torch.tensor(np.argsort(order))
        data = task.data["train"]
        task.data["train"] = type(data)(data.inputs[back], data.targets[back], data.lengths[back])
    _matches(task)
    again = task.preparation.apply(tmp_path / name)
    assert len(again) == COUNT


def test_data_in_memory_give_the_same_sequences():
    x, lengths, y = _sequences()
    lists = [case[:steps] for case, steps in zip(x, lengths, strict=True)]
    nested = {"a": [case[:, 0].tolist() for case in lists], "b": [case[:, 1].tolist() for case in lists], "label": y}
    header, *rows = _rows()
    long = dict(zip(header, zip(*rows, strict=True), strict=True))
    asked = {"validation": 0, "test": 0, "standardise": False}
    for made in (
        in_memory(lists, y, **asked),
        in_memory([case.tolist() for case in lists], y.tolist(), **asked),
        in_memory(pandas.DataFrame(long), **asked),
        in_memory(polars.DataFrame(long), **asked),
        in_memory(polars.DataFrame(long, schema_overrides={"id": polars.Categorical}), **asked),
        in_memory(polars.DataFrame({**nested, "label": y.tolist()}), **asked),
        in_memory(pandas.DataFrame(nested), **asked),
        in_memory(pandas.DataFrame({**nested, "a": [pandas.Series(cell) for cell in nested["a"]]}), **asked),
        in_memory(pyarrow.table({**nested, "label": y.tolist()}), **asked),
    ):
        _matches(made)


def test_an_array_file_holds_the_inputs(tmp_path):
    np.save(tmp_path / "a.npy", np.random.default_rng(0).normal(size=(20, 9, 2)))
    assert OwnData(tmp_path / "a.npy").load().preparation.kind == "next-step"


def test_targets_that_are_numbers_and_times_in_a_ts_file(tmp_path):
    head = "@timestamps true\n@targetlabel true\n@data\n"
    rows = [f"(2020-01-01 00:00:00,{i}.5),(2020-01-01 00:01:00,{i}):{i / 7}" for i in range(10)]
    (tmp_path / "a.ts").write_text(head + "\n".join(rows))
    arrays = read_data(tmp_path / "a.ts")
    assert arrays["x"][3, :, 0].tolist() == [3.5, 3.0]
    assert arrays["y"].dtype.kind == "f"


def test_a_table_without_a_header_has_numbered_columns(tmp_path):
    rng = np.random.default_rng(0)
    np.savetxt(tmp_path / "a.tsv", np.c_[np.arange(30) % 2 + 1, rng.normal(size=(30, 8))], delimiter="\t")
    task = OwnData(tmp_path / "a.tsv", target="f0").load()
    assert task.train_batch(0, 4, seed=0).inputs.shape == (8, 4, 1)
    assert "not a header, so its columns are called f0, f1" in task.choices[0]
    (tmp_path / "b.csv").write_text("1990,1991,1992\n1,2,3\n4,5,6\n")
    assert list(read_data(tmp_path / "b.csv").columns) == ["1990", "1991", "1992"]


def test_decimal_commas_are_read_where_they_are_certain_and_refused_where_not(tmp_path):
    (tmp_path / "a.csv").write_text("x;n\n1,5;a\n-2;b\n,25;c\n")
    table = read_data(tmp_path / "a.csv")
    assert table["x"].tolist() == [1.5, -2.0, 0.25]
    assert "decimal commas, such as 1,5 in 'x'" in table.note
    (tmp_path / "b.csv").write_text("x;n\n1,500;a\n2,250;b\n")
    with pytest.raises(DataError, match=r"'x' holds '1,500', which may be a decimal comma or one between thousands"):
        read_data(tmp_path / "b.csv")


def test_the_digest_of_a_folder_is_that_of_its_files(tmp_path):
    _folder(tmp_path / "a")
    first = data_digest(tmp_path / "a")
    assert first == data_digest(tmp_path / "a")
    np.save(tmp_path / "a" / "no" / "00.npy", np.zeros((3, 2)))
    assert data_digest(tmp_path / "a") != first


def _written(folder, files):
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({"readme.md": "x"}, "holds no sequences: expected files .csv"),
        ({"a/1.csv": "x,y\n1,2\n", "b/2.csv": "x\n1\n"}, "2.csv has the columns x, but .*1.csv has x, y"),
        ({"a/1.csv": "x\n1\n", "b/2.csv": "x\nword\n"}, "'x' is not of the same kind as in"),
        ({"a/1.csv": "label\n1\n"}, "'label', which a folder of files adds"),
        ({"1.csv": "x\n1\n", "labels.csv": "file,label\n2,a\n"}, r"no row for 1\.csv in the column 'file'"),
        ({"1.csv": "x\n1\n", "labels.csv": "what,label\n1,a\n"}, "expected a column file, filename"),
        ({"state.json": "{"}, "not a readable folder"),
        ({"state.json": '{"_data_files": [{"filename": "../../secret.arrow"}]}'}, "secret.arrow"),
    ],
)
def test_a_folder_that_cannot_be_used_is_refused_with_the_reason(tmp_path, files, said):
    with pytest.raises(DataError, match=said):
        OwnData(_written(tmp_path / "folder", files)).load()


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("a.ts", "@data\n", "holds no sequences"),
        ("a.ts", "1,2,3\n", "expected lines that begin with @"),
        ("a.ts", "@classLabel true a\n@data\n1,2:3:a\n", "sequence 0 has 2 of 2, 1 steps"),
        ("a.ts", "@classLabel true a\n@data\n1,b:a\n", "line 3: could not convert"),
        ("a.ts", "@targetLabel true\n@data\n1,2:a\n", "targets must be numbers"),
        ("a.arff", "@relation a\n@attribute x numeric\n@data\n1,2\n", "line 4: expected 1 values, got 2"),
        ("a.arff", "@relation a\n@attribute x\n@data\n", "expected @attribute NAME KIND"),
        ("a.arff", "@relation a\n@attribute x numeric\n@data\nb\n", "'x' is numeric, but could not convert"),
        ("a.arff", "@relation a\n@attribute x numeric\n@data\n{0 1, 1 2}\n", "sparse rows are not read"),
        ("a.arff", "@relation a\n@attribute x numeric\n@data\n", "no rows behind @data"),
        ("a.xlsx", "not a spreadsheet", "not a readable .xlsx"),
        ("a.npy", "not an array", "not a readable .npy"),
        ("a.csv.gz", "not compressed", "not a readable .gz"),
    ],
)
def test_a_file_that_cannot_be_used_is_refused_with_the_reason(tmp_path, name, text, said):
    (tmp_path / name).write_text(text)
    with pytest.raises(DataError, match=said) as caught:
        OwnData(tmp_path / name).load()
    assert name in str(caught.value)


# Bombs


def test_a_compressed_text_is_read_up_to_the_limit(tmp_path, monkeypatch):
    """20 MB of zeros in 20 kB: refused after the first 5 MB."""
    (tmp_path / "a.csv.gz").write_bytes(gzip.compress(b"x\n" + b"0\n" * 10_000_000))
    assert (tmp_path / "a.csv.gz").stat().st_size < 30_000
    monkeypatch.setenv("HOLDFAST_DATA_LIMIT", "5MB")
    with pytest.raises(DataError, match=r"would take 5\.\d MB .*; the limit is 5.0 MB"):
        read_data(tmp_path / "a.csv.gz")


def test_numbers_in_a_text_count_as_64_bits(tmp_path, monkeypatch):
    (tmp_path / "a.csv").write_text("x,y\n" + "1,2\n" * 100_000)
    monkeypatch.setenv("HOLDFAST_DATA_LIMIT", "1MB")
    with pytest.raises(DataError, match=r"would take 1.6 MB"):
        read_data(tmp_path / "a.csv")


def _meddled(path, name, change):
    """A spreadsheet with one of its parts changed."""
    _xlsx(path)
    with zipfile.ZipFile(path) as archive:
        parts = {entry.filename: archive.read(entry) for entry in archive.infolist()}
    parts[name] = change(parts[name])
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for part, raw in parts.items():
            archive.writestr(part, raw)


def test_a_spreadsheet_that_grows_is_refused(tmp_path, monkeypatch):
    path = tmp_path / "a.xlsx"
    _meddled(path, "xl/worksheets/sheet1.xml", lambda raw: raw + b" " * 20_000_000)
    assert path.stat().st_size < 100_000
    monkeypatch.setenv("HOLDFAST_DATA_LIMIT", "5MB")
    with pytest.raises(DataError, match=r"would take 20.0 MB"):
        read_data(path)


@pytest.mark.parametrize("code", ["utf-8", "utf-16"])
def test_a_spreadsheet_with_entities_is_refused(tmp_path, code):
    def change(raw):
        text = raw.decode().partition("?>")[2] or raw.decode()
        return f'<?xml version="1.0" encoding="{code}"?><!DOCTYPE x [<!ENTITY a "aaaa">]>{text}'.encode(code)

    _meddled(tmp_path / "a.xlsx", "xl/worksheets/sheet1.xml", change)
    with pytest.raises(DataError, match=r"sheet1.xml has a document type, which no spreadsheet has"):
        read_data(tmp_path / "a.xlsx")


def test_an_array_of_objects_is_never_unpickled(tmp_path):
    np.save(tmp_path / "a.npy", np.array([{"a": 1}], dtype=object), allow_pickle=True)
    with pytest.raises(DataError, match="could run code"):
        read_data(tmp_path / "a.npy")
    raw = io.BytesIO()
    np.lib.format.write_array_header_1_0(raw, {"descr": "<f8", "fortran_order": False, "shape": (10**9, 10**6)})
    (tmp_path / "b.npy").write_bytes(raw.getvalue() + bytes(800))
    with pytest.raises(DataError, match="announces 8,000,000,000,000,000 bytes and has 800"):
        read_data(tmp_path / "b.npy")


# Fuzz


@functools.cache  # a spreadsheet has the time inside: the same bytes for every example
def _good(name):
    with tempfile.TemporaryDirectory() as folder:
        WRITERS[name](path := Path(folder, name))
        return path.read_bytes()


@pytest.mark.parametrize("name", ["a.ts", "a.arff", "a.xlsx", "a.csv.gz"])
@given(data=st.data())
@few
def test_mangled_files_give_a_clear_error_or_load(tmp_path, name, data):
    path, raw = tmp_path / name, bytearray(_good(name))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, max(len(raw) - 1, 0)))
        if data.draw(st.booleans()):
            del raw[at : at + data.draw(st.integers(1, 30))]
        else:
            raw[at:at] = data.draw(st.binary(min_size=1, max_size=4))
    path.write_bytes(bytes(raw))
    try:
        task = OwnData(path, validation=0, test=0).load()
    except HoldfastError as error:
        said = str(error)
    else:
        assert torch.isfinite(task.train_batch(0, 2, seed=0).inputs).all()
        return
    assert str(path) in said


def test_the_index_of_a_frame_names_sequences_and_steps():
    """As sktime has panels: a row per step, under two index levels."""
    x, lengths, y = _sequences()
    pairs = [(case, step) for case in range(COUNT) for step in range(lengths[case])][::-1]
    index = pandas.MultiIndex.from_tuples(pairs, names=["instances", "timepoints"])
    values = np.array([x[pair] for pair in pairs])
    frame = pandas.DataFrame({"a": values[:, 0], "b": values[:, 1], "label": [y[case] for case, _ in pairs]}, index)
    task = in_memory(frame, validation=0, test=0, standardise=False)
    data, back = task.data["train"], torch.arange(COUNT - 1, -1, -1)  # sequences in the order in which they appear
    task.data["train"] = type(data)(data.inputs[back], data.targets[back], data.lengths[back])
    _matches(task)
