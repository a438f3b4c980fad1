"""What `--data` names, read as samples; and the one line that says why it is not."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.parquet as parquet
import pytest
from PIL import Image

from poetc.artifact import require_solved
from poetc.commands.options import DATA
from poetc.datasets import KINDS, BatchFunction, StoredArray, check_values, open_source, slots_of
from poetc.datasets.arrays import npy_column
from poetc.errors import UsageError
from poetc.graph import Graph, Role, TensorType
from poetc.ops import Builder
from poetc.program import Limit
from poetc.training import TrainingOptions, build
from tests.datasets.support import CLASS, FEATURES, IMAGE, NUMBER, images, opened, stored


def test_an_archive_stays_on_the_disk_unless_it_is_compressed(tmp_path: Path) -> None:
    arrays = images()
    plain = opened(stored(tmp_path / "plain.npz", **arrays), IMAGE, CLASS)
    assert isinstance(plain.columns["x"], StoredArray)
    np.savez_compressed(tmp_path / "packed.npz", **arrays)
    packed = opened(tmp_path / "packed.npz", IMAGE, CLASS)
    for samples in (plain, packed):
        taken = samples.take(np.array([7, 0]))
        assert (taken["x"] == arrays["x"][[7, 0]]).all()
        assert taken["t"].tolist() == [1, 0]
    assert plain.digest() == packed.digest()


ROWS = (3, -1, slice(2, 7), slice(8, None, -3), [4, 4, 0], np.arange(10) % 3 == 0, np.arange(0))


@pytest.mark.parametrize("rows", ROWS)
def test_an_array_on_the_disk_is_indexed_as_one_in_memory(tmp_path: Path, rows: object) -> None:
    big_endian = np.random.default_rng(0).standard_normal((10, 2, 3)).astype(">f8")
    np.save(tmp_path / "a.npy", big_endian)
    column = npy_column(tmp_path / "a.npy")
    assert isinstance(column, StoredArray) and (column.shape, column.dtype) == ((10, 2, 3), big_endian.dtype)
    assert np.array_equal(column[rows], big_endian[rows])  # type: ignore[index]
    assert np.array_equal(column.reshape(5, 12)[[1, 3]], big_endian.reshape(5, 12)[[1, 3]])


def test_a_file_that_is_cut_off_or_written_to_is_named(tmp_path: Path) -> None:
    path = stored(tmp_path / "d.npz", **images())
    samples = opened(path, IMAGE, CLASS)
    content = path.read_bytes()
    other = tmp_path / "other.npz"
    other.write_bytes(bytes(len(content)))
    other.rename(path)  # the file that was opened is still there
    samples.require_unchanged()
    assert samples.take(np.arange(10))["t"].tolist() == images()["target"].tolist()
    path.write_bytes(content)
    samples = opened(path, IMAGE, CLASS)
    path.write_bytes(content[:300])
    with pytest.raises(UsageError, match=r"d\.npz: was cut off"):
        samples.take(np.arange(10))
    with pytest.raises(UsageError, match=r"d\.npz: was cut off"):
        samples.require_unchanged()


def test_arrays_may_lack_axes_of_length_one_and_have_other_names(tmp_path: Path) -> None:
    arrays = images()
    path = stored(tmp_path / "d.npz", train_x=arrays["x"][:, 0], train_y=arrays["target"][:, None])
    for text in (f"{path}:train_x,train_y", f"{path}:x=train_x,target=train_y"):
        assert (opened(text, IMAGE, CLASS).take(np.arange(10))["x"] == arrays["x"]).all()


def test_a_file_with_one_array_named_is_no_function(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    stored(tmp_path / "d.npz", **images())
    assert opened("d.npz:x", IMAGE, CLASS).take(np.arange(10))["t"].tolist() == images()["target"].tolist()
    notes: list[str] = []
    for text in ("d.npz", "d.npz:x,target", "d.npz:target=target,x=x"):
        open_source(text, (IMAGE, CLASS), notes.append)
    assert notes == []
    for text in ("d.npz:x", "d.npz:target=target"):
        open_source(text, (IMAGE, CLASS), notes.append)
    assert notes == [
        "--data d.npz:x: names no array for the target; taken is 'target'",
        "--data d.npz:target=target: names no array for input 'x'; taken is 'x'",
    ]
    with pytest.raises(UsageError, match=r"d\.npz: has no array 'image'"):
        opened("d.npz:image", IMAGE, CLASS)


def test_npy_files_side_by_side_and_in_a_folder(tmp_path: Path) -> None:
    arrays = images()
    for name, array in arrays.items():
        np.save(tmp_path / f"{name}.npy", array)
    for text in (tmp_path, f"{tmp_path / 'x.npy'},{tmp_path / 'target.npy'}"):
        assert (opened(text, IMAGE, CLASS).take(np.array([3]))["x"] == 3).all()


def test_the_help_of_data_names_every_kind_and_has_its_options() -> None:
    (data,) = (option for option in DATA if option.name == "data")
    names = {option.name for option in DATA}
    for kind in KINDS.values():
        assert kind.description in data.help and kind.help in data.help
        assert {option.name for option in kind.options} <= names


def test_each_json_line_is_a_sample(tmp_path: Path) -> None:
    lines = '{"x": [1, 2, 3], "y": "rose"}\n\n{"x": [4, 5, 6], "y": "iris"}\n'
    (tmp_path / "iris.jsonl").write_text(lines)
    samples = opened(tmp_path / "iris.jsonl", FEATURES, CLASS)
    assert samples.classes == ("iris", "rose")
    taken = samples.take(np.arange(2))
    assert taken["x"].tolist() == [[1, 2, 3], [4, 5, 6]] and taken[CLASS.name].tolist() == [1, 0]
    (tmp_path / "features.jsonl").write_text('{"a": 1, "b": 2, "c": 3.5, "target": 2}\n')
    assert opened(tmp_path / "features.jsonl", FEATURES, CLASS).take(np.arange(1))["x"].tolist() == [[1, 2, 3.5]]


def test_each_csv_row_is_a_sample(tmp_path: Path) -> None:
    (tmp_path / "iris.csv").write_text("a,b,c,kind\n1,2,3,rose\n4,5,6,iris\n7,8,9,rose\n")
    samples = opened(tmp_path / "iris.csv", FEATURES, CLASS)
    assert samples.classes == ("iris", "rose")
    assert samples.take(np.arange(3))["t"].tolist() == [1, 0, 1]
    (tmp_path / "numbers.csv").write_text("1;2;3;0.5\n4;5;6;1.5\n")
    taken = opened(tmp_path / "numbers.csv", FEATURES, NUMBER).take(np.arange(2))
    (tmp_path / "ends.csv").write_bytes(b"1;2;3;0.5\r4;5;6;1.5\r")  # lines as old Macs end them
    assert (opened(tmp_path / "ends.csv", FEATURES, NUMBER).take(np.arange(2))["x"] == taken["x"]).all()
    assert taken["x"].tolist() == [[1, 2, 3], [4, 5, 6]]
    assert taken["t"].tolist() == [[0.5], [1.5]]
    named = opened(
        f"{tmp_path / 'iris.csv'}:target=kind", FEATURES, CLASS, like=replace(samples, classes=("rose", "iris"))
    )
    assert named.take(np.arange(3))["t"].tolist() == [0, 1, 0]


def test_validation_finds_the_columns_of_the_training_data_by_name(tmp_path: Path) -> None:
    (tmp_path / "train.csv").write_text("a,b,c,kind\n1,2,3,rose\n4,5,6,iris\n")
    like = opened(tmp_path / "train.csv", FEATURES, CLASS)
    (tmp_path / "moved.csv").write_text("kind,c,a,b\nrose,3,1,2\niris,6,4,5\n")
    moved = opened(tmp_path / "moved.csv", FEATURES, CLASS, like=like)
    parquet.write_table(
        pyarrow.table({"kind": ["rose", "iris"], "c": [3, 6], "b": [2, 5], "a": [1, 4]}), tmp_path / "moved.parquet"
    )
    for found in (moved, opened(tmp_path / "moved.parquet", FEATURES, CLASS, like=like)):
        taken, wanted = found.take(np.arange(2)), like.take(np.arange(2))
        assert taken["x"].tolist() == wanted["x"].tolist() and taken["t"].tolist() == wanted["t"].tolist() == [1, 0]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a,b,d,kind\n1,2,3,0\n", r"v\.csv: has no column 'c', which .*train\.csv has \(it has a, b, d\)"),
        ("1,2,3,0\n", r"v\.csv: has no column 'kind', the target in .*train\.csv \(it has 1, 2, 3, 4\)"),
        ("a,b,c,label\n1,2,3,0\n", r"v\.csv: has no column 'kind', the target in .*train\.csv"),
        ("a,b,c,e,kind\n1,2,3,4,0\n", r"v\.csv: column 'e' is none of .*train\.csv"),
        (
            "a,b,c,kind\n1,2,3,0\n1,2,3,iris\n",
            r"v\.csv: line 3, column 'kind': 'iris' is a word; the targets of .* num",
        ),
    ],
)
def test_validation_with_other_columns_is_refused(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "train.csv").write_text("a,b,c,kind\n1,2,3,1\n4,5,6,0\n")
    like = opened(tmp_path / "train.csv", FEATURES, CLASS)
    (tmp_path / "v.csv").write_text(text)
    with pytest.raises(UsageError, match=message):
        opened(tmp_path / "v.csv", FEATURES, CLASS, like=like)


def test_named_images_do_not_validate_numbers(tmp_path: Path) -> None:
    (tmp_path / "cat").mkdir()
    Image.fromarray(np.zeros((2, 3), np.uint8)).save(tmp_path / "cat" / "0.png")
    with pytest.raises(UsageError, match=r"its classes have names; those of .* are numbers"):
        opened(tmp_path, IMAGE, CLASS, like=opened(stored(tmp_path / "d.npz", **images()), IMAGE, CLASS))


def test_a_function_yields_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "feeding.py").write_text(
        "import numpy as np\n"
        "def fine(epoch):\n    yield {'x': np.full((4, 1, 2, 3), epoch), 'y': np.zeros(4, int)}\n"
        "def wrong():\n    yield np.zeros((4, 2)), np.zeros(4, int)\n"
        "def broken():\n    yield np.zeros((4, 1, 2, 3)), np.zeros(4, int)\n    raise KeyError('gone')\n"
    )
    fine = open_source("feeding:fine", (IMAGE, CLASS), print)
    assert isinstance(fine, BatchFunction)
    assert [float(batch["x"].max()) for batch in fine.batches((IMAGE, CLASS), 3)] == [3.0]
    for name, message in (("wrong", r"batch 0: x has shape \[4, 2\]"), ("broken", "KeyError in batch 1")):
        source = open_source(f"feeding:{name}", (IMAGE, CLASS), print)
        assert isinstance(source, BatchFunction)
        with pytest.raises(UsageError, match=message):
            list(source.batches((IMAGE, CLASS), 1))
    with pytest.raises(UsageError, match="has no function 'absent'"):
        open_source("feeding:absent", (IMAGE, CLASS), print)


def test_images_by_class(tmp_path: Path) -> None:
    for number, kind in enumerate(("cat", "dog")):
        (tmp_path / kind).mkdir()
        for n in range(2):
            pixels = np.full((2, 3), 50 * number + n, np.uint8)
            Image.fromarray(pixels).save(tmp_path / kind / f"{n}.png")
    samples = opened(tmp_path, IMAGE, CLASS)
    assert samples.classes == ("cat", "dog")
    taken = samples.take(np.array([3, 0]))
    assert taken["x"][:, 0, 0, 0].tolist() == [51, 0]
    assert taken["t"].tolist() == [1, 0]
    (tmp_path / "dog" / "2.png").write_text("no image")
    with pytest.raises(UsageError, match=r"2\.png: not an image"):
        opened(tmp_path, IMAGE, CLASS).take(np.array([4]))


def test_parquet_is_read_as_a_table(tmp_path: Path) -> None:
    table = pyarrow.table({"a": [1, 2], "b": [3, 4], "c": [5.5, 6.5], "label": ["u", "v"]})
    parquet.write_table(table, tmp_path / "t.parquet")
    taken = opened(tmp_path / "t.parquet", FEATURES, CLASS).take(np.arange(2))
    assert taken["x"].tolist() == [[1, 3, 5.5], [2, 4, 6.5]]
    assert taken["t"].tolist() == [0, 1]


def _bad(**changed: np.ndarray) -> dict[str, np.ndarray]:
    return {**images(), **changed}


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        (_bad(x=np.zeros((10, 5))), r"d\.npz: x has shape \[10, 5\]; needed are \[samples, 1, 2, 3\]"),
        (_bad(target=np.zeros(9, int)), r"d\.npz: its arrays have different numbers of samples: 10 of x, 9 of target"),
        (_bad(x=np.zeros((0, 1, 2, 3)), target=np.zeros(0, int)), r"d\.npz: holds no samples"),
        (
            _bad(x=np.where(np.arange(60).reshape(10, 1, 2, 3) == 57, np.nan, 0)),
            r"x\[9, 0, 1, 0\] is nan, not a finite",
        ),
        (_bad(target=np.array([0, 1, 2, 3, 4, 0, 0, 0, 0, 0])), r"target\[3\] is 3, not 0 to 2; classes count from 0"),
        (_bad(target=np.full(10, 0.5)), r"target\[0\] is 0\.5, no whole number"),
        (_bad(x=np.array(["a"] * 10)), r"d\.npz: x is of type <U1; needed are numbers"),
        ({"a": np.zeros(3)}, r"d\.npz: has no array 'x' \(it has a\)"),
    ],
)
def test_bad_arrays_are_refused_in_one_line(tmp_path: Path, arrays: dict[str, np.ndarray], message: str) -> None:
    with pytest.raises(UsageError, match=message) as refused:
        samples = opened(stored(tmp_path / "d.npz", **arrays), IMAGE, CLASS)
        check_values(samples, (IMAGE, CLASS), any_range=False)
    assert "\n" not in str(refused.value)


def test_targets_of_which_none_counts_are_refused(tmp_path: Path) -> None:
    slots = (IMAGE, replace(CLASS, limit=Limit(0, 2, -100)))
    none = images() | {"target": np.full(10, -100)}
    with pytest.raises(UsageError, match="each element of target is -100, which no loss counts"):
        check_values(opened(stored(tmp_path / "d.npz", **none), *slots), slots, any_range=False)
    none["target"][3] = 1
    check_values(opened(stored(tmp_path / "e.npz", **none), *slots), slots, any_range=False)


@pytest.mark.parametrize(
    ("format", "box"), [("xyxy", [3.0, 3.0, 2.0, 4.0]), ("xywh", [0, 0, -1, 1]), ("cxcywh", [0, 0, -0.5, 1])]
)
def test_targets_that_are_no_boxes_are_refused(tmp_path: Path, format: str, box: list[float]) -> None:
    b = Builder()
    x = b.add_tensor("x", TensorType((2, 3)), Role.INPUT)
    y = b.emit1("MatMul", [x, b.add_tensor("w", TensorType((3, 4)), Role.PARAMETER, np.ones((3, 4), np.float32))])
    graph = Graph("boxes", b.tensors, tuple(b.operators), ("x",), (y,), b.values)
    slots = slots_of(build(graph, TrainingOptions(loss="ciou", box_format=format)))
    boxes = np.tile(np.float32([0, 1, 1, 1]), (10, 1))
    inputs = np.zeros((10, 3), np.float32)
    check_values(opened(stored(tmp_path / "d.npz", x=inputs, y=boxes), *slots), slots, any_range=False)
    boxes[7] = box
    samples = opened(stored(tmp_path / "bad.npz", x=inputs, y=boxes), *slots)
    with pytest.raises(UsageError, match=rf"bad\.npz: y\[7, 2\] is {box[2]:g}.*boxes {format}, as --box-format"):
        check_values(samples, slots, any_range=False)


def test_the_index_of_a_bad_value_counts_from_the_first_sample(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("poetc.datasets._columns.CHUNK_BYTES", 64)  # two samples together
    arrays = images()
    arrays["x"][7, 0, 1, 2] = np.inf
    samples = opened(stored(tmp_path / "d.npz", **arrays), IMAGE, CLASS)
    with pytest.raises(UsageError, match=r"x\[7, 0, 1, 2\] is inf"):
        check_values(samples, (IMAGE, CLASS), any_range=False)


def test_targets_like_the_output_name_another_loss(tmp_path: Path) -> None:
    arrays = {**images(), "target": np.zeros((10, 4, 6), np.float32)}
    with pytest.raises(UsageError, match=r"target has shape \[10, 4, 6\].*need another loss, such as --loss mse"):
        opened(stored(tmp_path / "d.npz", **arrays), IMAGE, replace(CLASS, shape=(2, 4), sample_shape=(4,)))


def test_a_mask_of_infinities_has_a_way_out(tmp_path: Path) -> None:
    arrays = images()
    arrays["x"][7, 0, 1, 2] = -np.inf
    samples = opened(stored(tmp_path / "d.npz", **arrays), IMAGE, CLASS)
    with pytest.raises(UsageError, match=r"1, 2\] is -inf.*in a mask that is added to scores, -1e9 does the same"):
        check_values(samples, (IMAGE, CLASS), any_range=False)


def test_an_empty_word_is_no_folder() -> None:
    with pytest.raises(UsageError, match="--data is empty"):
        open_source("", [], print)


@pytest.mark.parametrize("pixels", [np.uint8, np.int16, np.int64, np.float64])
def test_pixels_that_nobody_scaled_are_refused(tmp_path: Path, pixels: type) -> None:
    arrays = {**images(), "x": (np.arange(60).reshape(10, 1, 2, 3) * 4).astype(pixels)}
    samples = opened(stored(tmp_path / "d.npz", **arrays), IMAGE, CLASS)
    with pytest.raises(UsageError, match=r"d\.npz: x from 0 to 2.. looks unscaled.*--normalize 0\.\.255.*--any-range"):
        check_values(samples, (IMAGE, CLASS), any_range=False)
    check_values(samples, (IMAGE, CLASS), any_range=True)
    check_values(samples, (replace(IMAGE, takes_any_range=True), CLASS), any_range=False)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("absent.npz", None, "--data .*absent.npz: does not exist"),
        ("d.npz", "no archive", "not an .npz file of arrays"),
        ("d.npy", "no array", "not an .npy file|needed are 2"),
        ("d.xyz", "x", "of no kind that is known by its name"),
        ("d.jsonl", "", "holds no samples"),
        ("d.jsonl", '{"x": [1, 2, 3], "y": 0}\n{"x": [1, 2', "line 2 is not JSON"),
        ("d.jsonl", '{"x": [1, 2, 3], "y": 0}\n[1, 2, 3]\n', "line 2 is not an object with keys"),
        ("d.jsonl", '{"x": [1, 2, 3], "y": 0}\n{"x": [1, 2, 3]}\n', "line 2 lacks the key 'y'"),
        ("d.jsonl", '{"x": [1, 2, 3], "y": 0}\n{"x": null, "y": 0}\n', "line 2: 'x' is neither a number"),
        ("d.jsonl", '{"x": [1, 2, 3], "y": 0}\n\n{"x": [1, 2, 3], "y": 0, "y": 1}\n', "line 3 has the key 'y' twice"),
        ("d.jsonl", f'{{"x": [1, 2, 1{"0" * 400}], "y": 0}}\n', "line 1, column 'x' holds too large a number"),
        ("d.jsonl", f'{{"a": 1, "b": 2, "c": 1{"0" * 400}, "y": 0}}\n', "line 1, column 'c' holds too large a number"),
        ("d.jsonl", r'{"x": [1, 2, 3], "y": 0, "\u0079": 1}', "line 1 has the key 'y' twice"),
        (
            "d.jsonl",
            '{"x": [1, 2, 3], "y": 0}\n{"x": [1, 2, 3], "y": true}\n',
            "line 2: 'y' is true or false, but a nu",
        ),
        ("d.jsonl", '{"x": [1, 2, 3], "y": 0}\n{"x": [1, 2, 3], "y": "1"}\n', "'y' is a word, but a number in line 1"),
        (
            "d.jsonl",
            '{"x": [1, 2, 3], "y": 0}\n{"x": [1, "2", 3], "y": 1}\n',
            "line 2: 'x' holds a word; needed are nu",
        ),
        ("d.jsonl", '{"x": [1, 2, true], "y": 0}\n', "line 1: 'x' holds true or false; needed are numbers"),
        ("d.jsonl", '{"x": [[1], [2], [{}]], "y": "{}"}\n', "line 1: 'x' holds an object; needed are numbers"),
        (
            "d.jsonl",
            '{"x": [1, 2, 3], "y": 0}\n\n{"x": [1, 2], "y": 1}\n',
            r"line 3, column 'x' is of shape \[2\], unl",
        ),
        ("d.jsonl", '{"x": [1, 2, 3], "y": 0}\n\n{"x": [1, 2, 3], "y": 9}\n', r"line 3, y\[1\] is 9.0, not 0 to 2"),
        ("d.jsonl", '\n{"x": [1, 1e39, 3], "y": 0}\n', r"line 2, x\[0, 1\] is 1e\+39, not a finite number"),
        ("d.csv", "", "holds no samples"),
        ("d.csv", 'a,b,c,d\n1,2,3,"0\n"\n\n1,2,3,9\n', r"line 5, d\[1\] is 9.0, not 0 to 2"),
        ("d.csv", "a,b,c,d\n", "holds no samples"),
        ("d.csv", 'a,b,c,d\n1,2,3,"0\n4,5,6,1\n', "line 2: a quote is opened there, and never closed"),
        ("d.csv", '1,2,3,0\n1,2,"' + "3" * 140_000, "line 2: field larger.*: is a quote opened there"),
        ("d.csv", "1,2,3,0\n1,2\n", "line 2 has 2 cells, the first one 4"),
        ("d.csv", "a,b,c,d\n1,two,3,0\n", "line 2, column 'b': 'two' is not a number"),
        (
            "d.csv",
            "a;b;c;d\n1;1,25;3;0\n",
            "column 'b': '1,25' is not a number; if the comma is a decimal one, write",
        ),
        ("d.csv", "a,b,c,d\n1,2,3,0\n1,,3,0\n1,2,nan,0\n", "line 3, column 'b' is empty or NaN; the model replaces no"),
        ("d.csv", "a,b,c,d\n1,2,nan,0\n1,2,,0\n", r"line 2, column 'c' is empty or NaN \(so are 1 more"),
        ("d.csv", "a,b,c,d\n1,2,3,0\n1,2,3,\n", "line 3, column 'd' is empty"),
        ("d.csv", "a,b,c,d\n1,2,3,cat\n1,2,3, \n", "line 3, column 'd' is empty"),
        ("d.jsonl", '{"a":1,"b":2,"c":3,"d":"cat"}\n{"a":1,"b":2,"c":3,"d":""}\n', "line 2, column 'd' is empty"),
        ("d.csv", "1,2,3,4,0\n", "4 columns are left for input 'x', which takes 3"),
    ],
)
def test_bad_files_are_refused_in_one_line(tmp_path: Path, name: str, text: str | None, message: str) -> None:
    if text is not None:
        (tmp_path / name).write_text(text)
    with pytest.raises(UsageError, match=message):
        check_values(opened(tmp_path / name, FEATURES, CLASS), (FEATURES, CLASS), any_range=True)


def test_columns_that_are_no_target_are_named(tmp_path: Path) -> None:
    pair = replace(CLASS, sample_shape=(2,), shape=(CLASS.shape[0], 2))
    (tmp_path / "d.jsonl").write_text('{"x": [1, 2, 3], "y": 4}\n')
    with pytest.raises(UsageError, match="line 1 has 1 number in 'y', the target, which takes 2"):
        opened(tmp_path / "d.jsonl:target=y", FEATURES, pair)


@pytest.mark.parametrize(("place", "says"), [("d.npz", "permission denied"), ("none/d.npz", "permission denied")])
def test_a_folder_of_somebody_else_is_not_absent(tmp_path: Path, place: str, says: str) -> None:
    """It may hold the file: nobody here can tell."""
    (tmp_path / "closed").mkdir()
    stored(tmp_path / "closed" / "d.npz", **images())
    (tmp_path / "closed").chmod(0)
    me = os.geteuid()
    if me == 0:
        os.seteuid(65534)  # whom permissions stop
    try:
        with pytest.raises(UsageError, match=f"--data .*{place}: {says}"):
            opened(tmp_path / "closed" / place, IMAGE, CLASS)
        with pytest.raises(PermissionError):
            require_solved(tmp_path / "closed")
    finally:
        os.seteuid(me)
        (tmp_path / "closed").chmod(0o700)
