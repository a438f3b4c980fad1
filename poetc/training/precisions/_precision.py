"""The declaration of a precision: its name, its options, its model and its training step."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from poetc.declare import Option, Registry
from poetc.graph import Array, Graph, TrainingGraph
from poetc.training import _build
from poetc.training._updates import Adapter, Channels, Update, Whole
from poetc.training.precisions._algorithm import Algorithm, recorded_algorithm
from poetc.training.precisions._mixed_step import build_mixed

# An option that several precisions have.
ROUNDING = Option(
    name="rounding",
    default="",
    metavar="act=HOW,err=HOW,update=HOW",
    default_text="nearest for the first two, stochastic for updates",
    help="Rounding of activations, errors and updates, each nearest or stochastic; for qas: of updates.",
)


def _same(graph: Graph, options: Any) -> Graph:
    return graph


def _no_check(options: Any) -> None:
    pass


@dataclass(frozen=True, slots=True, kw_only=True)
class Precision:
    """`help`: its numbers, in words. `lower`: the model in these numbers; `build`: its training step.

    `narrow`: the form of activations and gradients, in words, where it has fewer than 32 bits. `file_values`: the
    file's weights, from the model of the file, the lowered model and its trained state; None: weights stay floats.
    `defaults`: of options that others have with another default. `check` raises UsageError for options that exclude
    each other. `reads_codes`: QDQ models keep their codes. `updates`: the kinds of update that it can train.
    `depends_on_parts`: another number of micro-batches trains other weights.
    `algorithm`: its description, where it is one of mixed precision. `options_of`: the options by which this precision
    is another algorithm, whose products are its own.
    """

    name: str
    help: str
    options: tuple[Option, ...] = ()
    defaults: Mapping[str, float] = field(default_factory=dict)
    narrow: str = ""
    reads_codes: bool = False
    depends_on_parts: bool = False
    updates: tuple[type[Update], ...] = (Whole, Channels, Adapter)
    check: Callable[[Any], None] = _no_check
    algorithm: Algorithm | None = None
    options_of: Callable[[Algorithm], dict[str, str]] | None = None
    lower: Callable[[Graph, Any], Graph] = _same
    build: Callable[..., TrainingGraph] = _build.build
    file_values: Callable[[Graph, Graph, Mapping[str, Array]], dict[str, Array]] | None = None

    @property
    def rounds_factors(self) -> bool:
        """Whether products of floats read rounded factors."""
        return self.algorithm is not None and self.options_of is None

    @property
    def is_integer(self) -> bool:
        """Whether weights are integers, so that the file's numbers come back by `file_values`."""
        return self.file_values is not None


FILE = "FILE.yaml"  # the name of a precision that a file describes


class _Precisions(Registry[Precision]):
    """By name, or by the text of a description."""

    def __getitem__(self, name: str) -> Precision:
        return mixed(FILE, recorded_algorithm(name)) if _is_text(name) else super().__getitem__(name)


def translated(text: str) -> tuple[str, dict[str, str]]:
    """The value of --precision for a name or a description, and the options that say the rest of a description."""
    if _is_text(text):
        algorithm = recorded_algorithm(text)
        for precision in PRECISIONS.values():
            own = precision.algorithm
            if precision.options_of is not None and own is not None and own.products == algorithm.products:
                return precision.name, precision.options_of(algorithm)
    return text, {}


def _is_text(name: str) -> bool:
    return name.startswith("{")


PRECISIONS: Registry[Precision] = _Precisions("--precision")


def declare(precision: Precision) -> None:
    """Add a precision to the choices of --precision."""
    PRECISIONS.add(precision.name, precision)


def mixed(name: str, algorithm: Algorithm) -> Precision:
    """The precision of an algorithm that rounds the factors of products."""
    build = partial(build_mixed, algorithm)
    return Precision(name=name, help="factors in few bits", algorithm=algorithm, build=build, depends_on_parts=True)
