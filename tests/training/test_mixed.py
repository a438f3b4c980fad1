"""Algorithms of mixed precision: the C beside numpy, bit by bit; descriptions in files; what is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from poetc import frontend, passes, training
from poetc.commands.importance import ImportanceRequest
from poetc.commands.requests import ModelRequest, training_graph
from poetc.devices import build_problem, load_profile
from poetc.errors import UsageError
from poetc.graph import Graph, Phase, Role, TrainingGraph
from poetc.measure import build_host
from poetc.ops.optimizers import OPTIMIZERS
from poetc.program import Interpreter, Program, lower, sample_inputs
from poetc.scheduling import keep_all, pack
from poetc.training import PRECISIONS, TrainingOptions, renamed
from poetc.training.precisions import Numbers
from tests.cli.conftest import MODEL
from tests.support.graphs import evaluate
from tests.support.small import small_model
from tests.training.mixed_cases import ALGORITHMS
from tests.training.test_integer_networks import network

STEPS = 3
SEEDS = (3, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(5, 14)))  # 4 diverges in floats, too


def step_of(seed: int, graph: Graph | None = None, **options: object) -> TrainingGraph:
    given = TrainingOptions(loss="mse", learning_rate=2.0**-12, **options)
    return passes.run_standard(training.build(training.in_precision(graph or network(seed), given), given))


def compiled(step: TrainingGraph) -> Program:
    problem = build_problem(step, load_profile("host"), budget_bytes=1 << 40)
    schedule = keep_all(problem)
    return lower(step, problem, schedule, pack(problem, schedule))


@pytest.mark.parametrize("row", ALGORITHMS)
@pytest.mark.parametrize("seed", SEEDS)
def test_c_has_the_bits_of_numpy(seed: int, row: str, tmp_path: Path) -> None:
    """The squared error has an exact slope, so no bit of a step is left to a library."""
    step = step_of(seed, precision=row, optimizer="momentum", momentum=0.5)
    program = compiled(step)
    numpy = Interpreter(program, step.values)
    with build_host([program], step.values, directory=tmp_path, cflags="-O1") as model:
        for index in range(STEPS):
            batch = sample_inputs(program, index)
            loss = numpy.run(batch)
            assert np.isfinite(loss) and model.run(batch) == pytest.approx(loss, rel=1e-5)
        for name in model.state_names():
            np.testing.assert_array_equal(model.state(name), numpy.state(name), err_msg=f"{row}, {seed}: {name}")


def test_saved_tensors_of_norms_may_be_encoded(tmp_path: Path) -> None:
    given = TrainingOptions(precision="octo", saved="int8")
    step = passes.run_standard(training.build(frontend.load(MODEL, batch=4), given))
    offers = passes.offered(step, "int8")
    lossy = [offer for offer in offers if offer.format == "int8"]
    assert len(lossy) >= 5
    made = {t: op.kind for op in step.operators for t in op.outputs}
    assert "FewBits" not in {made[offer.tensor] for offer in offers}
    program = compiled(passes.encoded(step, offers))
    numpy = Interpreter(program, step.values)
    with build_host([program], step.values, directory=tmp_path, cflags="-O1") as model:
        batch = sample_inputs(program, 0)
        assert model.run(batch) == pytest.approx(numpy.run(batch), rel=1e-5)
        for name in model.state_names():
            np.testing.assert_allclose(model.state(name), numpy.state(name), rtol=1e-3, atol=1e-4, err_msg=name)


@pytest.mark.parametrize("row", ALGORITHMS)
def test_every_product_reads_rounded_factors(row: str) -> None:
    names = {name: f"{name}:0" for name in network(5).values}  # as TensorFlow's exports have them
    step = step_of(5, renamed(network(5), names), precision=row, optimizer="momentum")
    made = {t: op for op in step.operators for t in op.outputs}
    products = [op for op in step.operators if op.kind in ("Narrowed", "NarrowedChunks")]
    assert len(products) >= 5
    assert all(made[t].kind == "FewBits" for op in products for t in op.inputs[:2])
    assert not any(op.kind in ("Conv", "MatMul", "ConvGradInput", "ConvGradWeight") for op in step.operators)
    described = PRECISIONS[row].algorithm
    assert described is not None
    stored = {w for w, new in step.updates.items() if made[new].kind == "StoredFewBits"}
    weights = {name for name, tensor in step.tensors.items() if tensor.role is Role.PARAMETER and "@" not in name}
    assert weights == set(names.values())
    velocities = {name for name in step.updates if name.endswith(":velocity")}
    assert len(velocities) == len(weights)
    assert stored == (weights if described.stored else set()) | (velocities if described.state else set())


@pytest.mark.parametrize("optimizer", sorted(OPTIMIZERS))
def test_sums_of_gradients_over_steps_are_not_rounded(optimizer: str) -> None:
    step = step_of(5, precision="fp8", accumulate=2, optimizer=optimizer)
    made = {t: op.kind for op in step.operators for t in op.outputs}
    kinds = {name: made[new] for name, new in step.updates.items() if name.startswith("w")}
    sums = {name for name in kinds if name.endswith(":gradient")}
    assert sums and sums == {name for name, kind in kinds.items() if kind != "StoredFewBits"}
    compiled(step)  # the sum is read by the update, before another version of it is made


@pytest.mark.parametrize("row", ALGORITHMS)
def test_parts_of_a_batch_are_another_training(row: str) -> None:
    """Scales are those of a part, and sums over the batch are rounded: no planner may choose the parts."""
    with pytest.raises(
        UsageError, match=f"--micro-batches auto: with --precision {row} their number changes the weights"
    ):
        TrainingOptions(precision=row, micro_batches="auto")
    whole, parted = in_parts(row, 1), in_parts(row, 2)
    assert not any("micro-batch" in note for note in whole.notes)
    assert f"--precision {row} rounds in each micro-batch, so results are not those of the whole batch" in parted.notes
    assert difference(whole, parted) > 1e-3
    assert difference(in_parts("f32", 1), in_parts("f32", 2)) < 1e-5


def in_parts(precision: str, count: int) -> TrainingGraph:
    given = TrainingOptions(precision=precision, batch_norm="frozen", micro_batches=count)
    return training_graph(ModelRequest(source=small_model(), batch=8, training=given))[1]


def difference(step: TrainingGraph, other: TrainingGraph) -> float:
    """Of the weights after one update, the largest difference in relation to the largest move."""
    batch = {name: value.copy() for name, value in sample_inputs(compiled(step), 0).items()}
    batch["image"][4:] *= 8  # another scale in the second part
    after, others = (evaluate(one, batch, np.float32) for one in (step, other))
    moves = [np.abs(after[step.updates[name]] - after[name]).max() for name in step.gradients]
    apart = [np.abs(after[step.updates[name]] - others[other.updates[name]]).max() for name in step.gradients]
    return float(max(apart) / max(moves))


def test_sums_in_chunks_have_the_scale_of_their_errors() -> None:
    step = step_of(5, precision="fp8")
    powers = {(op.phase, op.attributes["power"]) for op in step.operators if op.kind == "NarrowedChunks"}
    assert powers == {(Phase.FORWARD, 0), (Phase.BACKWARD, -10)}


@pytest.mark.parametrize("row", ALGORITHMS)
def test_a_description_in_a_file_is_the_named_one(row: str, tmp_path: Path) -> None:
    described = PRECISIONS[row].algorithm
    assert described is not None
    file = tmp_path / "own.yaml"
    file.write_text(described.text(), "utf-8")  # JSON is YAML
    given = TrainingOptions(precision=str(file))
    file.unlink()
    assert PRECISIONS[given.precision].algorithm == described
    assert TrainingOptions.of_record({"precision": given.precision}).precision == given.precision
    own, named = step_of(3, precision=given.precision), step_of(3, precision=row)
    assert own.operators == named.operators


def test_niti_is_a_row(tmp_path: Path) -> None:
    """A description whose products are integers is that of niti's kernels, with its options."""
    described = PRECISIONS["niti"].algorithm
    assert described is not None
    file = tmp_path / "own.yaml"
    file.write_text(described.text(), "utf-8")
    own, named = TrainingOptions(precision=str(file)), TrainingOptions(precision="niti")
    assert own.effective() == {**named.effective(), "rounding": "act=nearest,err=nearest,update=stochastic"}
    assert own.roundings() == named.roundings()
    other = replace(
        described,
        activations=replace(described.activations, rounding="stochastic"),
        stored=Numbers(integer=24, scale="power"),
    )
    given = TrainingOptions(precision=other.text())
    assert (given.precision, given.weight_bits) == ("niti", "24")
    assert given.roundings() == {"activation": "stochastic", "error": "nearest", "update": "stochastic"}
    with pytest.raises(UsageError, match="--weight-bits: the description of --precision says it"):
        TrainingOptions(precision=described.text(), weight_bits="24")


GOOD = "weights: {integer: 8}\nactivations: {integer: 8, scale: power}\nerrors: {floats: [5, 2], times: 1024}\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("weights: {integer: 8}", ":1: activations are missing"),
        ("- 8", ":1: a description of a precision is a mapping"),
        (GOOD + "biases: {integer: 8}", ":4: biases: unknown; there are products, weights, activations"),
        (GOOD + "stored: 8", ":4: stored: is 8, not a mapping"),
        (GOOD + "stored: {}", ":4: stored: give integer (bits) or floats"),
        (GOOD + "stored: {integer: 8, floats: [5, 2]}", ":4: stored: give integer (bits) or floats"),
        (GOOD + "stored: {integer: 1}", ":4: stored.integer: 1 is no whole number from 2 to 24"),
        (GOOD + "stored: {integer: 8.5}", ":4: stored.integer: 8.5 is no whole number"),
        (GOOD + "stored: {integer: true}", ":4: stored.integer: True is no whole number"),
        (GOOD + "stored: {floats: 5}", ":4: stored.floats: 5 is not [bits of the exponent"),
        (GOOD + "stored: {floats: [8, 2]}", ":4: stored.floats: 8 is no whole number from 2 to 7"),
        (GOOD + "stored: {floats: [6, 2], scale: power}", ":4: stored: 6 bits of exponent are too many"),
        (GOOD + "stored: {integer: 8, scale: max}", ":4: stored.scale: 'max': choose from fixed,"),
        (GOOD + "stored: {integer: 8, rounding: up}", ":4: stored.rounding: 'up': choose from nearest,"),
        (GOOD + "stored: {integer: 8, times: 3}", ":4: stored.times: 3 is no power of two"),
        (GOOD + "stored: {integer: 8, scale: power, times: 2}", ":4: stored.times: only a fixed scale"),
        (GOOD + "stored: {integer: 8, range: 0.5}", ":4: stored.range: a fixed scale has none"),
        (GOOD + "stored: {integer: 8, scale: power, range: 1.5}", ":4: stored.range: 1.5 is no number"),
        (GOOD + "stored: {integer: 8, scale: power, groups: 1}", ":4: stored.groups: is 1, neither true"),
        (GOOD + "stored: {integer: 8, scale: real}", "stored: a real scale is for weights"),
        (GOOD + "stored: {integer: 8, scale: power, unit: 0.5}", ":4: stored.unit: a unit is for gradients of weights"),
        (GOOD + "state: {integer: 8, scale: power, unit: 0.5}", ":4: state.unit: a unit is for gradients of weights"),
        (GOOD.replace("power", "power, unit: 0.5"), ":2: activations.unit: a unit is for gradients of weights"),
        (
            GOOD + "first: {errors: {integer: 8, scale: power, unit: 2}}",
            ":4: first.errors.unit: a unit is for gradients",
        ),
        (
            GOOD + "last: {weights: {integer: 8, scale: power, unit: 2}}",
            ":4: last.weights.unit: a unit is for gradients",
        ),
        (GOOD + "sums: {floats: [6, 9]}", ":4: sums: floats and chunk are both needed"),
        (GOOD + "sums: {floats: [6, 9], chunk: 0}", ":4: sums.chunk: 0 is no whole number from 1"),
        (GOOD + "first: {gradients: {integer: 8}}", ":4: first.gradients: unknown; there are weights,"),
        (GOOD + "first: {weights: {integer: 20}}", "products of weights and activations have 26 bits; 24 are exact"),
        (GOOD + "weights: {integer: 8}", ":4: key 'weights' is given twice"),
        (GOOD + "sums: {floats: [7, 9], chunk: 8}", "sums of errors and weights would begin below 2^-62"),
        (GOOD + "sums: {floats: [6, 23], chunk: 8}", ":4: sums.floats: 23 is no whole number from 0 to 22"),
        (GOOD + "stored: {integer: 8, scale: power, rises_to: 16}", "stored: bits that rise are for weights,"),
        (GOOD + "first: {errors: {integer: 8, rises_to: 16}}", ":4: first.errors.rises_to: needs an integer"),
        (GOOD + "first: {errors: {integer: 8, scale: power, rises_to: 8}}", ":4: first.errors.rises_to: needs"),
        (GOOD + "first: {errors: {floats: [3, 4], scale: power, rises_to: 8}}", ":4: first.errors.rises_to: needs"),
        (GOOD + "products: bits", ":4: products: 'bits': choose from floats, integers"),
        (GOOD + "products: integers", "weights: products of integers need integers of 8 bits with scale power"),
        (GOOD + "products: integers\nlast: {}", "last: products of integers have none"),
        ("a: [", ":1: not valid YAML"),
    ],
)
def test_a_file_that_describes_none(text: str, message: str, tmp_path: Path) -> None:
    file = tmp_path / "own.yaml"
    file.write_text(text, "utf-8")
    with pytest.raises(UsageError) as error:
        TrainingOptions(precision=str(file))
    assert message in str(error.value)
    assert "\n" not in str(error.value) and "own.yaml" in str(error.value)


def test_other_bad_input(tmp_path: Path) -> None:
    for value, message in (
        (str(tmp_path / "none.yaml"), "cannot read the description"),
        ("{", "--precision"),
        ("octopus", "did you mean 'octo'"),
        ("wombat", "choose from"),
    ):
        with pytest.raises(UsageError, match=message):
            TrainingOptions(precision=value)
    model = ModelRequest(source=MODEL, training=TrainingOptions(precision="octo"))
    with pytest.raises(UsageError, match="importance is measured in floats"):
        ImportanceRequest(model=model, data="x.npz", out=tmp_path / "importance.yaml")
    with pytest.raises(UsageError, match="--frozen does nothing for --precision octo"):
        TrainingOptions(precision="octo", frozen="int8")
    with pytest.raises(UsageError, match="--rescale does nothing"):
        TrainingOptions(precision="octo", rescale="interval")
