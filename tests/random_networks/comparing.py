"""One case: drawn, exported and trained by PyTorch (`sample`); trained by poetc and judged (`judge`)."""

from __future__ import annotations

import re
import traceback
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from poetc.errors import PoetcError
from poetc.graph import Graph, Role, TrainingGraph, materialize
from tests.random_networks import training
from tests.random_networks.judging import Difference, Match, differences, match, rounding_alone, unmoved
from tests.random_networks.recipe import Array, Recipe
from tests.random_networks.training import Trained

# A note with such words says that the file trains another model than PyTorch does.
WARNINGS = ("not in the file", "taken for constants", "may have folded", "may have untied")
# In place of the newer exporter: the same mode, by the older.
OLDER = {"dynamo": "legacy", "dynamo_raw": "legacy_preserve", "dynamo_train": "legacy_train"}
# Copies of a layer are equal: where an exporter reorders their numbers, it makes one tensor of them.
MERGED = "tied weight"
MOVED = "that the exporter computed or moved"
# No file of the older exporter says whether such a tensor is trained: it must be as PyTorch's where it is not.
MASK = re.compile(r"may have been a fixed mask: '([^']+)'")
FORWARD = 1e-3  # of the largest output: rounding in float32 is far below


@dataclass(slots=True)
class Sample:
    """PyTorch's side, in the module's names. `model`: the ONNX file; empty where the exporter refused (`reason`)."""

    recipe: Recipe
    model: bytes
    module: dict[str, Array]  # parameters and running statistics before the first step
    parameters: list[str]
    double: Trained
    single: Trained
    reason: str = ""
    output: Array | None = None  # of the first batch, in the mode of the export


@dataclass(slots=True)
class Case:
    recipe: Recipe
    end: str = "agrees"
    reason: str = ""
    warned: str = ""  # the words of a note that say that the file is not the model
    found: list[Difference] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    unmatched: list[str] = field(default_factory=list)  # parameters of the module that no tensor of the file is
    expected: Trained | None = None  # in the file's names
    noise: Trained | None = None
    start: dict[str, Array] = field(default_factory=dict)

    def text(self, verbose: bool) -> str:
        r = self.recipe
        lines = [f"case {r.seed}: {self.end} {self.reason}", f"  {r.exporter}, batch {r.batch}, {dict(r.options)}"]
        lines += [f"  {r.layers}"]
        if self.unmatched:
            lines.append(f"  not found: {', '.join(self.unmatched)}")
        lines += [f"  {d}" for d in self.found[:12]]
        if verbose or self.found:
            lines += [f"  note: {note}" for note in self.notes]
        return "\n".join(lines)


def sample(seed: int, newer: float = 1.0) -> Sample:
    """A random network, exported, and trained in PyTorch in both precisions.

    `newer`: the share of the newer exporter's networks that keep it. It takes 1.5 s, the older one 0.05 s.
    """
    import torch

    from tests.random_networks import reference
    from tests.random_networks.networks import draw, parameters

    network, recipe = draw(seed)
    if recipe.exporter in OLDER and np.random.RandomState(seed + 2_000_000).rand() >= newer:
        recipe = replace(recipe, exporter=OLDER[recipe.exporter])
    nothing = Trained([])
    if not parameters(network):
        return Sample(recipe, b"", {}, [], nothing, nothing, "the network has no parameters")
    try:
        model = reference.export(network, recipe).SerializeToString()
    except Exception as error:  # of many kinds: exporters refuse as they like
        reason = f"{type(error).__name__}: {error}".split("\n")[0][:160]
        return Sample(recipe, b"", {}, [], nothing, nothing, reason)
    module = {name: p.detach().numpy() for name, p in parameters(network).items()}
    module |= {name: b.numpy() for name, b in network.named_buffers() if "running_" in name}
    double, single = (reference.train(network, recipe, d) for d in (torch.float64, torch.float32))
    output = reference.output(network, recipe)
    return Sample(recipe, model, module, list(parameters(network)), double, single, output=output)


def judge(given: Sample, folder: Path, *, as_c: bool) -> Case:
    """Train by poetc what PyTorch has trained. Writes the ONNX file to `folder`. Whatever is raised is a defect."""
    case = Case(given.recipe)
    try:
        _judge(case, given, folder, as_c)
    except Exception as error:
        case.end, case.reason = "fails", "".join(traceback.format_exception(error)[-2:]).strip()
    return case


def _judge(case: Case, given: Sample, folder: Path, as_c: bool) -> None:
    recipe = given.recipe
    if not given.model:
        case.end, case.reason = "not exported", given.reason
        return
    path = folder / f"{recipe.seed}.onnx"
    path.write_bytes(given.model)
    try:
        graph, step = training.training_graph(recipe, path)
    except PoetcError as error:
        case.end, case.reason = "refused", str(error).replace("\n", " ")[:200]
        return
    case.notes = list(step.notes)
    matched = _matches(given.module, graph, step)
    case.unmatched = sorted(set(given.parameters) - matched.keys())
    case.expected, case.noise = _renamed(given.double, matched), _renamed(given.single, matched)
    case.start = {m.name: m.turn(given.module[n]).astype(np.float64) for n, m in matched.items()}
    if not np.all(np.isfinite(given.double.losses)) or max(np.abs(given.double.losses)) > 1e4:
        case.end = "diverges"
        return
    still = rounding_alone(case.expected, case.noise) if "adam" in recipe.training.optimizer else {}

    def exact_differences(step: TrainingGraph) -> list[Difference]:
        three = (training.in_double(recipe, step), case.expected, case.noise)
        return differences(*(unmoved(t, still, case.start) for t in three), case.start, exact=True)

    case.found = exact_differences(step)
    if not case.found and as_c:
        solved = training.solve(recipe, path, 2.0)
        for how, trained in (
            ("numpy", training.interpreted(recipe, solved)),
            ("C", training.compiled(recipe, solved, folder / f"{recipe.seed}.c")),
        ):
            found = differences(trained, case.expected, case.noise, case.start, exact=False)
            case.found += found
            case.reason += f"{how} differs " if found else ""
    masks = {name for note in case.notes for name in MASK.findall(note)}
    if case.found and masks:
        options = {**recipe.options, "train": ",".join(["all", *(f"!{name}" for name in sorted(masks))])}
        without = exact_differences(training.training_graph(replace(recipe, options=options), path)[1])
        case.found, case.warned = without or case.found, "" if without else "may have been a fixed mask"
    if case.found:
        case.warned = case.warned or _warning(case) or _other_forward(case, given)
        case.end = "as the file" if case.warned else "differs"


def _other_forward(case: Case, given: Sample) -> str:
    """Words for a file that holds another forward pass than the module: onnxruntime computes other numbers of it."""
    if given.output is None or case.found[0].what != "loss 0":
        return ""
    from onnxruntime import InferenceSession, SessionOptions

    options = SessionOptions()
    options.log_severity_level = 4
    session = InferenceSession(given.model, options, providers=["CPUExecutionProvider"])
    found = session.run(None, {session.get_inputs()[0].name: given.recipe.batch_of(0)[0]})[0]
    distance = np.abs(found - given.output).max() / np.abs(given.output).max()
    return "" if distance < FORWARD else "another forward pass, by onnxruntime"


def _warning(case: Case) -> str:
    """The words with which poetc says that the file trains another model than PyTorch; "" if it does not."""
    lost = {name.rpartition(".")[0] for name in case.unmatched if "_l" not in name.rpartition(".")[2]}
    for note in case.notes:
        for words in WARNINGS:
            if words in note:
                return words
        if MOVED in note and any(f" of {module}'" in note or f" of {module}." in note for module in lost):
            return MOVED
        if _merges_modules(note):
            return MERGED
    return ""


def _merges_modules(note: str) -> bool:
    """Whether operators of several modules read one tensor that the older exporter made, which has no module's name."""
    if not (note.startswith("'onnx::") and MERGED in note):
        return False
    readers = note.partition("(")[2].partition(")")[0].split(" and ")[0].split(", ")
    return len({reader.rpartition("/")[0] for reader in readers}) > 1


def _matches(module: dict[str, Array], graph: Graph, step: TrainingGraph) -> dict[str, Match]:
    """By name in the module: the trained tensor, or the running statistic, of the file."""
    trained = {*training.trained_names(step), *step.zero_gradients}
    file = {
        n: np.asarray(materialize(v, graph.tensors[n].type))
        for n, v in graph.values.items()
        if n in trained and graph.tensors[n].role in (Role.PARAMETER, Role.STATISTIC)
    }
    return match(module, file)


def _renamed(trained: Trained, matched: dict[str, Match]) -> Trained:
    """In the names and shapes of the file; what the file does not hold is left out."""
    return Trained(
        trained.losses,
        {matched[n].name: matched[n].turn(g) for n, g in trained.gradients.items() if n in matched},
        {matched[n].name: matched[n].turn(w) for n, w in trained.state.items() if n in matched},
    )
