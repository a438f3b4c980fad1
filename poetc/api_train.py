"""`poetc.train`: the training of `poetc train` for Python."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any

from poetc.commands.options import DATA, OF_KINDS, RUN
from poetc.commands.requests import ModelRequest, SolveRequest
from poetc.commands.train import TrainRequest
from poetc.commands.train import train as train_on_data
from poetc.commands.training_directory import recorded_options
from poetc.devices import AUTO
from poetc.events import Progress, silent
from poetc.loop import EpochRow
from poetc.scheduling import TRAINING_GAP, SolveOptions
from poetc.training import TRAINING, TrainingOptions

if TYPE_CHECKING:
    from poetc.api import Model

CONSTANT = "constant"  # schedule of the learning rate
TRAINING_TIME_S = 60.0  # of the search for a schedule, unless somebody asks


def train(
    model: str | Path | Model,
    *,
    data: str | Path,
    out: str | Path,
    epochs: int,
    validation: str | Path | None = None,
    validation_split: float | None = None,
    normalize: str | None = None,
    any_range: bool = False,
    augment: str = "",
    seed: int = 0,
    shuffle: bool = True,
    schedule: str | None = None,
    patience: int | None = None,
    ema: float | None = None,
    metrics: str | None = None,
    save_every: int | None = None,
    tokenizer: str | Path | None = None,
    chat_template: str | Path | None = None,
    mask_prompt: bool = False,
    truncate: bool = False,
    unpacked: bool = False,
    sample: str | None = None,
    log: str | Path | None = None,
    elastic: bool = False,
    device: str | Path = "host",
    budget: int | str | None = None,
    deadline: str | None = None,
    importance: str | Path | None = None,
    importance_at_least: str | None = None,
    max_energy: str | None = None,
    time_limit_s: float = TRAINING_TIME_S,
    gap: float = TRAINING_GAP,
    resume: bool = False,
    force: bool = False,
    progress: Progress = silent,
    note: Progress = silent,
    on_epoch: Callable[[EpochRow], None] = lambda row: None,
) -> Mapping[str, Any]:
    """Train on data as `poetc train` does, and write the best weights to the ONNX file `out`.

    Returns the answer of `--json`.

    `model`: an ONNX file with all shapes fixed, a solved directory, or a `Model` with its batch and training options.
    `data` and `validation` name sources as on the command line: "d.npz:x_train,y_train", a folder of images, ...
    `tokenizer`, `chat_template`, `mask_prompt`, `truncate`, `unpacked` and `sample`, a prompt, are of texts.
    `resume` goes on after an interruption, with the same options. `note` gets remarkable facts about the data.
    A resumed training keeps its options where they equal their defaults here. `schedule` None begins as "constant".
    """
    from poetc.api import Model

    arguments = {name: str(value) if isinstance(value, Path) else value for name, value in locals().items()}
    loaded = model if isinstance(model, Model) else None
    path = loaded.path if loaded else Path(str(model))
    training = loaded.training if loaded else TrainingOptions()
    texts = {option.name: arguments[option.name] for option in OF_KINDS}
    loop: dict[str, Any] = {option.name: arguments[option.name] for option in (*DATA, *RUN) if option.name not in texts}
    limits: dict[str, Any] = {
        "device": str(device),
        "budget": None if budget is None else str(budget),
        "deadline": deadline,
        "batch": loaded.batch if loaded else None,
        "time_limit": time_limit_s,
        "gap": gap,
    }
    best = of_best_updates(importance, importance_at_least, max_energy) | {"importance": arguments["importance"]}
    fixed = {"objective": None, "paging": True, "dma": False, "max_written": None, "state": "auto"}
    fixed |= {"solver": "poetc", "processors": AUTO, "fixed_order": False, "group": "auto", "model": str(path)}
    if resume:
        asked = {**loop, **texts, **limits, **best}
        begun = recorded_options(Path(out), {**_explicit(asked, training), **fixed})
        training = TrainingOptions(**{o.name: begun[o.name] for o in TRAINING if o.name in begun})
        for part in (loop, texts, limits, best):
            part |= {name: begun[name] for name in part if begun.get(name) is not None}
    loop["schedule"] = loop["schedule"] or CONSTANT
    options = {**loop, **texts, **limits, **fixed, **best, **asdict(training)}
    source: SolveRequest | Path = path
    if not path.is_dir():
        source = SolveRequest(
            model=ModelRequest(source=path, batch=limits["batch"], device=limits["device"], training=training),
            budget=limits["budget"],
            deadline=limits["deadline"],
            options=SolveOptions(time_limit_s=limits["time_limit"], gap=limits["gap"]),
            **of_best_updates(best["importance"], best["importance_at_least"], best["max_energy"]),
        )
    request = TrainRequest(
        source=source, out=Path(out), resume=resume, force=force, options=options, texts=texts, **loop
    )
    document = train_on_data(request, _Watcher(on_epoch), progress, note)
    assert document is not None  # nothing asks it to stop
    return document


def _explicit(arguments: Mapping[str, Any], training: TrainingOptions) -> dict[str, Any]:
    """The options that somebody gave: those with other values than the defaults."""
    defaults = {name: parameter.default for name, parameter in signature(train).parameters.items()}
    defaults["time_limit"] = defaults["time_limit_s"]
    explicit = {n: v for n, v in arguments.items() if v != defaults.get(n)} | training.changed()
    if training.learning_rate == TrainingOptions(precision=training.precision).learning_rate:
        explicit.pop("learning_rate", None)  # its default depends on the precision
    return explicit


def of_best_updates(importance: str | Path | None, at_least: str | None, max_energy: str | None) -> dict[str, Any]:
    """The fields of a `SolveRequest` for `--train best`."""
    path = None if importance is None else Path(importance)
    return {"importance": path, "importance_at_least": at_least, "max_energy": max_energy}


@dataclass(frozen=True, slots=True)
class _Watcher:
    """Tells a function of the caller about each epoch."""

    tell: Callable[[EpochRow], None]

    def on_start(self, epochs: int, batches: int | None) -> None: ...

    def on_step(
        self, epoch: int, batch: int, loss: float, mean: float, accuracy: float | None, rate: float
    ) -> None: ...

    def on_epoch(self, row: EpochRow, best: bool) -> None:
        self.tell(row)

    def on_end(self) -> None: ...
