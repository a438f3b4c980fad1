"""Solve a problem and record it."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import importlib.metadata
import os
import platform
from dataclasses import replace
from pathlib import Path

import msgspec

import poetc.solvers
from poetc import reporting
from poetc.artifact import Artifact
from poetc.commands.locking._file import (
    VERSION,
    Entry,
    Hashes,
    LockFile,
    Options,
    Result,
    hash_of,
    hash_of_entry,
    read,
    write,
)
from poetc.commands.requests import ModelRequest, SolveRequest
from poetc.commands.solve import solve
from poetc.devices import load_profile, profile_to_dict
from poetc.errors import PoetcError, UsageError
from poetc.events import Progress, silent
from poetc.files import open_file, require_writable
from poetc.frontend import external_files
from poetc.scheduling import SolveOptions, problem_to_json
from poetc.training import TRAINING, TrainingOptions

# The options of an entry that a request, or its search, has by the same name and with the same value.
_OF_SEARCH, _OF_TASK = ({f.name for f in dataclasses.fields(kind)} for kind in (SolveOptions, SolveRequest))
_SEARCH = [name for name in Options.__struct_fields__ if name in _OF_SEARCH]
_TASK = [name for name in Options.__struct_fields__ if name in _OF_TASK - {"model", "importance"}]


def lock(request: SolveRequest, path: Path, name: str = "", progress: Progress = silent) -> Entry:
    """Solve `request` and record it in the lock file `path`, which is made if there is none."""
    present = read(path) if path.exists() else LockFile(version=VERSION)
    options = options_of(request, path.parent)
    require_writable(path)
    entry, _ = solve_entry(name or entry_name(options), options, path.parent, progress)
    write(path, present.with_entry(entry))
    return entry


def solve_entry(
    name: str, options: Options, folder: Path, progress: Progress = silent, *, patience: float = 1.0
) -> tuple[Entry, Artifact]:
    """Solve the task of `options` in `patience` times their time, paths being relative to `folder`."""
    request = request_of(options, folder)
    limited = replace(request.options, time_limit_s=patience * options.time_limit_s)
    solved = solve(replace(request, options=limited), progress)
    return _entry(name, options, solved, folder), solved


def entry_name(options: Options) -> str:
    """The words that tell entries apart where the user gives no name."""
    parts = [Path(options.model).name]
    if options.batch is not None:
        parts.append(f"batch {options.batch}")
    parts.append(Path(options.device).stem if "/" in options.device else options.device)
    parts.append(options.budget or "all RAM")
    if options.deadline is not None:
        parts.append(f"deadline {options.deadline}")
    if options.max_written is not None:
        parts.append(f"at most {options.max_written} written")
    if options.state != "auto":
        parts.append(f"state {options.state}")
    parts += [f"{key} {value}" for key, value in sorted(options.training.items())]
    return ", ".join(parts)


def options_of(request: SolveRequest, folder: Path) -> Options:
    """A request as the lock file in `folder` records it."""
    model, chosen = request.model, request.model.training.changed()
    device = model.device
    if "/" in device or device.endswith((".yaml", ".yml")):
        device = _relative(Path(device), folder, always_a_path=True)
    return Options(
        model=_relative(model.source, folder),
        device=device,
        batch=model.batch,
        importance=None if request.importance is None else _relative(request.importance, folder),
        **{name: getattr(request, name) for name in _TASK},
        **{name: getattr(request.options, name) for name in _SEARCH},
        training=chosen,
    )


def request_of(options: Options, folder: Path) -> SolveRequest:
    """Back to a request. Raises UsageError for training options that this poetc does not know."""
    device = options.device
    if "/" in device:
        device = os.path.normpath(folder / device)
        device = device if "/" in device else f"./{device}"
    unknown = sorted(options.training.keys() - {option.name for option in TRAINING})
    if unknown:
        raise UsageError(f"training options of another version: {', '.join(unknown)}")
    training = TrainingOptions.of_record(options.training)
    source = Path(os.path.normpath(folder / options.model))
    return SolveRequest(
        model=ModelRequest(source=source, batch=options.batch, device=device, training=training),
        importance=None if options.importance is None else Path(os.path.normpath(folder / options.importance)),
        options=SolveOptions(**{name: getattr(options, name) for name in _SEARCH}),
        **{name: getattr(options, name) for name in _TASK},
    )


def _relative(path: Path, folder: Path, *, always_a_path: bool = False) -> str:
    text = Path(os.path.relpath(path.absolute(), folder.absolute())).as_posix()
    return f"./{text}" if always_a_path and "/" not in text else text


def _entry(name: str, options: Options, solved: Artifact, folder: Path) -> Entry:
    problem, proof, summary = solved.problem, solved.schedule.proof, solved.summary
    request = request_of(options, folder)
    options = msgspec.structs.replace(options, objective=problem.objective)
    entry = Entry(
        name=name,
        options=options,
        hashes=Hashes(
            model=model_hash(request.model.source),
            profile=_profile_hash(request),
            options=hash_of(options),
            problem=hashlib.sha256(problem_to_json(problem)).hexdigest(),
            importance=_importance_hash(request),
        ),
        result=Result(
            status=proof.status.value,
            objective=proof.objective,
            bound=proof.bound,
            schedule_class=reporting.scope_sentence(proof.scope),
            scope=proof.scope.kinds(),
            **{
                key: summary[key]
                for key in (
                    *("energy_pj", "time_ns", "budget_bytes", "peak_bytes", "arena_bytes", "ram_bytes"),
                    *("recomputes", "page_outs", "page_ins", "moves", "low_workspace_kernels"),
                    *("importance", "importance_bound"),
                )
            },
        ),
        versions=_versions(),
    )
    return msgspec.structs.replace(entry, hashes=msgspec.structs.replace(entry.hashes, entry=hash_of_entry(entry)))


def is_unchanged(entry: Entry, folder: Path) -> bool:
    """Whether solving `entry` again would be the same computation on the same input.

    The input: the files of the model, of its external data and of importance, the profile and the options. The rest:
    poetc's code, the libraries and the kind of machine. The entry must be as it was recorded. False where that cannot
    be told.
    """
    try:
        request = request_of(entry.options, folder)
        hashes = entry.hashes
        return (
            hashes.entry == hash_of_entry(entry)
            and entry.versions == _versions()
            and hashes.options == hash_of(entry.options)
            and hashes.model == model_hash(request.model.source)
            and hashes.profile == _profile_hash(request)
            and hashes.importance == _importance_hash(request)
        )
    except (PoetcError, OSError):
        return False  # which solving says better


def model_hash(source: Path) -> str:
    """SHA-256 of a model's file, and of those that hold its external data."""
    files = () if source.suffix == ".json" else external_files(source)
    digests = [_digest(path) for path in (source, *files)]
    return digests[0].hex() if len(digests) == 1 else hashlib.sha256(b"".join(digests)).hexdigest()


def _digest(path: Path) -> bytes:
    with open_file(path) as file:
        return hashlib.file_digest(file, "sha256").digest()


def _profile_hash(request: SolveRequest) -> str:
    """A problem file brings its own costs."""
    source, device = request.model.source, request.model.device
    return hash_of({} if source.suffix == ".json" else profile_to_dict(load_profile(device)))


def _importance_hash(request: SolveRequest) -> str:
    return "" if request.importance is None else _digest(request.importance).hex()


def _versions() -> dict[str, str]:
    """The versions of all that the answer depends on beside the input."""
    return {
        "code": _code(),
        "machine": platform.machine(),
        "python": platform.python_version(),
        **{package: _version(package) for package in ("highspy", "numpy", "onnx", "poetc")},
    }


@functools.cache
def _code() -> str:
    """The mark that tells apart two states of poetc with one version: a hash of all its Python."""
    hashed = hashlib.sha256()
    for folder in (*poetc.__path__, *poetc.solvers.__path__):
        for path in sorted(Path(folder).rglob("*.py")):
            hashed.update(path.relative_to(folder).as_posix().encode() + b"\0" + path.read_bytes())
    return hashed.hexdigest()[:16]


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "unknown"
