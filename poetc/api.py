"""The Python interface: `poetc.load(...)` gives a Model, `.solve(...)` a Solution, which writes C and reports.

It raises the errors of `poetc.errors`, as the command line does: UnsupportedModelError, InfeasibleError, ...
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import onnx
from google.protobuf.message import EncodeError  # type: ignore[import-untyped,unused-ignore]

from poetc import artifact, reporting
from poetc.api_train import of_best_updates
from poetc.artifact import Artifact
from poetc.commands import emit, validate
from poetc.commands.analyze import analyze, analyze_parts
from poetc.commands.bundle import bundle
from poetc.commands.estimate import SEARCH_S, EstimateRequest, estimate, steps_of, with_facts_of_data
from poetc.commands.export import ExportRequest, export_arrays
from poetc.commands.import_state import read_values, with_values
from poetc.commands.locking import Difference
from poetc.commands.locking._diff import diff_artifacts
from poetc.commands.options import COMPARED_STEPS
from poetc.commands.reading_weights import read_weights
from poetc.commands.requests import ModelRequest, SolveRequest, load_model
from poetc.commands.solve import solve
from poetc.commands.trainer import trainer
from poetc.commands.weights import by_graph_name
from poetc.devices import (
    AUTO,
    DeviceProfile,
    format_bytes,
    format_cost,
    format_ns,
    format_pj,
    list_profiles,
    load_profile,
)
from poetc.errors import UsageError
from poetc.events import Progress, silent
from poetc.files import require_tmpdir, scratch_directory
from poetc.graph import Graph, Role
from poetc.reporting.notebook import memory_bar, table
from poetc.runtime.session import Session
from poetc.scheduling import DEFAULT_GAP, MemoryPlan, Problem, Schedule, SolveOptions, verify
from poetc.training import TrainingOptions

Size = int | str  # bytes, or as on the command line: "256kB", "60%"


_FOLDERS: list[tempfile.TemporaryDirectory[str]] = []  # of models that came without a file; gone when Python ends


def _file_of(model: str | Path | onnx.ModelProto) -> Path:
    """The path itself, or that of a new file with the model in it."""
    if isinstance(model, str | Path):
        return Path(model)
    if not isinstance(model, onnx.ModelProto):
        raise UsageError(f"a {type(model).__name__} is neither a path nor an onnx.ModelProto")
    try:
        data = model.SerializeToString(deterministic=True)
    except (EncodeError, ValueError):
        raise UsageError("the onnx.ModelProto has more than 2 GB; save it with external data, give the path") from None
    require_tmpdir()
    _FOLDERS.append(tempfile.TemporaryDirectory(prefix="poetc-"))
    path = Path(_FOLDERS[-1].name) / "model.onnx"
    path.write_bytes(data)
    return path


def load(
    path: str | Path | onnx.ModelProto,
    *,
    batch: int | None = None,
    dims: Mapping[str, int] | None = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
    constants: Mapping[str, int] | None = None,
    training: TrainingOptions | Mapping[str, Any] | None = None,
) -> Model:
    """An ONNX model, and how it is to be trained. Raises UnsupportedModelError, UsageError.

    `training` may be a dictionary: the arguments of TrainingOptions.

    `path` may be an onnx.ModelProto, which is kept in a file until Python ends. `dims` gives lengths to symbolic
    dimensions of the inputs by their names, `shapes` whole shapes to inputs, `constants` values to integer inputs.
    """
    source, options = _file_of(path), _training_options(training)
    lengths = tuple(f"{name}={length}" for name, length in (dims or {}).items())
    whole = tuple(f"{name}={','.join(map(str, shape))}" for name, shape in (shapes or {}).items())
    bound = tuple(f"{name}={value}" for name, value in (constants or {}).items())
    options = replace(
        options, dim=(*options.dim, *lengths), shape=(*options.shape, *whole), constant=(*options.constant, *bound)
    )
    graph = load_model(ModelRequest(source=source, batch=batch, training=options))
    return Model(source, batch, options, graph)


def _training_options(options: TrainingOptions | Mapping[str, Any] | None) -> TrainingOptions:
    if isinstance(options, TrainingOptions):
        return options
    try:
        return TrainingOptions(**(options or {}))
    except TypeError as error:
        why = str(error).rpartition("() ")[2]
        raise UsageError(
            f"training: {why}; give poetc.TrainingOptions(...), or its arguments as a dictionary"
        ) from None


def load_problem(path: str | Path) -> ProblemFile:
    """A scheduling problem of your own (docs/reference/formats.md), to be solved without any model."""
    return ProblemFile(Path(path))


def open_solution(directory: str | Path) -> Solution:
    """A directory that `poetc solve`, or `Solution.save`, wrote."""
    return Solution(artifact.read(Path(directory)))


class Devices(dict[str, DeviceProfile]):
    """Profiles by name."""

    def _repr_html_(self) -> str:
        return table("devices", [(name, f"{p.title}: {format_bytes(p.ram_bytes)} RAM") for name, p in self.items()])


def list_devices() -> Devices:
    """The profiles that come with poetc, by name."""
    return Devices((name, load_profile(name)) for name in list_profiles())


class _Solvable:
    def _model(self, device: str | Path) -> ModelRequest:
        raise NotImplementedError

    def solve(
        self,
        *,
        device: str | Path = "host",
        budget: Size | None = None,
        deadline: str | None = None,
        max_written: Size | None = None,
        importance: str | Path | None = None,
        importance_at_least: str | None = None,
        max_energy: str | None = None,
        objective: str | None = None,
        paging: bool = True,
        dma: bool = False,
        processors: str = AUTO,
        state: Literal["auto", "ram", "store"] = "auto",
        solver: str = "poetc",
        time_limit_s: float = 60.0,
        gap: float = DEFAULT_GAP,
        seed: int = 0,
        fixed_order: bool = False,
        group: str = "auto",
        milp_solver: str = "highs",
        write_model: str | Path | None = None,
        infer_batch: int | None = None,
        progress: Progress = silent,
    ) -> Solution:
        """The schedule of least energy (or time) in `budget`.

        The budget is bytes, "256kB", "60%" (of the keep-all peak) or "least" (the smallest that is found, within
        `deadline`). By default it is the device's RAM. `max_written`: the most that a step may write to the store.
        `importance`, `importance_at_least` and `max_energy` are for a model with the training option `train="best"`.
        `processors`: names of those that work beside the main one, or "all"; "main": it alone; "auto": equal cores of a
        device that runs Linux. `state`: where weights and optimizer state live between steps. `objective` is by default
        a problem file's own, and energy for a model. The search ends when it is proven that at most a fraction `gap`
        could be saved; 0 proves to the end. `fixed_order` keeps the model's order of operators. `group`: "layer" gives
        a published solver layers in place of operators, "none" never does. `milp_solver`: the program for the solver's
        MILPs, "highs" or one that PuLP finds. `write_model`: the MPS or LP file that the first of them is written to,
        the others beside it. `infer_batch`: rows of a prediction and of an evaluation, by default those of a training
        batch. Raises InfeasibleError, which says the smallest budget that works, and LimitError.
        """
        request = SolveRequest(
            model=replace(self._model(device), infer_batch=infer_batch),
            budget=str(budget) if budget is not None else None,
            deadline=deadline,
            max_written=None if max_written is None else str(max_written),
            **of_best_updates(importance, importance_at_least, max_energy),
            objective=objective,
            paging=paging,
            dma=dma,
            processors=processors,
            state=state,
            solver=solver,
            milp_solver=milp_solver,
            write_model=None if write_model is None else str(write_model),
            options=SolveOptions(time_limit_s=time_limit_s, gap=gap, seed=seed, fixed_order=fixed_order, group=group),
        )
        return Solution(solve(request, progress))


@dataclass(frozen=True, slots=True, repr=False)
class ProblemFile(_Solvable):
    path: Path

    def _model(self, device: str | Path) -> ModelRequest:
        return ModelRequest(source=self.path, device=str(device))

    def __repr__(self) -> str:
        return f"<scheduling problem {self.path}>"


@dataclass(frozen=True, slots=True, repr=False)
class Model(_Solvable):
    """A model that can be trained. `graph` is its forward pass."""

    path: Path
    batch: int | None
    training: TrainingOptions
    graph: Graph = field(repr=False)

    def _model(self, device: str | Path) -> ModelRequest:
        return ModelRequest(source=self.path, batch=self.batch, device=str(device), training=self.training)

    def bundle(
        self,
        *,
        device: str | Path = "host",
        budgets: Sequence[Size] = (),
        points: int | None = None,
        switch_flash: Size | None = None,
        importance: str | Path | None = None,
        importance_at_least: str | None = None,
        max_energy: str | None = None,
        paging: bool = True,
        state: Literal["auto", "ram", "store"] = "auto",
        time_limit_s: float = 60.0,
        gap: float = DEFAULT_GAP,
        seed: int = 0,
        progress: Progress = silent,
    ) -> Solution:
        """A plan for each of `budgets`, or for `points` budgets, over one state; see `poetc bundle`.

        The solution is that of the largest budget. Its `summary["bundle"]` has the plans and the switches between them.
        `switch_flash`: the most flash for tables of switches. `time_limit_s` is that of one plan. Raises the errors of
        `solve`.
        """
        request = SolveRequest(
            model=self._model(device),
            **of_best_updates(importance, importance_at_least, max_energy),
            paging=paging,
            state=state,
            options=SolveOptions(time_limit_s=time_limit_s, gap=gap, seed=seed),
        )
        flash = None if switch_flash is None else str(switch_flash)
        sizes = [str(budget) for budget in budgets]
        return Solution(bundle(request, sizes, points=points, switch_flash=flash, progress=progress))

    def analyze(self, device: str | Path = "host") -> Mapping[str, Any]:
        """The needs of training: operators, parameters, saved bytes, keep-all peak, smallest budget, ..."""
        return analyze(self._model(device))

    def estimate(
        self,
        *,
        device: str | Path = "host",
        data: str | None = None,
        texts: Mapping[str, Any] | None = None,
        epochs: int | None = None,
        battery: str | None = None,
        progress: Progress = silent,
    ) -> Mapping[str, Any]:
        """The costs of a training, as `poetc analyze` shows it: three budgets, ways to save, the largest batch.

        `data` and `epochs` give an epoch and the run; `battery`: "2000mAh@3.7V". `texts`: options of texts, such as
        {"tokenizer": "tokenizer.json"}. Raises UsageError.
        """
        request = EstimateRequest(
            model=self._model(device), data=data, texts=texts or {}, epochs=epochs, battery=battery
        )
        request = with_facts_of_data(request, progress)
        known = analyze_parts(request.model, SEARCH_S, progress)[1]
        return estimate(request, known, steps_of(request, known.step), progress)

    @property
    def parameters(self) -> int:
        """Elements of all parameters."""
        return sum(t.type.elements for t in self.graph.tensors.values() if t.role is Role.PARAMETER)

    def _rows(self) -> list[tuple[str, str]]:
        def shapes(names: Sequence[str]) -> str:
            return ", ".join(f"{n} {'x'.join(map(str, self.graph.tensors[n].shape))}" for n in names)

        return [
            ("inputs", shapes(self.graph.inputs)),
            ("outputs", shapes(self.graph.outputs)),
            ("operators", f"{len(self.graph.operators)} forward"),
            ("parameters", f"{self.parameters:,}"),
            ("optimizer", self.training.optimizer),
        ]

    def __repr__(self) -> str:
        return f"<model {self.path.name}: {'; '.join(f'{k} {v}' for k, v in self._rows())}>"

    def _repr_html_(self) -> str:
        return table(self.path.name, self._rows())


@dataclass(frozen=True, slots=True, repr=False)
class Solution:
    """A schedule with its proof and its memory plan."""

    artifact: Artifact

    @property
    def problem(self) -> Problem:
        return self.artifact.problem

    @property
    def schedule(self) -> Schedule:
        return self.artifact.schedule

    @property
    def plan(self) -> MemoryPlan:
        return self.artifact.plan

    @property
    def summary(self) -> Mapping[str, Any]:
        """The answer of `poetc solve --json`."""
        return self.artifact.summary

    @property
    def status(self) -> str:
        """optimal | feasible | limit: see `schedule.proof` for the bound and its class."""
        return self.schedule.proof.status.value

    @property
    def energy_pj(self) -> int:
        """Modelled energy of one training step, in picojoules."""
        return int(self.summary["energy_pj"])

    @property
    def time_ns(self) -> int:
        """Modelled time of one training step, in nanoseconds."""
        return int(self.summary["time_ns"])

    @property
    def peak_bytes(self) -> int:
        return int(self.summary["peak_bytes"])

    @property
    def gap(self) -> float:
        """(objective - bound) / objective."""
        return self.schedule.proof.gap()

    def report(self) -> str:
        """The report as text."""
        return reporting.reports(self.artifact)["report.txt"]

    def save(self, directory: str | Path, *, force: bool = False) -> Path:
        """Write the directory that `poetc solve` writes, the HTML report in it.

        Raises UsageError where a file there is in the way and not as poetc wrote it; `force` keeps a copy, NAME.orig.
        """
        out = Path(directory)
        artifact.write(self.artifact, out, reporting.reports(self.artifact), force=force)
        return out

    def emit(
        self,
        out: str | Path,
        *,
        target: str = "host",
        board: str | None = None,
        package: bool = False,
        force: bool = False,
        layout: str = "makefile",
    ) -> Mapping[str, Any]:
        """Write C to the directory `out`; returns its needs in bytes.

        `package`: a Python package that needs numpy alone, for host and cortex-a. `layout`: cmake, zephyr, arduino or
        cmsis-pack, for a firmware project. Files that you changed are kept as `save` does.
        """
        with self._directory() as directory:
            return emit.emit(directory, target, Path(out), board=board, package=package, force=force, layout=layout)

    def trainer(self, *, store: str | Path | None = None, undo: bool = False, threads: int = 0) -> Session:
        """Compile for this machine, and start training from the initial weights, step by step on numpy arrays.

        `store`: the file for tensors on the store, by default a temporary one. `undo`: a step that fails leaves the
        state before it, for a copy of the state a step. `threads`: the most that kernels run in, 0: one. Raises
        UsageError where this machine has no compiler.
        """
        return trainer(self.artifact, store=None if store is None else Path(store), undo=undo, threads=threads)

    def validate(
        self,
        reference: str | Path | None = None,
        *,
        steps: int | None = None,
        switches: int | Literal["all"] | None = None,
    ) -> Mapping[str, Any]:
        """Compile and run on this machine, and compare with the interpreter and with keep-all. Raises CheckFailed.

        `steps`: as many are compared with keep-all, by default 3. `switches`: of a bundle, how many are taken, and
        compared with a step of one plan instead. Raises UsageError for both, or for `reference` with `switches`.
        """
        if switches is not None and not (steps is None and reference is None):
            raise UsageError(
                f"{'steps' if reference is None else 'reference'} does nothing where switches are compared"
            )
        with self._directory() as directory:
            if switches is not None:
                checked = validate.validate_switches(directory, None if switches == "all" else switches)
            else:
                path = None if reference is None else Path(reference)
                checked = validate.validate(directory, path, steps=COMPARED_STEPS.default if steps is None else steps)
        checked.require()
        return checked.document

    def export(
        self,
        state: Mapping[str, Any] | str | Path | None,
        out: str | Path,
        *,
        model: str | Path | None = None,
        rounding: bool = False,
        adapter: bool = False,
        force: bool = False,
    ) -> Mapping[str, Any]:
        """Write trained weights to `out`: the ONNX file that was solved with these weights, or an .npz or .safetensors.

        `state`: arrays by name, a trained.bin, .npz or .safetensors file, or None for the weights at the start. `model`
        and `rounding` as `poetc export --model` and `--round`. `adapter`: `out` gets the adapters alone, as peft reads
        them. Raises UnsupportedModelError for weights that the file cannot hold, UsageError where `out` exists, unless
        `force`.
        """
        path = Path(out)
        kind = "adapter" if adapter else {".npz": "npz", ".safetensors": "safetensors"}.get(path.suffix, "out")
        return export_arrays(
            self.artifact,
            self._state(state),
            ExportRequest(
                model=None if model is None else Path(model),
                rounding=rounding,
                force=force,
                **{kind: path},
            ),
        )

    def with_state(self, state: Mapping[str, Any] | str | Path) -> Solution:
        """The same solution, started from other weights.

        They are arrays by name, an ONNX file of the same graph, a trained.bin, .npz or .safetensors file. Raises
        UsageError, which names tensors that do not fit.
        """
        if isinstance(state, Mapping):
            return Solution(with_values(self.artifact, self._state(state), "arrays"))
        return Solution(with_values(self.artifact, read_values(self.artifact, Path(state)), str(state)))

    def _state(self, state: Mapping[str, Any] | str | Path | None) -> dict[str, Any]:
        if state is None:
            return {}
        if isinstance(state, Mapping):
            return by_graph_name(self.artifact, state, "the state")
        return read_weights(self.artifact, Path(state))

    def diff(self, after: Solution) -> Difference:
        """The differences between this schedule and `after`, in words."""
        return diff_artifacts(self.artifact, after.artifact)

    @contextmanager
    def _directory(self) -> Iterator[Path]:
        with scratch_directory("poetc-") as scratch:
            directory = scratch / "solved"
            artifact.write(self.artifact, directory, {})
            yield directory

    def _rows(self) -> list[tuple[str, str]]:
        s, p = self.summary, self.schedule.proof
        ended = (s.get(key) for key in ("asked_gap", "one_core_of", "stopped_by"))
        least, everything = format_cost(self.problem.objective, p.bound), p.scope.is_everything
        status = reporting.status_words(self.status, self.gap, *ended, least=least, is_everything=everything)
        executions = verify(self.problem, self.schedule).executions
        moves = f"{s['page_outs']} page transfers out, {s['page_ins']} in"
        scope = reporting.scope_sentence(p.scope, s.get("core_ways"))
        return [
            ("status", f"{status} ({scope})"),
            ("device", self.problem.device),
            ("RAM", f"{format_bytes(self.peak_bytes)} of {format_bytes(self.problem.budget_bytes)}"),
            ("keep-all", format_bytes(s["keep_all_peak_bytes"])),
            ("energy (modelled)", f"{format_pj(self.energy_pj)}, computing once {format_pj(s['compute_once_pj'])}"),
            ("time (modelled)", format_ns(self.time_ns)),
            ("recomputed", f"{reporting.recomputed(executions)}; {moves}"),
        ]

    def __repr__(self) -> str:
        return f"<solution of {self.problem.name}: {'; '.join(f'{k} {v}' for k, v in self._rows())}>"

    def _repr_html_(self) -> str:
        keep_all = int(self.summary["keep_all_peak_bytes"])
        bar = memory_bar(self.peak_bytes, self.problem.budget_bytes, keep_all)
        return table(self.problem.name, self._rows()) + bar
