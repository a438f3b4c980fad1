"""The directory that `poetc solve` writes and the other commands read.

    summary.json   the totals that `solve --json` prints, and the SHA-256 of each of the other files
    problem.json   the scheduling problem
    schedule.json  the schedule and its proof
    plan.json      offsets
    graph.json     the training graph, and inference.json the model itself (absent when solved from a Problem)
    inference_problem.json, inference_schedule.json, inference_plan.json   the model's, where keeping all of it would
                   not fit the budget
    bundle.json    the plans for smaller budgets, of a bundle
    values.npz     weights and other initial values
    device.yaml    the device profile, as it was
    report.html    the report, and report.txt

It is replaced as `poetc.output_directory` says: files of the user stay. A file that is read is compared with its
checksum; the reports are for people, who may change them.
"""

from __future__ import annotations

import json
import os
import zipfile
from collections.abc import Container, Mapping
from dataclasses import dataclass
from functools import partial
from io import BufferedReader
from pathlib import Path
from typing import Any

import numpy as np

from poetc.devices import DeviceProfile, load_profile, name_kernels, profile_to_yaml
from poetc.errors import UsageError
from poetc.files import exists, open_file, read_file, write_npz
from poetc.graph import Array, Filed, Graph, TrainingGraph, graph_from_json, graph_to_json
from poetc.output_directory import Kind, check_replaceable, digest, is_as_written, replacing
from poetc.scheduling import (
    plan_from_json,
    plan_to_json,
    problem_from_json,
    problem_to_json,
    schedule_from_json,
    schedule_to_json,
)
from poetc.scheduling.problem import Problem
from poetc.scheduling.schedule import MemoryPlan, Schedule


@dataclass(frozen=True, slots=True, kw_only=True)
class Artifact:
    """A solved problem.

    `graph` and `inference` are None when it was solved from a Problem alone; `inference_problem`, `inference_schedule`
    and `inference_plan`, see `poetc.planning.inference`, where keep-all is the model's. `others` are the plans of a
    bundle for smaller budgets, the largest first. `other_graphs`: their training steps, where the plans have other
    numbers of micro-batches; else empty.
    """

    summary: Mapping[str, Any]
    problem: Problem
    schedule: Schedule
    plan: MemoryPlan
    graph: TrainingGraph | None = None
    inference: Graph | None = None
    inference_problem: Problem | None = None
    inference_schedule: Schedule | None = None
    inference_plan: MemoryPlan | None = None
    others: tuple[tuple[Problem, Schedule, MemoryPlan], ...] = ()
    other_graphs: tuple[TrainingGraph, ...] = ()
    profile: DeviceProfile | None = None

    @property
    def notes(self) -> tuple[str, ...]:
        """Decisions of the importer and the training stage that the user should know."""
        return self.graph.notes if self.graph is not None else ()


KIND = Kind("summary.json", "files of poetc solve")
REPORTS = ("report.html", "report.txt")
BUNDLE = "bundle.json"
LARGE_BYTES = 1 << 18  # of a value that may stay in its file
NAMES = (
    *("problem.json", "schedule.json", "plan.json", "graph.json", "inference.json"),
    *("inference_schedule.json", "inference_plan.json", BUNDLE, "values.npz", "device.yaml", *REPORTS),
)


def check_out(out: Path, *, force: bool = False, model: Path | None = None) -> None:
    """Raise UsageError, before anything is solved, if `write` could not write the directory `out`.

    So it does where `out` holds the schedule of another model than `model`, unless `force` is given. A file stays the
    same model where it moved, or where its content changed.
    """
    check_replaceable(out, KIND, force=force, names=NAMES)
    if model is None or force or not exists(model) or not exists(out / KIND.manifest):
        return
    summary = json.loads(read_file(out / KIND.manifest))
    held, source = Path(summary.get("model", model)), summary.get("source") or {}
    path = source.get("path")
    is_same = held.name == model.name if path is None else Path(path).resolve() == model.resolve()
    if not is_same and not (model.is_file() and digest(model) == source.get("sha256")):
        raise UsageError(
            f"{out}: holds the schedule of {held}, not of {model}; choose another directory with {KIND.option}, or"
            " replace it with --force"
        )


def write(artifact: Artifact, out: Path, reports: Mapping[str, str], *, force: bool = False) -> list[str]:
    """Write `artifact` and the `reports` (file name → text) to the directory `out`.

    The names of the copies that `force` made of files that the user had changed; without it such a file is a
    UsageError.
    """
    with replacing(out, KIND, force=force) as staged:
        staging, staged.document = staged.directory, artifact.summary
        (staging / "problem.json").write_bytes(problem_to_json(artifact.problem))
        (staging / "schedule.json").write_bytes(
            schedule_to_json(artifact.schedule, str(artifact.summary.get("schedule_class", "")))
        )
        (staging / "plan.json").write_bytes(plan_to_json(artifact.plan))
        if artifact.inference_problem is not None:
            (staging / "inference_problem.json").write_bytes(problem_to_json(artifact.inference_problem))
        if artifact.inference_schedule is not None and artifact.inference_plan is not None:
            (staging / "inference_schedule.json").write_bytes(schedule_to_json(artifact.inference_schedule))
            (staging / "inference_plan.json").write_bytes(plan_to_json(artifact.inference_plan))
        arrays: dict[str, Array] = {}
        if artifact.others:
            plans = [_plan_document(*plan) for plan in artifact.others]
            for document, own in zip(plans, artifact.other_graphs, strict=False):
                document["graph"] = graph_to_json(own, arrays)
            (staging / BUNDLE).write_text(_dump({"plans": plans}))
        for name, graph in (("graph.json", artifact.graph), ("inference.json", artifact.inference)):
            if graph is not None:
                (staging / name).write_text(_dump(graph_to_json(graph, arrays)))
        if artifact.profile is not None:
            (staging / "device.yaml").write_text(profile_to_yaml(artifact.profile))
        if arrays:
            names = sorted(arrays)
            held = {"names": np.array(names, dtype=np.str_)} | {f"v{i}": arrays[n] for i, n in enumerate(names)}
            with (staging / "values.npz").open("wb") as file:
                write_npz(file, held)
        for name, text in reports.items():
            (staging / name).write_text(text, encoding="utf-8")
    return staged.copies


def require_solved(directory: Path) -> None:
    """Raises UsageError unless `poetc solve` made the directory."""
    if not exists(directory / KIND.manifest):
        why = (
            f"not a directory made by poetc solve (no {KIND.manifest} in it)" if exists(directory) else "does not exist"
        )
        inner = directory / "solved"  # of a training
        raise UsageError(f"{directory}: {why}{f'; {inner} is one' if exists(inner / KIND.manifest) else ''}")


def read(directory: Path, *, filed: bool = False) -> Artifact:
    """Read a directory back. Raises UsageError when it is not a whole one of ours.

    `filed`: large values stay in their file, and are read whenever they are asked for.
    """
    require_solved(directory)
    summary = _read_summary(directory)
    try:
        arrays = _read_values(directory / "values.npz", LARGE_BYTES if filed else None)
        graph = _read_graph(directory / "graph.json", arrays)
        if graph is not None and not isinstance(graph, TrainingGraph):
            raise ValueError("graph.json is not a training graph")
        inference_problem = inference_schedule = inference_plan = None
        if "inference_schedule.json" in summary.get("files", {}):
            path = directory / "inference_schedule.json"
            inference_schedule = schedule_from_json(read_file(path), source=str(path))
            path = directory / "inference_plan.json"
            inference_plan = plan_from_json(read_file(path), source=str(path))
        if "inference_problem.json" in summary.get("files", {}):
            path = directory / "inference_problem.json"
            inference_problem = problem_from_json(read_file(path), source=str(path))
        path = directory / "problem.json"
        problem = problem_from_json(read_file(path), source=str(path))
        others = _read_others(directory / BUNDLE, graph, arrays) if BUNDLE in summary.get("files", {}) else []
        return Artifact(
            summary=summary,
            problem=problem if graph is None else name_kernels(problem, graph),
            schedule=schedule_from_json(
                read_file(directory / "schedule.json"), source=str(directory / "schedule.json")
            ),
            plan=plan_from_json(read_file(directory / "plan.json"), source=str(directory / "plan.json")),
            graph=graph,
            inference=_read_graph(directory / "inference.json", arrays),
            inference_problem=inference_problem,
            inference_schedule=inference_schedule,
            inference_plan=inference_plan,
            others=tuple(plan for plan, _ in others),
            other_graphs=tuple(of_plan for _, of_plan in others if of_plan is not None),
            profile=load_profile(directory / "device.yaml") if (directory / "device.yaml").exists() else None,
        )
    except FileNotFoundError as error:
        raise UsageError(f"{error.filename}: missing; run {_maker(directory)} again") from error
    except (KeyError, ValueError, TypeError, EOFError, zipfile.BadZipFile) as error:
        raise UsageError(f"{directory}: damaged ({error}); run {_maker(directory)} again") from error


def _plan_document(problem: Problem, schedule: Schedule, plan: MemoryPlan) -> dict[str, Any]:
    parts = {"problem": problem_to_json(problem), "schedule": schedule_to_json(schedule), "plan": plan_to_json(plan)}
    return {name: json.loads(text) for name, text in parts.items()}


def _read_others(
    path: Path, graph: TrainingGraph | None, arrays: Mapping[str, Array | Filed]
) -> list[tuple[tuple[Problem, Schedule, MemoryPlan], TrainingGraph | None]]:
    """The other plans of a bundle; with each its graph, None where that is the first plan's."""
    others = []
    for document in json.loads(read_file(path))["plans"]:
        parts = {name: json.dumps(document[name]).encode() for name in ("problem", "schedule", "plan")}
        problem = problem_from_json(parts["problem"], source=str(path))
        schedule = schedule_from_json(parts["schedule"], source=str(path))
        plan = plan_from_json(parts["plan"], source=str(path))
        own = graph_from_json(document["graph"], arrays) if "graph" in document else None
        if own is not None and not isinstance(own, TrainingGraph):
            raise ValueError(f"{path.name}: not a training graph")
        of_plan = own or graph
        others.append(((problem if of_plan is None else name_kernels(problem, of_plan), schedule, plan), own))
    return others


def _read_summary(directory: Path) -> dict[str, Any]:
    """The summary, if every file that it names is there as it was written."""
    try:
        text = read_file(directory / KIND.manifest).decode()
        summary: dict[str, Any] = json.loads(text)
        files = dict(summary["files"])
    except (KeyError, ValueError, TypeError, UnicodeDecodeError) as error:
        raise UsageError(f"{directory / KIND.manifest}: damaged; run {_maker(directory)} again") from error
    maker = _maker(directory, files)
    if not is_as_written(summary, text):
        raise UsageError(f"{directory / KIND.manifest}: not as {maker} wrote it; run {maker} again")
    for name, recorded in files.items():
        if name in REPORTS:
            continue
        path = directory / name
        if not path.is_file():
            raise UsageError(f"{path}: missing; run {maker} again")
        if digest(path) != recorded:
            raise UsageError(f"{path}: damaged (not as {maker} wrote it); run {maker} again")
    return summary


def _maker(directory: Path, files: Container[str] = ()) -> str:
    """The command that wrote the directory, by the `files` that it named or by those that are there."""
    return "poetc bundle" if BUNDLE in files or (directory / BUNDLE).exists() else "poetc solve"


def _read_values(path: Path, large_bytes: int | None) -> dict[str, Array | Filed]:
    """By name; those of more than `large_bytes` in the file stay there."""
    if not path.exists():
        return {}
    with open_file(path) as file, np.load(file, allow_pickle=False) as archive:
        version = _version(file)
        sizes = {entry.filename: entry.file_size for entry in archive.zip.infolist()}

        def value(key: str) -> Array | Filed:
            if large_bytes is None or sizes[f"{key}.npy"] <= large_bytes:
                array: Array = archive[key]
                return array
            return Filed(partial(_read_value, path, version, key))

        return {str(name): value(f"v{i}") for i, name in enumerate(archive["names"])}


def _read_value(path: Path, version: tuple[int, ...], key: str) -> Array:
    """One value of a file of this `version`. UsageError where the file is another by now."""
    try:
        with open_file(path) as file:
            if _version(file) == version:
                with np.load(file, allow_pickle=False) as archive:
                    array: Array = archive[key]
                    return array
    except FileNotFoundError:
        pass
    raise UsageError(f"{path}: was changed while it was in use; run the command again")


def _version(file: BufferedReader) -> tuple[int, ...]:
    """Of an open file: another where it was replaced or written to."""
    status = os.fstat(file.fileno())
    return status.st_ino, status.st_size, status.st_mtime_ns


def _read_graph(path: Path, arrays: Mapping[str, Array | Filed]) -> Graph | None:
    return graph_from_json(json.loads(read_file(path)), arrays) if path.exists() else None


def _dump(document: Any) -> str:
    return json.dumps(document, indent=1, sort_keys=False, allow_nan=False) + "\n"
