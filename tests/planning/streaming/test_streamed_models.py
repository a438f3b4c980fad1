"""Networks whose activations, images, embeddings or heads are larger than the budget: streamed, with equal bits."""

from __future__ import annotations

import subprocess
from functools import partial
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import poetc
from poetc.errors import LimitError
from poetc.runtime.session import SessionError
from poetc.training import TrainingOptions
from tests.planning.streaming.test_streamed_norms import floor_bytes

DEVICE = "nrf52840"


def _text(path: Path, rows: int, tokens: int) -> Path:
    """Tokens that name rows of a table, and products with weights of 98 kB."""
    random = np.random.default_rng(0)

    def weight(name: str, *shape: int) -> onnx.TensorProto:
        return numpy_helper.from_array((0.1 * random.standard_normal(shape)).astype(np.float32), name)

    nodes = [
        helper.make_node("Gather", ["table", "tokens"], ["e"]),
        helper.make_node("MatMul", ["e", "w1"], ["h"]),
        helper.make_node("Relu", ["h"], ["r"]),
        helper.make_node("MatMul", ["r", "w2"], ["p"]),
        helper.make_node("Add", ["e", "p"], ["s"]),
        helper.make_node("ReduceMean", ["s"], ["m"], axes=[1], keepdims=0),
        helper.make_node("MatMul", ["m", "w3"], ["y"]),
    ]
    weights = [weight("table", rows, 48), weight("w1", 48, 512), weight("w2", 512, 48), weight("w3", 48, 5)]
    graph = helper.make_graph(
        nodes,
        "text",
        [helper.make_tensor_value_info("tokens", TensorProto.INT64, [1, tokens])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 5])],
        weights,
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8), path)
    return path


@pytest.fixture(scope="module")
def text_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table of 384 kB whose rows 48 tokens read."""
    return _text(tmp_path_factory.mktemp("model") / "text.onnx", 2000, 48)


def _convolutions(path: Path, nodes: list[onnx.NodeProto], shapes: dict[str, tuple[int, ...]], x: list[int]) -> Path:
    """A network of `nodes`, with seeded weights of these shapes, from an image `x` to five scores `y`."""
    random = np.random.default_rng(0)
    weights = [
        numpy_helper.from_array((0.2 * random.standard_normal(shape)).astype(np.float32), name)
        for name, shape in shapes.items()
    ]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in (("x", x), ("y", [1, 5]))]
    graph = helper.make_graph(nodes, path.stem, ends[:1], ends[1:], weights)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8), path)
    return path


def test_activations_larger_than_the_budget_are_trained(tmp_path: Path) -> None:
    """Convolutions go through bands with halos, pools and rectifiers through planes: the bits of keep-all."""
    shapes = {"w1": (8, 2, 3, 3), "b1": (8,), "w2": (6, 8, 3, 3), "w3": (6, 5)}
    nodes = [
        helper.make_node("Conv", ["x", "w1", "b1"], ["c1"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c1"], ["r1"]),
        helper.make_node("MaxPool", ["r1"], ["p1"], kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("Conv", ["p1", "w2"], ["c2"], pads=[1, 1, 1, 1], strides=[2, 2]),
        helper.make_node("Relu", ["c2"], ["r2"]),
        helper.make_node("GlobalAveragePool", ["r2"], ["g"]),
        helper.make_node("Flatten", ["g"], ["f"]),
        helper.make_node("MatMul", ["f", "w3"], ["y"]),
    ]
    path = _convolutions(tmp_path / "banded.onnx", nodes, shapes, [1, 2, 48, 48])
    solution = poetc.load(path).solve(device=DEVICE, budget=24_000, gap=0.05, time_limit_s=10)
    cuts = {(op.kind, op.cut) for op in solution.problem.operators if op.cut}
    assert {"Conv", "Relu", "ConvGradWeight", "MaxPoolGrad"} <= {kind for kind, _ in cuts}
    assert any(kind == "Conv" and "rows" in cut for kind, cut in cuts), cuts
    sizes = {t.name: t.store_bytes or 0 for t in solution.problem.tensors if not t.size_bytes}
    assert max(sizes.values()) > 16_000, "an activation that is never in RAM"
    found = solution.validate()  # raises CheckFailed
    assert found["bit_identical_to_keep_all"] and found["peak_measured_bytes"] == found["peak_predicted_bytes"]


def test_a_frozen_pool_streams_the_places_of_maxima_that_none_reads(tmp_path: Path) -> None:
    """A step of the last layer needs no more RAM than one of all layers: the bits of keep-all at that floor."""
    shapes = {"w1": (32, 2, 3, 3), "w2": (8, 32, 3, 3), "w3": (8, 5)}
    nodes = [
        helper.make_node("Conv", ["x", "w1"], ["c1"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c1"], ["r1"]),
        helper.make_node("MaxPool", ["r1"], ["p1"], kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("Conv", ["p1", "w2"], ["c2"], pads=[1, 1, 1, 1], strides=[2, 2]),
        helper.make_node("GlobalAveragePool", ["c2"], ["g"]),
        helper.make_node("Flatten", ["g"], ["f"]),
        helper.make_node("MatMul", ["f", "w3"], ["y"]),
    ]
    path = _convolutions(tmp_path / "pooled.onnx", nodes, shapes, [1, 2, 48, 48])
    last, every = (floor_bytes(path, train) for train in ("last:1", "all"))
    assert last <= every
    training = TrainingOptions(optimizer="sgd", train="last:1")
    solution = poetc.load(path, training=training).solve(device=DEVICE, budget=last, gap=0.05, time_limit_s=10)
    places = next(t for t in solution.problem.tensors if t.name.endswith("MaxPool:1"))
    assert not places.size_bytes, "only on the store"
    found = solution.validate()  # raises CheckFailed
    assert found["bit_identical_to_keep_all"] and found["peak_measured_bytes"] == found["peak_predicted_bytes"]


@pytest.fixture(scope="module")
def picture_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An image of 37 kB, whose planes take 2.3 kB each."""
    shapes = {"w1": (8, 16, 3, 3), "b1": (8,), "w2": (6, 8, 3, 3), "w3": (6, 5)}
    nodes = [
        helper.make_node("Conv", ["x", "w1", "b1"], ["c1"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c1"], ["r1"]),
        helper.make_node("MaxPool", ["r1"], ["p1"], kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("Conv", ["p1", "w2"], ["c2"], pads=[1, 1, 1, 1], strides=[2, 2]),
        helper.make_node("GlobalAveragePool", ["c2"], ["g"]),
        helper.make_node("Flatten", ["g"], ["f"]),
        helper.make_node("MatMul", ["f", "w3"], ["y"]),
    ]
    return _convolutions(tmp_path_factory.mktemp("model") / "picture.onnx", nodes, shapes, [1, 16, 24, 24])


def test_an_image_larger_than_the_budget_is_trained_on(picture_model: Path, tmp_path: Path) -> None:
    """The caller's image goes to the store, and steps read it in bands: the bits of keep-all.

    The model's tables ask for the functions of both, which a linker would else leave in a static library.
    """
    solution = poetc.load(picture_model).solve(device=DEVICE, budget=16_000, gap=0.05, time_limit_s=10)
    image = next(t for t in solution.problem.tensors if t.name == "x")
    assert (image.initial, image.size_bytes) == ("store", 36_864)
    assert any("36,864 bytes of inputs go to the store before each step" in n for n in solution.summary["notes"])
    found = solution.validate()  # raises CheckFailed
    assert found["bit_identical_to_keep_all"] and found["peak_measured_bytes"] == found["peak_predicted_bytes"]
    solution.emit(tmp_path / "c", target="host")
    folders = [f"-I{folder}" for folder in (tmp_path / "c", tmp_path / "c" / "runtime" / "include")]
    subprocess.run(["gcc", "-c", *folders, tmp_path / "c" / "model.c", "-o", tmp_path / "model.o"], check=True)
    asked = subprocess.run(["nm", "-u", tmp_path / "model.o"], capture_output=True, text=True, check=True).stdout
    assert {"U poetc_stream", "U poetc_session_fill"} <= {line.strip() for line in asked.splitlines()}


@pytest.mark.long
def test_a_session_and_a_program_take_images_to_the_store(picture_model: Path, tmp_path: Path) -> None:
    """Both check the numbers on the way, and find the losses of a step that has the image in RAM."""
    solution = poetc.load(picture_model).solve(device=DEVICE, budget=16_000, gap=0.05, time_limit_s=10)
    random = np.random.default_rng(1)
    records = [(random.standard_normal((1, 16, 24, 24), np.float32), np.array([k], np.int32)) for k in (3, 1)]
    with solution.trainer() as session, poetc.load(picture_model).solve(device="host").trainer() as whole:
        with pytest.raises(ValueError, match=r"x\[0, 9, 2, 3\] is nan, not a finite number"):
            bad = records[0][0].copy()
            bad[0, 9, 2, 3] = np.nan
            session.step(bad, records[0][1])
        losses = [session.step(*r) for r in records]
        assert losses == pytest.approx([whole.step(*r) for r in records], rel=1e-6)
        assert session.evaluate(*records[0]) == pytest.approx(whole.evaluate(*records[0]), rel=1e-6)
        np.testing.assert_allclose(session.predict(records[0][0]), whole.predict(records[0][0]), rtol=1e-5)
    solution.emit(tmp_path / "c", target="host")
    (tmp_path / "data.bin").write_bytes(b"".join(x.tobytes() + y.tobytes() for x, y in records))
    subprocess.run(["make", "-s", "-C", str(tmp_path / "c"), "train"], check=True)
    done = subprocess.run(
        ["./train", str(tmp_path / "data.bin"), "2"], cwd=tmp_path / "c", capture_output=True, text=True, check=True
    )
    printed = [float(line.split()[3]) for line in done.stdout.splitlines() if line.startswith("step")]
    assert printed == pytest.approx(losses, rel=1e-8)


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
@pytest.mark.long_but("adam")
def test_an_embedding_larger_than_the_budget_is_trained(text_model: Path, optimizer: str) -> None:
    """Rows are read, and updated, while the table passes through a window; so are products of many rows."""
    loaded = poetc.load(text_model, training=TrainingOptions(optimizer=optimizer))
    solution = loaded.solve(device=DEVICE, budget=260_000, gap=0.05, time_limit_s=15)
    streamed = {op.kind for op in solution.problem.operators if op.cut}
    assert streamed >= ({"Gather", "GatherGradSgd"} if optimizer == "sgd" else {"Gather", "GatherGrad", "Adam"})
    found = solution.validate()  # raises CheckFailed
    assert found["bit_identical_to_keep_all"] and found["peak_measured_bytes"] == found["peak_predicted_bytes"]


@pytest.mark.parametrize("optimizer", ["sgd", "momentum"])
@pytest.mark.long_but("sgd")
def test_predictions_of_a_long_table_that_is_trained(tmp_path: Path, optimizer: str) -> None:
    """Read row by row where rows move alone, else whole: between steps, and after a state that is taken over."""
    loaded = poetc.load(_text(tmp_path / "text.onnx", 6000, 8), training=TrainingOptions(optimizer=optimizer))
    solution = loaded.solve(device="rpi4", budget=200_000, gap=0.05, time_limit_s=60)
    assert any("predictions are scheduled too" in note for note in solution.summary["notes"])
    cuts = {op.kind: op.cut for op in solution.problem.operators if op.cut and op.kind.startswith("Gather")}
    moved = {"Gather": "indices", "GatherGradSgd": "indices"}
    assert cuts == moved if optimizer == "sgd" else "indices" not in cuts.values()
    target, states = np.zeros(1, np.int32), []
    with solution.trainer() as session, loaded.solve(device="host").trainer() as whole:
        for seed in (1, 2, 3, 0, 1, 2):
            if seed == 0:
                for trained in (session, whole):
                    trained.load_state_dict(states[0])
            tokens = (np.arange(8)[None] * 700 + seed) % (6000 - 5 * seed)
            losses = [s.step(tokens, target) for s in (session, whole)]
            assert losses[0] == pytest.approx(losses[1], rel=1e-6)
            np.testing.assert_allclose(session.predict(tokens), whole.predict(tokens), rtol=1e-5)
            states.append(session.state_dict())
        np.testing.assert_allclose(states[-1]["table"], whole.state_dict()["table"], rtol=1e-5)


def _words(path: Path, words: int, width: int = 16, seed: int = 0, *, is_tied: bool = True) -> Path:
    """A language model of one layer: a table of `words` rows, which is its head too if it is tied."""
    random = np.random.default_rng(seed)
    shapes = {"table": (words, width), "w1": (width, width)} | ({} if is_tied else {"other": (words, width)})
    weights = [
        numpy_helper.from_array((0.2 * random.standard_normal(shape)).astype(np.float32), name)
        for name, shape in shapes.items()
    ]
    nodes = [
        helper.make_node("Gather", ["table", "tokens"], ["e"]),
        helper.make_node("MatMul", ["e", "w1"], ["h"]),
        helper.make_node("Transpose", ["table" if is_tied else "other"], ["head"], perm=[1, 0]),
        helper.make_node("MatMul", ["h", "head"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "words",
        [helper.make_tensor_value_info("tokens", TensorProto.INT64, [1, 30])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 30, words])],
        weights,
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8), path)
    return path


def _solved(path: Path, frozen: str, budget: int) -> poetc.Solution:
    loaded = poetc.load(path, training=TrainingOptions(train="w1", frozen=frozen))
    return loaded.solve(device="rpi4", budget=budget, gap=0.05, time_limit_s=6)


@pytest.mark.parametrize(("frozen", "words", "budget"), [("as-is", 3000, 108_000), ("int4", 12_000, 75_000)])
@pytest.mark.long_but("as-is-3000-108000")
def test_a_head_larger_than_the_budget_is_read_in_blocks_of_words(
    tmp_path: Path, frozen: str, words: int, budget: int
) -> None:
    """A tied table: neither it nor all logits of a few rows are in RAM, and the bits are those of keep-all."""
    solution = _solved(_words(tmp_path / "words.onnx", words), frozen, budget)
    cut = {op.kind: op.cut for op in solution.problem.operators if op.cut}
    assert cut["LinearCrossEntropy"] == "pass/classes"
    assert cut["Gather" if frozen == "as-is" else "GatherCoded"] == "table", "so short a table is read whole"
    assert sum(t.size_bytes for t in solution.problem.tensors if t.initial == "store") > budget
    found = solution.validate()  # raises CheckFailed
    assert found["bit_identical_to_keep_all"] and found["peak_measured_bytes"] == found["peak_predicted_bytes"]


@pytest.mark.parametrize(("frozen", "words", "budget"), [("as-is", 6000, 340_000), ("int4", 32_000, 150_000)])
@pytest.mark.long_but("as-is-6000-340000")
def test_rows_of_a_long_table_are_read_alone(tmp_path: Path, frozen: str, words: int, budget: int) -> None:
    """A piece of the table is read, and checked, for each row that is named; with the bits of keep-all."""
    solution = _solved(_words(tmp_path / "words.onnx", words, 64), frozen, budget)
    cut = {op.kind: op.cut for op in solution.problem.operators if op.cut}
    assert cut["Gather" if frozen == "as-is" else "GatherCoded"] == "indices"
    found = solution.validate()  # raises CheckFailed
    assert found["bit_identical_to_keep_all"] and found["peak_measured_bytes"] == found["peak_predicted_bytes"]


def test_rows_of_a_damaged_table_and_of_another_one(tmp_path: Path) -> None:
    """A damaged piece ends a step that reads it, and no other read of rows. A wrong index does so too.

    Another table, taken over as state, comes with checksums of its own.
    """
    random = np.random.default_rng(0)
    tokens = random.integers(100, 6000, (1, 30)).astype(np.int64)
    tokens[0, :2] = -1, 5999
    target = random.integers(0, 6000, (1, 30)).astype(np.int32)
    states, losses = [], []
    for seed in (1, 0):
        path = _words(tmp_path / f"words{seed}.onnx", 6000, 64, seed, is_tied=False)
        solution = _solved(path, "as-is", 340_000)
        assert {op.cut for op in solution.problem.operators if op.kind == "Gather"} == {"indices"}
        with solution.trainer() as session:
            states.append(session.state_dict())
            losses.append(session.step(tokens, target))
    with solution.trainer(store=tmp_path / "store.bin") as session:
        with pytest.raises((ValueError, SessionError), match=r"6000|range"):
            session.step(np.full_like(tokens, 6000), target)
        session.load_state_dict(states[0])
        assert session.step(tokens, target) == losses[0] != losses[1]
        row = next(row for row in session.manifest["state"]["tensors"] if row["name"] == "table")
        first = row["place"]["first_block"] * session.manifest["session"]["block_bytes"]
        with (tmp_path / "store.bin").open("r+b") as file:
            file.seek(first)
            file.write(b"\x01\x02")  # of row 0
        session.step(tokens, target)
        tokens[0, 5] = 0
        with pytest.raises(SessionError, match="damaged"):
            session.step(tokens, target)


@pytest.mark.long
def test_sums_over_many_channels_go_on_from_block_to_block(tmp_path: Path) -> None:
    """Neither a band of all channels nor the filters of one result fit."""
    shapes = {"w1": (130, 2, 3, 3), "w2": (133, 130, 3, 3), "b2": (133,), "w3": (133, 5)}
    nodes = [
        helper.make_node("Conv", ["x", "w1"], ["c1"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c1"], ["r1"]),
        helper.make_node("Conv", ["r1", "w2", "b2"], ["c2"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c2"], ["r2"]),
        helper.make_node("GlobalAveragePool", ["r2"], ["g"]),
        helper.make_node("Flatten", ["g"], ["f"]),
        helper.make_node("MatMul", ["f", "w3"], ["y"]),
    ]
    path = _convolutions(tmp_path / "deep.onnx", nodes, shapes, [1, 2, 5, 5])
    solution = poetc.load(path).solve(device=DEVICE, budget=12_000, gap=0.05, time_limit_s=10)
    cuts = {(op.kind, op.cut) for op in solution.problem.operators}
    assert {("Conv", "outputs/summed_channels"), ("ConvGradInput", "channels/summed_outputs")} <= cuts
    assert solution.validate()["bit_identical_to_keep_all"]  # raises CheckFailed


def test_a_limit_on_writing_counts_blocks_that_are_written_again(picture_model: Path) -> None:
    solve = partial(poetc.load(picture_model).solve, device=DEVICE, budget=16_000, gap=0.05, time_limit_s=5)
    free = solve()
    assert any(op.rewritten_bytes > 0 for op in free.problem.operators)
    written_bytes = free.summary["store_written_bytes"]
    limited = solve(max_written=written_bytes)
    assert limited.summary["store_written_bytes"] <= written_bytes
    with pytest.raises(LimitError, match="--max-written must be at least"):
        solve(max_written=written_bytes * 4 // 5)
