"""The weights that travel between a client and the server: those that training changes, and no others.

With adapters (`--lora`) that are the adapters, with `--train` the chosen weights. Frozen weights and optimizer state
stay where they are.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from poetc.artifact import Artifact
from poetc.commands.programs import graph_of
from poetc.commands.weights import NUMBERS, file_name, model_of, some
from poetc.errors import CheckFailed, UsageError, shortened
from poetc.graph import Array, DType, Role, materialize
from poetc.training import STORED, codes_of, exponents_of, numbers_of

MAX_UPDATE_NORM = "max-update-norm"  # of a message or a run: the largest L2 norm of the change of all weights
_WEIGHTS = (Role.PARAMETER, Role.STATISTIC)
SHOWN = 12  # digits of a fingerprint in a message


class UnsoundUpdate(CheckFailed):
    """An update that no server may average: a number in it is not finite, or its norm is above the limit."""


@dataclass(frozen=True, slots=True)
class Weight:
    """A tensor that travels: its name in messages, which is that of the ONNX file, and its name in the graph.

    `exponent`: of a weight that is an integer of 24 bits, which travels as the numbers that it stands for. Its layer
    may be folded and transposed, so that its name in messages has the suffix `NUMBERS`.
    """

    name: str
    tensor: str
    shape: tuple[int, ...]
    exponent: int | None = None

    @property
    def state_names(self) -> tuple[str, ...]:
        """The tensors of the session's state that hold it."""
        return (self.tensor,) if self.exponent is None else (self.tensor, f"{self.tensor}{STORED}")

    def from_session(self, state: Mapping[str, Array]) -> Array:
        """Its numbers, from the state of a session."""
        arrays = [state[name] for name in self.state_names]
        return arrays[0] if self.exponent is None else numbers_of(arrays[0], arrays[1], self.exponent)

    def for_session(self, numbers: Array) -> dict[str, Array]:
        """The state of a session, from its numbers."""
        arrays = (numbers,) if self.exponent is None else codes_of(numbers, self.exponent)
        return dict(zip(self.state_names, arrays, strict=True))


@dataclass(frozen=True, slots=True)
class FleetModel:
    """A solved model as a fleet sees it. States by the names of the graph hold numbers, for weights of integers too.

    `fingerprint` is a SHA-256 of the operators, the frozen weights, and the names and shapes of `weights`. Clients with
    other batches, budgets or devices have the same one. `initial` holds `weights` by name, as training starts.
    """

    weights: tuple[Weight, ...]
    fingerprint: str
    initial: Mapping[str, Array]

    @staticmethod
    def of(solved: Artifact) -> FleetModel:
        """The weights and the fingerprint of a solved directory. UsageError for one with trained weights of 8 bits."""
        step, model = graph_of(solved), model_of(solved)
        changed = [n for n, t in step.tensors.items() if n in step.updates and t.role in _WEIGHTS]
        integers = {n for n in changed if step.tensors[n].dtype is not DType.F32}
        short = next((n for n in changed if n in integers and f"{n}{STORED}" not in step.updates), None)
        if short is not None:
            raise UsageError(
                f"{model.name}: trains {short} in 8 bits, which lose an average; solve with --precision niti"
                " --weight-bits 24"
            )
        exponents = exponents_of(step)
        weights = tuple(
            Weight(
                f"{file_name(model, n)}{NUMBERS}" if n in integers else file_name(model, n),
                n,
                tuple(step.tensors[n].shape),
                exponents[n] if n in integers else None,
            )
            for n in changed
        )
        names = [name for w in weights for name in w.state_names]
        start = {n: np.asarray(materialize(step.values[n], step.tensors[n].type)) for n in names}
        return FleetModel(weights, _fingerprint(solved, weights), {w.name: w.from_session(start) for w in weights})

    @property
    def elements(self) -> int:
        """The numbers of all weights that travel."""
        return sum(array.size for array in self.initial.values())

    def arrays(self, state: Mapping[str, Array]) -> dict[str, Array]:
        """The weights that travel, by their names in messages. `state` has the names of the graph."""
        return {w.name: state[w.tensor] for w in self.weights}

    def state(self, received: Mapping[str, Any], fingerprint: str | None = None) -> dict[str, Array]:
        """Received weights by the names of the graph, as floats of 32 bits.

        `fingerprint`: the server's, where it sends one. UsageError, in one line, where the server has another model.
        """
        self.require(fingerprint)
        own = {w.name: w for w in self.weights}
        unknown = [n for n in received if n not in own]
        missing = [n for n in own if n not in received]
        if unknown or missing:
            parts = [f"the server sends {some(unknown)}, which it does not train"] if unknown else []
            parts += [f"the server does not send {some(missing)}"] if missing else []
            raise UsageError(f"the client's model is not the server's: {'; '.join(parts)}")
        arrays = {n: np.asarray(a) for n, a in received.items()}
        for name, array in arrays.items():
            if array.shape != own[name].shape:
                raise UsageError(
                    f"the client's model is not the server's: {name} is {list(own[name].shape)} here and"
                    f" {list(array.shape)} there"
                )
            if array.dtype.kind != "f" or not np.isfinite(array).all():
                raise UsageError(f"the server's {name} holds values that are no finite floating-point numbers")
        return {w.tensor: np.ascontiguousarray(arrays[w.name], np.float32) for w in self.weights}

    def listed_state(self, received: Sequence[Any], fingerprint: str | None = None) -> dict[str, Array]:
        """The same for weights without names, in the order of `weights`."""
        self.require(fingerprint)
        if len(received) != len(self.weights):
            raise UsageError(
                f"the client's model is not the server's: the server sends {len(received)} arrays, the client trains"
                f" {len(self.weights)}"
            )
        return self.state({w.name: array for w, array in zip(self.weights, received, strict=True)})

    def require_whole(self, state: Mapping[str, Array]) -> None:
        """UsageError where a state by the names of the graph lacks a weight that travels, or has another shape."""
        missing = [w.name for w in self.weights if w.tensor not in state]
        if missing:
            raise UsageError(f"the state lacks {some(missing)}: give every weight that the fleet trains")
        wrong = next((w for w in self.weights if np.shape(state[w.tensor]) != w.shape), None)
        if wrong is not None:
            shape = list(np.shape(state[wrong.tensor]))
            raise UsageError(f"the state gives {wrong.name} in shape {shape}; the client trains {list(wrong.shape)}")

    def require(self, fingerprint: str | None) -> None:
        """UsageError where the server has another model; None: it sent no fingerprint."""
        if fingerprint is not None and fingerprint != self.fingerprint:
            raise UsageError(
                f"the client's model is not the server's: its fingerprint is {self.fingerprint[:SHOWN]}, the server's"
                f" {shortened(fingerprint[:SHOWN])}"
            )


def require_sound(before: Mapping[str, Array], after: Mapping[str, Array], most_norm: float | None = None) -> None:
    """UnsoundUpdate where an array of `after` has a number that is not finite, or the change's L2 norm is too large.

    Arrays by name, the same names in both. `most_norm`: of the change of all arrays together; None: no limit.
    """
    for name, array in after.items():
        if not np.isfinite(array).all():
            raise UnsoundUpdate(f"{name} holds numbers that are not finite: the training diverged")
    if most_norm is None:
        return
    if not 0 < most_norm < np.inf:
        raise UsageError(f"{MAX_UPDATE_NORM} {most_norm:g}: must be a number above 0")
    squares = (np.sum(np.square(np.subtract(after[n], before[n], dtype=np.float64))) for n in after)
    norm = float(np.sqrt(sum(squares)))
    if norm > most_norm:
        raise UnsoundUpdate(f"the update's norm is {norm:.4g}, above {MAX_UPDATE_NORM} {most_norm:g}")


def _fingerprint(solved: Artifact, weights: Sequence[Weight]) -> str:
    """The properties that all clients share. The batch is none, so attributes and activations are left out."""
    model, total = model_of(solved), hashlib.sha256()
    travelling = {w.tensor for w in weights}
    for operator in model.operators:
        total.update(f"operator {operator.kind}\n".encode())
    for weight in weights:
        total.update(f"trained {weight.name} {list(weight.shape)}\n".encode())
    frozen = sorted(n for n, t in model.tensors.items() if t.role in _WEIGHTS and n not in travelling)
    for name in frozen:
        if name in model.values:
            array = np.ascontiguousarray(materialize(model.values[name], model.tensors[name].type))
            total.update(f"frozen {file_name(model, name)} {list(array.shape)}\n".encode())
            total.update(array.tobytes())
    return total.hexdigest()
