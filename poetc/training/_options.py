"""The methods of TrainingOptions; its fields are declared in `_declarations.py`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

from poetc.declare import require_effect
from poetc.errors import UsageError, shortened
from poetc.ops._integers import ROUNDINGS
from poetc.ops.encoding import FORMATS
from poetc.training._clipping import CLIPS
from poetc.training._declarations import TRAINING
from poetc.training._terms import Term, parse_terms
from poetc.training.precisions import PRECISIONS, translated

_PURPOSES = {"act": "activation", "err": "error", "update": "update"}
_BY_NAME = {option.name: option for option in TRAINING}


class Methods:
    """Hyperparameters as PyTorch defines them: momentum v = momentum·v + g, w -= lr·v; Adam with bias correction.

    Each keyword is an option of the command line, and `poetc train --help all` explains it. None stands for the
    default, which may depend on the optimizer or the precision.
    """

    def __post_init__(self: Any) -> None:
        values = self._translated()
        values |= {o.name: o.accept(values[o.name]) for o in TRAINING if values[o.name] is not None}
        values |= {o.name: o.default_in(values) for o in TRAINING if values[o.name] is None}
        for name, value in values.items():
            object.__setattr__(self, name, value)
        require_effect([o for o in TRAINING if o.is_given(values)], self._chosen())
        self._require_consistency()

    def _translated(self: Any) -> dict[str, Any]:
        """The values, with those of options in place of a description that a named precision can follow.

        UsageError for an option that would say it again.
        """
        values = dict(vars(self))
        if values["precision"] is not None:
            text = _BY_NAME["precision"].accept(values["precision"])
            values["precision"], others = translated(text)
            for name, value in others.items():
                option = _BY_NAME[name]
                if values[name] not in (None, option.default, value):
                    raise UsageError(f"{option.flag}: the description of --precision says it; leave it out")
                values[name] = value
        return values

    def _chosen(self: Any) -> dict[str, tuple[str, ...]]:
        """The choices on which other options depend."""
        losses = tuple(term.kind for term in self.losses())
        return {"optimizer": (self.optimizer,), "precision": (PRECISIONS[self.precision].name,), "loss": losses}

    def _require_consistency(self: Any) -> None:
        """UsageError for options that exclude each other, or need another one."""
        if self.head_seed != _BY_NAME["head_seed"].default and not self.new_head:
            raise UsageError(f"--head-seed {self.head_seed} does nothing without --new-head")
        if self.output and self.losses()[0].output:
            raise UsageError("--model-output: --loss names the outputs itself; leave one of them out")
        if self.accumulate is not None:
            if self.micro_batches != 1:
                raise UsageError("--accumulate and --micro-batches: choose one of them")
            if self.clip_norm_late is not None:
                raise UsageError("--accumulate and --clip-norm-late: choose one of them; --clip-norm goes with it")
        if self.class_weights and max(self.class_weights) == 0:
            raise UsageError("--class-weights: all are 0")
        clips = [_BY_NAME[name].flag for name in CLIPS if getattr(self, name) is not None]
        if len(clips) > 1:
            raise UsageError(f"{' and '.join(clips)}: choose one of them")
        precision = PRECISIONS[self.precision]
        if precision.narrow and self.saved in FORMATS:
            raise UsageError(
                f"--saved {self.saved}: --precision {precision.name} saves {precision.narrow} already; leave it out"
            )
        if precision.depends_on_parts and self.micro_batches == "auto":
            raise UsageError(
                f"--micro-batches auto: with --precision {precision.name} their number changes the weights; give one"
            )
        self.roundings()
        precision.check(self)

    @classmethod
    def of_record(cls, record: Mapping[str, Any]) -> Self:
        """The options that a directory or a graph recorded, of this or an earlier version.

        Options that this version does not know are left out, and so are values that have no effect.
        """
        known = {name: value for name, value in record.items() if name in _BY_NAME}
        chosen = {name: str(known.get(name, _BY_NAME[name].default)) for name in ("optimizer", "precision")}
        chosen["precision"] = PRECISIONS[chosen["precision"]].name
        for name, value in chosen.items():
            for option in TRAINING:
                if option.when is not None and option.when.name == name and value not in option.when.values:
                    known.pop(option.name, None)
        return cls(**known)

    def of_groups(self, *groups: str) -> Self:
        """The options of these groups, and the defaults of all others."""
        return type(self)(**{o.name: getattr(self, o.name) for o in TRAINING if o.group in groups})

    def effective(self: Any) -> dict[str, Any]:
        """The options that have an effect beside the others."""
        chosen = self._chosen()
        return {o.name: getattr(self, o.name) for o in TRAINING if o.has_effect(chosen)}

    def changed(self) -> dict[str, Any]:
        """The options with other values than the defaults."""
        default = vars(type(self)())
        return {name: value for name, value in vars(self).items() if value != default[name]}

    def refuse(self, *names: str, reason: str) -> None:
        """UsageError for the first option of `names` that has another value than the default."""
        for name in names:
            option = _BY_NAME[name]
            if getattr(self, name) not in (option.default, []):
                raise UsageError(f"{option.flag}: {reason}; leave it out, or train with --precision f32")

    def roundings(self: Any) -> dict[str, str]:
        """How activations, errors and updates are rounded; as NITI does unless `rounding` says otherwise."""
        chosen = {"activation": "nearest", "error": "nearest", "update": "stochastic"}
        for entry in filter(None, self.rounding.split(",")):
            name, _, value = entry.strip().partition("=")
            if name not in _PURPOSES or value not in ROUNDINGS:
                raise UsageError(
                    f"--rounding {shortened(entry, 80)!r}: write act=HOW,err=HOW,update=HOW, where HOW is one of"
                    f" {', '.join(ROUNDINGS)}"
                )
            chosen[_PURPOSES[name]] = value
        return chosen

    def losses(self: Any) -> tuple[Term, ...]:
        """The parts of `loss`; the first has no output if there is one loss alone."""
        return parse_terms(self.loss)
