"""Micro-batches: the sum of their gradients is the gradient of the whole batch; what cannot be split is refused."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from poetc.devices import build_problem, load_profile
from poetc.errors import UsageError
from poetc.graph import Graph, Role, TrainingGraph
from poetc.passes import check_graph, run_standard
from poetc.scheduling import keep_all, verify
from poetc.training import TrainingOptions, build, divisors, micro_batch_of, takes_batch_statistics
from tests.support.graphs import evaluate, random_inputs, small_cnn
from tests.training.test_build import with_dropout

BATCH = 8


def steps(count: int, **options: object) -> tuple[TrainingGraph, TrainingGraph]:
    """Whole, and in `count` parts."""
    chosen = TrainingOptions(**{"batch_norm": "frozen", **options})  # type: ignore[arg-type]
    whole = run_standard(build(small_cnn(BATCH), chosen))
    parted = build(small_cnn(BATCH), replace(chosen, micro_batches=count), small_cnn(BATCH // count))
    check_graph(parted)
    return whole, run_standard(parted)


@pytest.mark.parametrize("count", [2, 4, 8])
@pytest.mark.parametrize(
    "options",
    [{}, {"loss": "mse"}, {"label_smoothing": 0.1}, {"optimizer": "adam"}, {"ignore_index": 2}],
    ids=lambda o: next(iter(o), "plain"),
)
def test_loss_gradients_and_updates_are_those_of_the_whole_batch(count: int, options: dict[str, object]) -> None:
    whole, parted = steps(count, **options)
    inputs = random_inputs(whole)
    if "ignore_index" in options:  # one part counts nothing at all, the others differently many
        inputs["target"][:] = [2, 2, 2, 2, 1, 2, 0, 1]
    expected, found = evaluate(whole, inputs), evaluate(parted, inputs)
    np.testing.assert_allclose(found[parted.loss], expected[whole.loss], rtol=1e-12)
    assert parted.gradients.keys() == whole.gradients.keys()
    for parameter, gradient in whole.gradients.items():
        np.testing.assert_allclose(
            found[parted.gradients[parameter]], expected[gradient], rtol=1e-9, atol=1e-14, err_msg=parameter
        )
    assert parted.updates == whole.updates, "one update of everything, whatever the number of parts"
    for new in whole.updates.values():
        np.testing.assert_allclose(found[new], expected[new], rtol=1e-6, atol=1e-12)


def test_one_part_after_the_other_takes_less_ram_although_accumulators_are_charged() -> None:
    whole, parted = steps(4)
    profile = load_profile("host")
    problems = [build_problem(s, profile, budget_bytes=2**40) for s in (whole, parted)]
    assert problems[0].compute_once_pj < problems[1].compute_once_pj
    peaks = [verify(p, keep_all(p)) for p in problems]
    assert peaks[1].peak_bytes < peaks[0].peak_bytes
    sums = [t for t in problems[1].tensors if ".grad.sum" in t.name]
    assert {t.name.rsplit(".", 1)[0] for t in sums} >= {f"{p}.grad" for p in ("stem.weight", "fc.bias")}
    # Between two parts every accumulator is there: no schedule is charged less.
    first_of_last = next(i for i, o in enumerate(problems[1].operators) if o.outputs and "x~4" in o.name)
    made = {t for o in problems[1].operators[:first_of_last] for t in o.outputs}
    waiting = {t for o in problems[1].operators[first_of_last:] for t in o.inputs} & made
    trained = sum(whole.tensors[p].size_bytes for p in whole.gradients)
    assert sum(problems[1].tensors[t].size_bytes for t in waiting) >= trained


def test_batch_norm_works_on_each_part_and_says_so() -> None:
    assert takes_batch_statistics(small_cnn(BATCH), TrainingOptions())
    assert not takes_batch_statistics(small_cnn(BATCH), TrainingOptions(batch_norm="frozen"))
    whole, parted = steps(2, batch_norm="train")
    assert any("statistics from each micro-batch of 4" in note for note in parted.notes)
    assert not any("micro-batch" in note for note in whole.notes)
    inputs = random_inputs(whole)
    values = evaluate(parted, inputs)
    # Running statistics as if the parts were two steps with frozen weights: PyTorch's accumulation.
    part = build(small_cnn(BATCH // 2), TrainingOptions(learning_rate=0.0))
    state = {n: values[n] for n, t in part.tensors.items() if t.role is Role.STATISTIC and n in part.updates}
    for rows in (slice(0, 4), slice(4, 8)):
        given = {"x": inputs["x"][rows], "target": inputs["target"][rows], **state}
        after = evaluate(part, given)
        state = {n: after[part.updates[n]] for n in state}
    assert state
    for name, expected in state.items():
        assert parted.updates[name] == f"{name}@2"
        np.testing.assert_allclose(values[parted.updates[name]], expected, rtol=1e-9)


def test_dropout_draws_other_numbers_for_every_part() -> None:
    whole = with_dropout()
    options = TrainingOptions(dropout=True, loss="mse", micro_batches=2)
    step = build(whole, options, part_of(whole, 3))
    sites = [op for op in step.operators if op.kind == "Dropout"]
    assert len({op.attributes["seed"] for op in sites}) == len(sites) == 4
    values = evaluate(step, random_inputs(step))
    masks = [values[f"first.dropped~{k}"] != 0 for k in (1, 2)]
    assert not np.array_equal(*masks)


def part_of(graph: Graph, rows: int) -> Graph:
    """`with_dropout` at another batch: every activation has the batch first."""
    tensors = {
        n: replace(t, type=replace(t.type, shape=(rows, *t.shape[1:])))
        if t.role in (Role.INPUT, Role.ACTIVATION)
        else t
        for n, t in graph.tensors.items()
    }
    return replace(graph, tensors=tensors)


def test_constants_that_depend_on_the_batch_get_a_name_of_their_own() -> None:
    """Training and inference are one program with one table of constants."""

    def with_constant(rows: int) -> Graph:
        graph = small_cnn(rows)
        shift = "shift"
        tensors = {**graph.tensors, shift: replace(graph.tensors["x"], name=shift, role=Role.CONSTANT)}
        tensors["moved"] = replace(graph.tensors["x"], name="moved", role=Role.ACTIVATION)
        first = replace(
            graph.operators[0], name="Add(moved)", kind="Add", inputs=("x", shift), outputs=("moved",), attributes={}
        )
        rest = (replace(graph.operators[0], inputs=("moved", *graph.operators[0].inputs[1:])), *graph.operators[1:])
        values = {**graph.values, shift: np.full(graph.tensors["x"].shape, 0.5, np.float32)}
        return replace(graph, tensors=tensors, operators=(first, *rest), values=values)

    step = build(with_constant(8), TrainingOptions(micro_batches=2, batch_norm="frozen"), with_constant(4))
    assert step.tensors["shift~part"].shape[0] == 4
    assert "shift" not in step.tensors


def test_what_cannot_be_split_is_refused() -> None:
    assert divisors(12) == [1, 2, 3, 4, 6, 12]
    graph = small_cnn(BATCH)
    assert micro_batch_of(graph, 4) == 2
    with pytest.raises(UsageError, match="--micro-batches 3: does not divide the batch of 8; choose from 1, 2, 4, 8"):
        micro_batch_of(graph, 3)
    with pytest.raises(UsageError, match=r"'x' is .* only a batch that lies along one axis"):
        build(graph, TrainingOptions(micro_batches=4), small_cnn(4))
    with pytest.raises(UsageError, match="has another shape for a part"):
        build(graph, TrainingOptions(micro_batches=2), small_cnn(4, channels=5))
    with pytest.raises(UsageError, match="--micro-batches 0"):
        TrainingOptions(micro_batches=0)
    with pytest.raises(UsageError, match="give a number here"):
        build(graph, TrainingOptions(micro_batches="auto"))
