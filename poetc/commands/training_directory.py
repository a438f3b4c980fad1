"""The directory beside the output of `poetc train`, which holds all that a training needs to go on."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from poetc import artifact
from poetc.commands.options import BATCH, BUDGET, DATA, DEVICE, IMPORTANCE, LIMITS, OF_KINDS, RUN, SEARCH
from poetc.commands.requests import SolveRequest
from poetc.devices import AUTO
from poetc.errors import CheckFailed, InfeasibleError, LimitError, UnsupportedModelError, UsageError, format_count
from poetc.events import Progress
from poetc.files import lock_folder, portable, read_file, write_text
from poetc.frontend import DATA_SUFFIX
from poetc.loop import Checkpoint, CheckpointStore, is_over
from poetc.output_directory import digest
from poetc.training import TRAINING, TrainingOptions, rates

if TYPE_CHECKING:
    from poetc.commands.train import TrainRequest

SUFFIX = ".train"
RECORD, SOLVED, DOCUMENT, CONFIG = "run.json", "solved", "training.json", "run.yaml"
PAGE = "report.html"
MAY_CHANGE = ("epochs", "save_every", "elastic", "log", "sample", "schedule", "learning_rate")  # by a resumption


def directory_of(out: Path) -> Path:
    """The directory where a training with this output keeps its files for a resumption."""
    return out.with_name(out.name + SUFFIX)


def recorded_options(out: Path, typed: Mapping[str, Any]) -> dict[str, Any]:
    """The options that the training of `out` was begun with.

    Raises UsageError where there is none, and for options in `typed` that differ from them, but for those that may
    change.
    """
    absent = {o.name: o.default for o in OF_KINDS} | {"elastic": False, "sample": None}  # in versions before 0.3
    recorded = {**absent, **_record(directory_of(out))["options"]}
    typed = json.loads(json.dumps(typed))
    begun_with, asked = _resolved(recorded), _resolved({**recorded, **typed})
    is_solved = Path(recorded["model"]).is_dir()  # whose rate is in its files
    for name, value in typed.items():
        if name == "model" or (name in MAY_CHANGE and not (is_solved and name == "learning_rate")):
            recorded[name] = value
        elif name == "processors" and (value, recorded.get(name)) == (AUTO, ""):
            continue  # of a version whose default was the main processor alone
        elif begun_with.get(name) != asked[name]:
            begun = "without it" if recorded.get(name) is None else f"with {recorded[name]}"
            raise UsageError(
                f"{_flag(name)} {value}: the training of {out} was begun {begun}; leave it out, or begin anew without"
                " --resume"
            )
    return {name: tuple(value) if isinstance(value, list) else value for name, value in recorded.items()}


def _resolved(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options, with defaults in place of None: Python records them, the command line does not."""
    training = {o.name: options[o.name] for o in TRAINING if o.name in options}
    return {**options, **json.loads(json.dumps(vars(TrainingOptions(**training))))}


def _record(directory: Path) -> dict[str, Any]:
    path = directory / RECORD
    try:
        record: dict[str, Any] = json.loads(read_file(path))
        since = int(record.get("schedule_from", 0))
        result = record.get("result")
        return {
            "options": record["options"],
            "model_sha256": record["model_sha256"],
            "schedule_from": since,
            "result": result if isinstance(result, dict) else None,
        }
    except FileNotFoundError:
        raise UsageError(f"--resume: {directory}: holds no training that was begun") from None
    except (ValueError, KeyError, TypeError, AttributeError):
        raise UsageError(f"{path}: damaged; begin anew without --resume, with --force") from None


@contextmanager
def alone(directory: Path) -> Iterator[None]:
    """Make the directory, and refuse it (UsageError) where another training goes on in it.

    A directory that stays empty is removed.
    """
    if directory.exists() and not directory.is_dir():
        yield  # `take_up` refuses it
        return
    created = [place for place in (directory, *directory.parents) if not place.exists()]
    while True:
        directory.mkdir(parents=True, exist_ok=True)
        try:
            handle = lock_folder(directory)
        except BlockingIOError:
            raise UsageError(f"{directory}: another training goes on in it; choose another output with -o") from None
        if directory.exists() and os.path.samestat(os.fstat(handle), directory.stat()):
            break  # and not one that another training has removed since
        os.close(handle)
    try:
        yield
    finally:
        for place in created:
            with suppress(OSError):
                place.rmdir()
        os.close(handle)


def take_up(request: TrainRequest, store: CheckpointStore, note: Progress) -> Checkpoint | None:
    """The checkpoint to go on from; None at the beginning. Raises UsageError where something is in the way."""
    directory = request.directory
    if request.resume:
        if _record(directory)["model_sha256"] != _model_digest(request):
            raise UsageError(
                f"--resume: {request.model_file} is not the model that the training of {request.out} began with"
            )
        store.clean()
        checkpoint = store.load()
        if checkpoint is None and (directory / DOCUMENT).exists():
            raise UsageError(f"{directory}: its checkpoints are gone; begin anew with --force")
        if checkpoint is None:
            note(f"{directory}: has no checkpoint yet; the training begins with its first step")
        elif is_over(checkpoint, request.epochs, request.patience):
            _require_no_change(request, checkpoint)
        return checkpoint
    if not request.force:
        if request.out.exists():
            raise UsageError(f"{request.out}: exists; write to another file with -o, or replace it with --force")
        if store.exists():
            raise UsageError(f"{directory}: an earlier training; go on with --resume, or begin anew with --force")
    if directory.exists() and not (directory / RECORD).is_file() and not _is_cut_short(directory):
        raise UsageError(f"{directory}: is in the way and no earlier training; choose another output with -o")
    return None


def written_result(request: TrainRequest, checkpoint: Checkpoint | None) -> dict[str, Any] | None:
    """The answer of a training that is over and whose files are as it wrote them; None: there is something to do."""
    if checkpoint is None or not is_over(checkpoint, request.epochs, request.patience):
        return None
    result = _record(request.directory)["result"]
    if not result or result != _digests(request.out):
        return None
    try:
        document: dict[str, Any] = json.loads(read_file(request.directory / DOCUMENT))
        places = {"output": request.out, "directory": request.directory, "report": request.directory / PAGE}
        return {**document, **{name: str(place) for name, place in places.items()}}
    except (OSError, ValueError, TypeError):
        return None


def _digests(out: Path) -> dict[str, str]:
    """The SHA-256 of the trained model, and of the file of its external weights."""
    places = (out, out.with_name(out.name + DATA_SUFFIX))
    return {place.name: digest(place) for place in places if place.is_file()}


def _require_no_change(request: TrainRequest, checkpoint: Checkpoint) -> None:
    """UsageError for an option that another step would need, where none is left."""
    before, asked = (_resolved(options) for options in (_record(request.directory)["options"], request.options))
    for name in MAY_CHANGE:
        if name not in ("epochs", "sample") and asked.get(name) and asked.get(name) != before.get(name):
            raise UsageError(f"{_flag(name)} {asked[name]} does nothing: {position(request, checkpoint)}")


def _flag(name: str) -> str:
    return "--lr" if name == "learning_rate" else "--" + name.replace("_", "-")


def begin(request: TrainRequest) -> None:
    """Make the directory, in place of one that may go. Its record goes last, so that it stays one that may go."""
    if request.directory.exists():
        for path in request.directory.iterdir():
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            elif path.name != RECORD:
                path.unlink()
    request.directory.mkdir(parents=True, exist_ok=True)
    write_record(request, 0)


def write_record(request: TrainRequest, schedule_from: int, *, is_written: bool = False) -> None:
    """The options of a training, so that it can go on. `is_written`: its result is there, whose checksums are kept."""
    record: dict[str, Any] = {"options": dict(request.options), "model_sha256": _model_digest(request)}
    if schedule_from:
        record["schedule_from"] = schedule_from
    if is_written:
        record["result"] = _digests(request.out)
    write_text(request.directory / RECORD, json.dumps(record, indent=1) + "\n")
    write_text(request.directory / CONFIG, _config(request))


def go_on(request: TrainRequest, checkpoint: Checkpoint, batches: int | None, note: Progress) -> int:
    """Record the options that a resumption changed, if steps follow; the step at which the schedule begins."""
    record, step = _record(request.directory), int(checkpoint.progress["step"])
    if is_over(checkpoint, request.epochs, request.patience):
        return int(record["schedule_from"])
    before, schedule_from = record["options"], int(record["schedule_from"])
    if before.get("schedule") != request.schedule:
        schedule_from = step
        note(f"--schedule {request.schedule}: begins anew at step {step}")
    elif before["epochs"] != request.epochs and batches and rates.parse(request.schedule).needs_steps:
        note(
            f"--epochs {request.epochs}: {request.schedule} lasts as long as the training, so its curve is stretched"
            f" from {format_count(before['epochs'], 'epoch')}, and the rate jumps. For a curve of its own from here,"
            f" give its steps: --schedule cosine:steps={max(1, (request.epochs or 1) * batches - step)}"
        )
    write_record(request, schedule_from)
    return schedule_from


def _config(request: TrainRequest) -> str:
    """The options of this training as a file for --config, with the defaults that it took."""
    values = dict(request.options)
    if isinstance(request.source, SolveRequest):
        values = {n: v for n, v in values.items() if n not in vars(TrainingOptions())}
        values |= request.source.model.training.effective()
    known = {o.name: o for o in (*DATA, *RUN, DEVICE, BUDGET, BATCH, *LIMITS, *IMPORTANCE, *SEARCH, *TRAINING)}
    lines: dict[str, Any] = {"model": portable(request.model_file), "output": portable(request.out)}
    lines |= {
        option.flag[2:]: list(map(str, value)) if isinstance(value, tuple | list) else value
        for name, option in known.items()
        if (value := values.get(name)) not in (None, "", (), [])
    }
    if not isinstance(request.source, SolveRequest):
        lines = {key: lines[key] for key in ("model", "output", *(o.flag[2:] for o in (*DATA, *RUN))) if key in lines}
    return f"# poetc train --config {CONFIG}\n" + yaml.safe_dump(lines, sort_keys=False, allow_unicode=True)


@contextmanager
def removed_if_no_step_ran(request: TrainRequest, store: CheckpointStore) -> Iterator[None]:
    """A training that fails before any step is kept leaves no directory, which the next one would have to --force."""
    try:
        yield
    except (CheckFailed, InfeasibleError, LimitError, UnsupportedModelError, UsageError) as error:
        is_about_files = isinstance(error.__cause__, OSError)  # such as a full disk, after which --resume goes on
        if not (request.resume or is_about_files or store.has_steps()):
            shutil.rmtree(request.directory, ignore_errors=True)
        raise


def _is_cut_short(directory: Path) -> bool:
    """Whether a training was killed while it wrote its record, the first thing in its directory."""
    return directory.is_dir() and all(path.name.startswith(f".{RECORD}.") for path in directory.iterdir())


def _model_digest(request: TrainRequest) -> str:
    source = request.model_file
    return digest(source / artifact.KIND.manifest if source.is_dir() else source)


def position(request: TrainRequest, checkpoint: Checkpoint) -> str:
    """Where a training goes on, in words."""
    epoch, step = checkpoint.progress["epoch"], checkpoint.progress["step"]
    if epoch > request.epochs:
        count = epoch - 1
        done = "the only epoch is" if count == 1 else f"{'all ' * (count == request.epochs)}{count} epochs are"
        return f"{done} done, in {format_count(step, 'step')}; --epochs {count + 1} or more trains on"
    return f"going on after step {step}, in epoch {epoch} of {request.epochs}"


def require_same_data(request: TrainRequest, checkpoint: Checkpoint, identity: Mapping[str, str]) -> None:
    for option, value in checkpoint.progress["identity"].items():
        if identity.get(option) != value:
            where = request.data if option == "--data" else request.validation or "the validation split"
            raise UsageError(f"--resume: {option} {where}: not the data that the training of {request.out} began with")
