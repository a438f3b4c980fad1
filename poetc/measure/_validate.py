"""Checks that the emitted C computes as it should: against the interpreter, against keep-all, against a reference."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, MutableMapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from poetc.boards import Numerics
from poetc.emit import share_layout
from poetc.errors import UsageError
from poetc.events import Progress, silent
from poetc.files import scratch_directory
from poetc.graph import Array, DType, Role, Value
from poetc.measure._host import PATTERNS, HostModel, compile_library
from poetc.measure._spilled import Spilled, digest, largest, largest_difference, quotient_of_difference
from poetc.ops import spec
from poetc.ops.sgd_of import is_sgd_of
from poetc.program import (
    Call,
    Interpreter,
    Program,
    Space,
    all_inputs,
    bank_high_water,
    require_usable,
    sample_inputs,
)

LOSS_TOLERANCE = 1e-6
GRADIENT_TOLERANCE = 2e-5
# A share of the largest gradient: below it, a tensor's error is measured absolutely. So one unit in the last place of
# the largest passes. A gradient whose terms cancel (a key bias of attention) is rounding noise of that size.
EPSILON = float(np.finfo(np.float32).eps)
GRADIENT_FLOOR = EPSILON / GRADIENT_TOLERANCE

# Roundings within a step cost more than those of its inputs: so many times as much is no fault.
CONDITION = 8
# But no more: a gradient that is zero, or twice as large, is wrong in a step of any condition.
MOST_ROUNDING = 0.5

# A learning rate, a power of two, beside whose step the weights vanish: how far they move is the gradient, to full
# precision.
TELLING_RATE = 2.0**30

# Half the distance of neighbours in 16 bits, of numbers near 1: a last bit of 32 may round one of them the other way.
NARROW_ROUNDING = {DType.F16: 2.0**-11, DType.BF16: 2.0**-8}


@dataclass(frozen=True, slots=True)
class TensorError:
    """One tensor: max |difference| / max |expected|, the latter floored for gradients (see `GRADIENT_FLOOR`)."""

    name: str
    quantity: str  # gradient | statistic
    rel_error: float
    max_abs: float  # Maximum of the expected values.


@dataclass(frozen=True, slots=True)
class BankPeak:
    """The peak in a bank of RAM, from where its part of the arena begins."""

    name: str
    predicted_bytes: int
    measured_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Validation:
    """`against`: the base of the errors, "reference" or "interpreter". Sizes are of the arena, in bytes.

    Where the arena is spread over banks of RAM, its peaks are sums over `banks`.
    """

    against: str
    steps: int
    loss: float
    loss_rel_error: float
    max_grad_rel_error: float
    max_statistic_rel_error: float
    interpreter_loss_rel_error: float
    interpreter_max_grad_rel_error: float
    bit_identical_to_keep_all: bool
    first_difference: str  # the first tensor that differs from keep-all, "" if none
    peak_predicted_bytes: int
    peak_measured_bytes: int
    page_ins: int  # over all steps
    page_outs: int
    tensors: tuple[TensorError, ...]
    banks: tuple[BankPeak, ...] = ()
    saved_errors: tuple[TensorError, ...] = ()  # of gradients, by lossy encodings of saved tensors
    narrow_rounding: float = 0.0  # relative: of the tensors that the step stores in 16 bits
    # Where an error is above its tolerance: the same errors of the interpreter by last bits of the inputs.
    last_bits_grad_rel_error: float = 0.0
    last_bits_loss_rel_error: float = 0.0
    # There too: a last bit of a probability near 1, as a share of a loss that is its distance from 1.
    probability_rel_error: float = 0.0

    def problems(self, loss: float = LOSS_TOLERANCE, gradient: float = GRADIENT_TOLERANCE) -> tuple[str, ...]:
        """The faults, one line each; empty if all is well. A NaN is never well.

        A lossy encoding may round another way where the interpreter's last bit differs. So gradients may differ by as
        much as lossy encodings or tensors in 16 bits cost them. Near a tie, two almost equal numbers are
        rounded to neighbours in 16 bits: twice the error of one rounding. A step may be ill-conditioned, as with batch
        normalisation over few values. Then gradients may differ as much as last bits of the inputs change them. Where
        the probability p of the target is near 1, the loss is a small 1 - p, whose relative error is large.
        """
        unit, sure = 2 * self.narrow_rounding, CONDITION * self.probability_rel_error
        errors = self.last_bits_grad_rel_error, self.last_bits_loss_rel_error
        rounding, of_loss = (min(MOST_ROUNDING, CONDITION * error) for error in errors)
        gradient = max(gradient, *(e.rel_error for e in self.saved_errors), unit, rounding, sure)
        loss = max(loss, unit, of_loss, sure)
        checks = (
            (self.loss_rel_error <= loss, f"loss differs from the {self.against} by {self.loss_rel_error:.3g}"),
            (
                self.max_grad_rel_error <= gradient,
                f"gradients differ from the {self.against} by {self.max_grad_rel_error:.3g}",
            ),
            (
                self.max_statistic_rel_error <= gradient,
                f"running statistics differ from the {self.against} by {self.max_statistic_rel_error:.3g}",
            ),
            (self.bit_identical_to_keep_all, f"{self.first_difference} differs from keep-all"),
            (
                self.peak_measured_bytes == self.peak_predicted_bytes,
                f"measured peak {self.peak_measured_bytes} bytes, predicted {self.peak_predicted_bytes}",
            ),
            *(
                (
                    b.measured_bytes == b.predicted_bytes,
                    f"measured peak in {b.name} {b.measured_bytes} bytes, predicted {b.predicted_bytes}",
                )
                for b in self.banks
            ),
        )
        return tuple(text for holds, text in checks if not holds)

    def to_json(self) -> dict[str, Any]:
        optional = (
            "banks",
            "narrow_rounding",
            "last_bits_grad_rel_error",
            "last_bits_loss_rel_error",
            "probability_rel_error",
        )
        left_out = [name for name in optional if not getattr(self, name)]
        return {k: v for k, v in asdict(self).items() if k not in left_out}


def validate(
    program: Program,
    keep_all: Program,
    values: Mapping[str, Value],
    *,
    reference: Mapping[str, Array] | None = None,
    source: str = "the reference",
    zero_gradients: Collection[str] = (),
    steps: int,
    seed: int = 0,
    directory: Path | None = None,
    exact: Program | None = None,
    numerics: Numerics = "separate",
    progress: Progress = silent,
) -> Validation:
    """Compile and run both programs (the same training graph under its schedule and under keep-all) and compare.

    `reference` is a mapping as loaded from an .npz: `in.NAME`, `target`, `loss`, `grad.NAME`, and optionally
    `bnmean.NAME`, `bnvar_onnx.NAME`; its inputs are then used for every step. Otherwise inputs are made up from
    `seed`, new ones for each step. `source` names the reference in errors. Gradients of `zero_gradients` are zero
    without being computed. The first step is compared with the interpreter and the reference; loss, gradients and
    state of all `steps` bit by bit with keep-all. `exact`: the step without lossy encodings of saved tensors, whose
    gradients tell the error of those encodings. Raises UsageError where the reference does not fit the program.
    """
    batches = _batches(program, reference, source, zero_gradients, steps, seed)
    with scratch_directory("poetc-validate-") as scratch:
        build = partial(compile_library, numerics=numerics)
        # One after the other, with gradients in files: each has the weights in an arena of its own.
        predicted = bank_high_water(program) or (program.high_water_bytes,)
        progress("compiling")
        makers = _build(program, replace(keep_all, name="keep_all"), values, directory or scratch, build)
        progress("running the schedule")
        with makers[0]() as model:
            gradients = Spilled(scratch / "of_program")
            scheduled = recorded(model, batches, gradients, _statistics(keep_all))
            page_ins, page_outs = model.page_ins, model.page_outs
            touched = model.touched_bytes(PATTERNS[0])
            model.reset(PATTERNS[1])
            unstored = _moved_weights(model, batches[0], Spilled(scratch / "unstored"))
            measured = tuple(map(max, touched, model.touched_bytes(PATTERNS[1])))
            if measured != predicted:  # by chance a byte may equal both, as these steps had other numbers
                measured = model.measure_peaks(batches[0])
        del model  # and its arena
        gradients.update(unstored)
        with makers[1]() as other:
            progress("running keep-all")
            kept = recorded(other, batches, Spilled(scratch / "of_keep_all"), ())
        del other
        difference, loss, state = first_difference(scheduled, kept, program), scheduled.losses[0], scheduled.state
        progress("running the interpreter")
        interpreter = Interpreter(program, values)
        interpreter.probes = Spilled(scratch / "of_interpreter")
        interpreted_loss = interpreter.run(batches[0])
        statistics, expected = {n: interpreter.state(n) for n in state}, interpreter.probes
        del interpreter  # and its arena
        by_interpreter, by_statistics = _gradient_errors(gradients, expected), _statistic_errors(state, statistics)
        last_bits = 0.0, 0.0
        errors = _worst(by_interpreter, "gradient"), _worst(by_statistics, "statistic")
        loss_error = _relative(loss, interpreted_loss)
        if reference is None and not (max(errors) <= GRADIENT_TOLERANCE and loss_error <= LOSS_TOLERANCE):
            last_bits = _by_last_bits(program, values, batches[0], expected, interpreted_loss, scratch / "nudged")
        saved_errors = []
        if exact is not None:
            without = _gradients(exact, values, batches[0], scratch / "exact", build)
            saved_errors = [_norm_error(name, gradients[name], without[name]) for name in sorted(without)]
        from_reference = None
        if reference is not None:
            zeros = {n: np.zeros_like(g) for n, g in _named(reference, "grad.").items() if n in zero_gradients}
            gradients.update(zeros)
            from_reference = _reference_errors(reference, gradients, state)
    banks = tuple(BankPeak(b.name, *peaks) for b, *peaks in zip(program.banks, predicted, measured, strict=False))
    expected_loss, tensors = interpreted_loss, [*by_interpreter, *by_statistics]
    if reference is not None:
        expected_loss = float(np.asarray(reference["loss"]))
    if from_reference is not None:
        tensors = from_reference
    floor = EPSILON if _is_of_probabilities(program) else 0.0
    loss_error = _relative(loss, expected_loss, floor)
    worst = max(_worst(tensors, "gradient"), _worst(tensors, "statistic"))
    is_right = worst <= GRADIENT_TOLERANCE and loss_error <= LOSS_TOLERANCE
    return Validation(
        against="interpreter" if reference is None else "reference",
        steps=steps,
        loss=loss,
        loss_rel_error=loss_error,
        max_grad_rel_error=_worst(tensors, "gradient"),
        max_statistic_rel_error=_worst(tensors, "statistic"),
        interpreter_loss_rel_error=_relative(loss, interpreted_loss, floor),
        interpreter_max_grad_rel_error=_worst(by_interpreter, "gradient"),
        bit_identical_to_keep_all=not difference,
        first_difference=difference,
        peak_predicted_bytes=sum(predicted),
        peak_measured_bytes=sum(measured),
        banks=banks,
        page_ins=page_ins,
        page_outs=page_outs,
        tensors=tuple(sorted(tensors, key=lambda t: (t.quantity, t.name))),
        saved_errors=tuple(saved_errors),
        narrow_rounding=_narrow_rounding(program),
        last_bits_grad_rel_error=last_bits[0],
        last_bits_loss_rel_error=last_bits[1],
        probability_rel_error=0.0 if is_right else floor / max(abs(expected_loss), EPSILON),
    )


def _by_last_bits(
    program: Program,
    values: Mapping[str, Value],
    batch: Mapping[str, Array],
    expected: Mapping[str, Array],
    expected_loss: float,
    directory: Path,
) -> tuple[float, float]:
    """The largest error of gradients, and that of the loss, where float inputs change by a last bit of the largest.

    So do the rows of tables that integers name: they are the numbers that a step of tokens begins with. (0, 0) where
    a step has neither.
    """
    nudges = dict[str, Array]()
    for binding in program.inputs:
        x = np.asarray(batch[binding.name])
        if x.dtype == np.float32 and x.size:
            nudges[binding.name] = _last_bits(x)
    names_rows = any(isinstance(call, Call) and _names_rows(call) for call in program.instructions)
    gradient = loss = 0.0
    # Both ways: a number beside the kink of a ReLU comes to its other side by one of them.
    for sign in (1, -1) if nudges or names_rows else ():
        interpreter = Interpreter(program, values)
        interpreter.changed = partial(_moved_rows, sign)
        interpreter.probes = Spilled(directory / str(sign))
        nudged_loss = interpreter.run({**batch, **{n: batch[n] + sign * nudge for n, nudge in nudges.items()}})
        gradient = max(gradient, _worst(_gradient_errors(interpreter.probes, expected), "gradient"))
        loss = max(loss, _relative(nudged_loss, expected_loss))
    return gradient, loss


def _last_bits(x: Array) -> Array:
    """A last bit of the largest number, with random signs: the same for the same shape."""
    unit = np.finfo(np.float32).eps * np.abs(x).max(initial=0)
    return np.asarray(np.where(np.random.default_rng(0).random(x.shape) < 0.5, -unit, unit), np.float32)


def _names_rows(call: Call) -> bool:
    """Whether it reads rows of a table of floats that numbers of the step name."""
    reads = spec(call.kind).reads_rows and not is_sgd_of(call.kind)
    return reads and call.outputs[0].type.dtype is DType.F32 and call.inputs[-1].space is not Space.FLASH


def _moved_rows(sign: int, call: Call, result: Array) -> Array:
    return np.asarray(result + np.float32(sign) * _last_bits(result)) if _names_rows(call) else result


def _is_of_probabilities(program: Program) -> bool:
    """Whether the loss of the step is one of them, and none whose gradient is a sum of the other probabilities."""
    calls = [call for call in program.instructions if isinstance(call, Call) and spec(call.kind).of_probabilities]
    return bool(calls) and not any(call.attributes.get("gamma") for call in calls)


def _narrow_rounding(program: Program) -> float:
    types = {operand.type.dtype for call in program.instructions if isinstance(call, Call) for operand in call.outputs}
    return max((NARROW_ROUNDING[t] for t in types if t in NARROW_ROUNDING), default=0.0)


def _gradients(
    program: Program,
    values: Mapping[str, Value],
    batch: Mapping[str, Array],
    directory: Path,
    build: Callable[..., Path],
) -> Mapping[str, Array]:
    """The gradients of a step of another program, compiled and run on this machine."""
    library = build([replace(program, name="exact")], values, directory)
    with HostModel(library, [replace(program, name="exact")], values) as model:
        unstored = unstored_gradients(model, batch, Spilled(directory / "unstored"))
        model.probes = Spilled(directory / "gradients")
        model.run(batch)
        model.probes.update(unstored)
        return model.probes


def _statistics(keep_all: Program) -> set[str]:
    """The names of the running statistics."""
    return {b.name for b in keep_all.state if b.role is Role.STATISTIC}


def _build(
    program: Program, keep_all: Program, values: Mapping[str, Value], directory: Path, build: Callable[..., Path]
) -> tuple[Callable[[], HostModel], Callable[[], HostModel]]:
    """From one library if they can share one, since most of the time goes into compiling kernels."""
    if share_layout(program, keep_all):
        libraries = [build([program, keep_all], values, directory)] * 2
    else:
        libraries = [build([p], values, directory / p.name) for p in (program, keep_all)]
    first, second = (
        partial(HostModel, at, [p], values, pattern=filling)
        for at, p, filling in zip(libraries, (program, keep_all), PATTERNS, strict=True)
    )
    return first, second


def _batches(
    program: Program,
    reference: Mapping[str, Array] | None,
    source: str,
    zero_gradients: Collection[str],
    steps: int,
    seed: int,
) -> list[Mapping[str, Array]]:
    if reference is None:
        return [sample_inputs(program, seed + step) for step in range(steps)]
    inputs: dict[str, Array] = {}
    for binding in all_inputs(program):
        key = "target" if binding.role is Role.TARGET else f"in.{binding.name}"
        if key not in reference:
            raise UsageError(f"{source} has no {key!r}: it is of another model")
        array = np.asarray(reference[key])
        if array.shape != binding.operand.type.shape:
            raise UsageError(
                f"{source} gives {key!r} in shape {array.shape}, the program takes {binding.operand.type.shape}"
            )
        inputs[binding.name] = array
    named = {b.name: "target" if b.role is Role.TARGET else f"in.{b.name}" for b in all_inputs(program)}
    require_usable(program, inputs, source, named)
    if "loss" not in reference:
        raise UsageError(f"{source} has no 'loss'")
    known = program.probes.keys() | _unstored(program).keys()
    stored = {b.name for b in program.state} | {p.tensor for p in program.pages if p.image}
    for what, keys, has in (
        ("compute the gradient of", _named(reference, "grad."), known | set(zero_gradients)),
        ("keep", _named(reference, "bnmean.") | _named(reference, "bnvar_onnx."), stored),
    ):
        missing = sorted(keys.keys() - has)
        if missing:
            raise UsageError(f"the program does not {what} {', '.join(missing[:5])}, which {source} has")
    shapes = {name: operand.type.shape for name, (_, operand) in program.probes.items()}
    shapes |= {b.name: b.operand.type.shape for b in program.state if b.name in _unstored(program)}
    for name, gradient in _named(reference, "grad.").items():
        reference_shape, shape = np.shape(gradient), shapes.get(name)
        if shape is not None and reference_shape != shape:
            raise UsageError(
                f"{source} gives 'grad.{name}' in shape {reference_shape}, the program computes it in {shape}"
            )
    return [inputs] * steps


@dataclass(frozen=True, slots=True)
class Recorded:
    """The steps of a program: losses, and digests of gradients and state; `state`: arrays after the first step."""

    losses: list[float]
    gradients: list[dict[str, bytes]]
    states: list[dict[str, bytes]]
    state: dict[str, Array]


def recorded(
    model: HostModel,
    batches: Sequence[Mapping[str, Array]],
    gradients: Spilled,
    kept: Collection[str],
) -> Recorded:
    """Run all `batches`; into `gradients` go those of the first step. `kept`: state that is held, by name."""
    record = Recorded([], [], [], {})
    model.probes = gradients
    for batch in batches:
        record.losses.append(model.run(batch))
        probes = model.probes
        assert isinstance(probes, Spilled | _Digests)
        record.gradients.append({name: probes.digest(name) for name in probes})
        record.states.append({name: digest(model.held_state(name)) for name in model.state_names()})
        if len(record.losses) == 1:
            record.state.update({name: model.state(name) for name in model.state_names() if name in kept})
            model.probes = _Digests()
    return record


class _Digests(dict[str, Array]):
    """Gradients of which the digest alone is kept, as an array of bytes."""

    def __setitem__(self, name: str, array: Array) -> None:
        super().__setitem__(name, np.frombuffer(digest(array), np.uint8))

    def digest(self, name: str) -> bytes:
        return self[name].tobytes()


def first_difference(recorded: Recorded, keep_all: Recorded, program: Program) -> str:
    """The first tensor whose bits differ, and its step; "" where none does.

    A gradient that passes through a window is nowhere whole. The weights that it moves show it.
    """
    for step in range(len(recorded.losses)):
        if np.float32(recorded.losses[step]).tobytes() != np.float32(keep_all.losses[step]).tobytes():
            return f"step {step + 1}: the loss"
        a, b = recorded.gradients[step], keep_all.gradients[step]
        same = a.keys() == b.keys() or (program.has_blocks and a.keys() < b.keys())
        if not same or recorded.states[step].keys() != keep_all.states[step].keys():
            return f"step {step + 1}: the set of tensors"
        for what, one, other in (("gradient of", a, b), ("state", recorded.states[step], keep_all.states[step])):
            for name in sorted(one.keys() & other.keys()):
                if one[name] != other[name]:
                    return f"step {step + 1}: the {what} {name}"
    return ""


def _unstored(program: Program) -> dict[str, str]:
    """Parameters whose gradient no tensor holds (`poetc.ops.sgd_of`), and the learning rate that each moves by."""
    calls = (i for i in program.instructions if isinstance(i, Call) and is_sgd_of(i.kind))
    return {call.inputs[0].tensor: call.inputs[-1].tensor for call in calls}


def unstored_gradients(
    model: HostModel, batch: Mapping[str, Array], gradients: MutableMapping[str, Array]
) -> MutableMapping[str, Array]:
    """Into `gradients` the gradients of a step that no tensor holds, by how far they move the weights.

    `gradients` must copy its arrays. The model is reset afterwards.
    """
    if _unstored(model.program):
        _moved_weights(model, batch, gradients)
    model.reset()
    return gradients


def _moved_weights(
    model: HostModel, batch: Mapping[str, Array], gradients: MutableMapping[str, Array]
) -> MutableMapping[str, Array]:
    """The same with a step in any case, and without a reset."""
    moved = _unstored(model.program)
    for name in moved:
        gradients[name] = model.held_state(name)
    for rate in set(moved.values()):
        model.set_state(rate, np.array([TELLING_RATE], np.float32))
    model.probes = _Digests()
    model.run(batch)
    for name in moved:
        gradients[name] = quotient_of_difference(gradients[name], model.held_state(name), TELLING_RATE)
    return gradients


# --- errors -----------------------------------------------------------------------------------------------------------


def _relative(value: float, expected: float, floor: float = 0.0) -> float:
    return abs(value - expected) / max(abs(expected), floor, float(np.finfo(np.float32).tiny))


def _error(name: str, quantity: str, actual: Array, expected: Array, floor: float) -> TensorError:
    if actual.shape != expected.shape:
        raise UsageError(f"{name}: shape {actual.shape}, the reference has {expected.shape}")
    scale = max(largest(expected), floor, float(np.finfo(np.float32).tiny))
    return TensorError(name, quantity, largest_difference(actual, expected) / scale, largest(expected))


def _norm_error(name: str, actual: Array, expected: Array) -> TensorError:
    """The norm of the difference, as a share of the norm of the expected array."""
    size = float(np.linalg.norm(np.asarray(expected, np.float64)))
    difference = float(np.linalg.norm(np.asarray(actual, np.float64) - np.asarray(expected, np.float64)))
    return TensorError(name, "gradient", difference / max(size, float(np.finfo(np.float32).tiny)), largest(expected))


def _gradient_errors(actual: Mapping[str, Array], expected: Mapping[str, Array]) -> list[TensorError]:
    floor = GRADIENT_FLOOR * max((largest(g) for g in expected.values()), default=0.0)
    return [_error(n, "gradient", actual[n], expected[n], floor) for n in sorted(expected)]


def _statistic_errors(actual: Mapping[str, Array], expected: Mapping[str, Array]) -> list[TensorError]:
    return [_error(n, "statistic", actual[n], expected[n], 0.0) for n in sorted(expected)]


def _reference_errors(
    reference: Mapping[str, Array], gradients: Mapping[str, Array], state: Mapping[str, Array]
) -> list[TensorError]:
    statistics = _named(reference, "bnmean.") | _named(reference, "bnvar_onnx.")
    return [*_gradient_errors(gradients, _named(reference, "grad.")), *_statistic_errors(state, statistics)]


def _named(reference: Mapping[str, Array], prefix: str) -> dict[str, Array]:
    return {k.removeprefix(prefix): np.asarray(reference[k]) for k in reference if k.startswith(prefix)}


def _worst(tensors: list[TensorError], quantity: str) -> float:
    """The largest error; NaN if any is."""
    errors = [t.rel_error for t in tensors if t.quantity == quantity]
    return float(np.max(errors)) if errors else 0.0
