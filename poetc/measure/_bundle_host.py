"""The emitted C of a bundle on this machine: every switch is taken, and its bits and peaks are compared."""

from __future__ import annotations

import contextlib
import ctypes
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from poetc.boards import Numerics
from poetc.errors import CheckFailed
from poetc.files import scratch_directory
from poetc.graph import Array, Value
from poetc.measure._bundle_reference import Found, History, Reference, References, after, history_of
from poetc.measure._host import PATTERNS, HostModel, StepError, Transfer, address_of, compile_library
from poetc.program import (
    Call,
    Instruction,
    Move,
    Operand,
    PageOut,
    Program,
    ProgramBundle,
    ProgramSwitch,
    Space,
    all_inputs,
    fit_input,
    sample_inputs,
)
from poetc.runtime.library import Runtime, callbacks

_OBSERVER = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint32)
_SWITCHED = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_uint32)
REQUESTS = 10_000  # at random instructions
FEW = 100  # requests, all of which may ask for the plan that runs


class _Elastic(ctypes.Structure):
    """poetc_elastic, in poetc_bundle.h."""

    _fields_ = [
        ("runtime", Runtime),
        ("bundle", ctypes.c_void_p),
        ("switched", ctypes.c_void_p),
        ("context", ctypes.c_void_p),
        ("wanted", ctypes.c_uint32),
        ("plan", ctypes.c_uint32),
        ("switch_count", ctypes.c_uint32),
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class BundleValidation:
    """`switches`: those of the bundle; `tried`: those that were run. `requests`: random ones, in consecutive runs.

    `failures`: one line each. Bits are compared with the first plan's, peaks with the predicted ones. Where the plans
    have several numbers of micro-batches, bits are those of a step that keeps every tensor and adds up the same parts.
    `histories`: the ways of adding up the batch that were compared.
    """

    plans: int
    switches: int
    tried: int
    requests: int
    histories: int
    failures: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


class BundleModel(HostModel):
    """The plans of a bundle in this process."""

    def __init__(
        self,
        library: Path,
        bundle: ProgramBundle,
        values: Mapping[str, Value],
        store: tuple[Transfer, Transfer] | None = None,
    ) -> None:
        self._elastic = _Elastic()
        self._bundle = bundle
        self.on_instruction: Callable[[int, int], None] | None = None  # (plan, instruction), before each instruction
        self.on_switch: Callable[[int], None] | None = None  # the arena that is in use from now on
        super().__init__(library, bundle.programs, values, store=store)

    def start(self, plan: int, pattern: int = 0) -> None:
        """Anew from the initial values, with one of the plans."""
        self.reset(pattern)
        if self.program.pages and self.program.page_buffer_offset is not None:  # initial pages went through it
            self.arena[self.program.page_buffer_offset :][: self.program.block_bytes] = pattern
        self._observer = _OBSERVER(self._before_instruction)
        self._switched = _SWITCHED(lambda _, arena_bytes: self.on_switch(arena_bytes) if self.on_switch else None)
        self._config.observer = address_of(self._observer)
        code = self._dll.poetc_bundle_init(
            ctypes.byref(self._elastic),
            ctypes.c_void_p(self._address("bundle")),
            ctypes.byref(self._config),
            ctypes.c_void_p(self._address("state") if self.program.state_bytes else None),
            ctypes.c_uint32(self._bundle.programs[plan].arena_bytes),
        )
        self._check("poetc_bundle_init", code)
        self._elastic.switched = address_of(self._switched)

    def unobserved(self) -> None:
        """Without calls before each instruction, until the next start."""
        self._config.observer = None

    def request(self, arena_bytes: int) -> int:
        """The code that poetc_request_budget returns."""
        return int(self._dll.poetc_request_budget(ctypes.byref(self._elastic), ctypes.c_uint32(arena_bytes)))

    def step(self, inputs: Mapping[str, Array]) -> float:
        """One training step, through as many plans as are asked for; returns the loss."""
        for binding in all_inputs(self.program):
            self._view(binding.operand)[...] = fit_input(binding, inputs)
        with callbacks():
            code = self._dll.poetc_bundle_run(ctypes.byref(self._elastic))
        self._check("poetc_bundle_run", code)
        if not (self._before == self._before[0]).all() or not (self._after == self._after[0]).all():
            raise CheckFailed("the emitted C wrote outside its arena")
        self._runtime.run_count = self._elastic.runtime.run_count
        return float(self._dll.poetc_loss(ctypes.byref(self._elastic.runtime)))

    @property
    def plan(self) -> int:
        return int(self._elastic.plan)

    @property
    def at(self) -> int:
        """The instruction of the plan where the last run stopped."""
        return int(self._elastic.runtime.instruction)

    @property
    def switch_count(self) -> int:
        return int(self._elastic.switch_count)

    def _before_instruction(self, _context: int, _runtime: int, index: int) -> int:
        if self.on_instruction is not None:
            self.on_instruction(int(self._elastic.plan), index)
        return 0

    def bits(self) -> dict[str, bytes]:
        """The state, by name."""
        return {name: self.state(name).tobytes() for name in self.state_names()}


def validate_bundle(
    bundle: ProgramBundle,
    values: Mapping[str, Value],
    *,
    most: int | None = None,
    requests: int = REQUESTS,
    reference: Reference | None = None,
    numerics: Numerics = "separate",
) -> BundleValidation:
    """Take every switch, or `most` of them, drawn at random; then runs with random requests at random instructions.

    `reference`: the program that adds up the batch as a history says. Without it bits are compared with those of the
    first plan; that is for plans of one number of micro-batches.
    """
    rng = random.Random(0)
    every = most is None or len(bundle.switches) <= most
    chosen = list(bundle.switches) if every else rng.sample(bundle.switches, most or 0)
    failures: list[str] = []
    with scratch_directory("poetc-bundle-") as scratch:
        library = compile_library(bundle.programs, values, scratch, bundle=bundle, numerics=numerics)
        with BundleModel(library, bundle, values) as model, contextlib.ExitStack() as stack:
            references = None if reference is None else References(reference, scratch, numerics)
            if references is not None:
                stack.callback(references.close)
            batch = sample_inputs(bundle.programs[0], 0)
            known: dict[History, Found] = {}
            for plan in range(len(bundle.programs)):
                model.on_instruction = model.on_switch = None
                model.start(plan)
                result = model.step(batch), model.bits()
                history: History = ((bundle.parts[plan], ""),)
                if history not in known:
                    known[history] = result if references is None else references.step(history, batch)
                failures += [f"plan {plan}: {text}" for text in _differences(known[history], result)]
            for switch in chosen:
                history = history_of(bundle, switch.source, switch.target, switch.join)
                if history not in known:
                    assert references is not None
                    known[history] = references.step(history, batch)
                failures += _take(model, bundle, switch, batch, known[history])
            if references is not None:
                for history in known:
                    failures += references.differences(history, batch)
            failures += _random_requests(model, bundle, requests, rng, references)
    return BundleValidation(
        plans=len(bundle.programs),
        switches=len(bundle.switches),
        tried=len(chosen),
        requests=requests,
        histories=len(known),
        failures=tuple(failures),
    )


def _differences(expected: tuple[float, dict[str, bytes]], actual: tuple[float, dict[str, bytes]]) -> Iterator[str]:
    if np.float32(expected[0]).tobytes() != np.float32(actual[0]).tobytes():
        yield "the loss differs"
    for name in expected[1]:
        if actual[1].get(name) != expected[1][name]:
            yield f"{name} differs"
            return


def _take(
    model: BundleModel,
    bundle: ProgramBundle,
    switch: ProgramSwitch,
    batch: Mapping[str, Array],
    expected: tuple[float, dict[str, bytes]],
) -> list[str]:
    """One switch, from two fillings of the arena: a byte that is written cannot equal both."""
    source, target = bundle.programs[switch.source], bundle.programs[switch.target]
    floor = _live_end(target, switch.join)
    touched = [0, floor]  # ends of the highest bytes before and after the switch
    failures: list[str] = []
    for pattern in PATTERNS:
        model.start(switch.source, pattern)

        def ask(plan: int, instruction: int) -> None:
            if plan == switch.source and instruction == switch.at - 1:
                model.request(target.arena_bytes)

        def switched(_arena_bytes: int, pattern: int = pattern) -> None:
            touched[0] = max(touched[0], _end(model.arena, pattern))
            model.arena[floor:] = pattern

        model.on_instruction, model.on_switch = ask, switched
        try:
            result = model.step(batch), model.bits()
        except StepError as error:
            failures.append(str(error))
            break
        touched[1] = max(touched[1], floor + _end(model.arena[floor:], pattern))
        failures += _differences(expected, result)
        if model.switch_count != 1 or model.plan != switch.target:
            failures.append(f"went over {model.switch_count} times, to plan {model.plan}")
    predicted = before_end(source, switch), _suffix_end(target, switch.join)
    for when, was, said in zip(("before", "after"), touched, predicted, strict=True):
        if was != said:
            failures.append(f"measured peak {when} the switch {was} bytes, predicted {said}")
    begin, end = (
        f"plan {switch.source} at instruction {switch.at}",
        f"plan {switch.target} at instruction {switch.join}",
    )
    return [f"switch from plan {begin} to plan {end}: {text}" for text in dict.fromkeys(failures)]


def _random_requests(
    model: BundleModel,
    bundle: ProgramBundle,
    requests: int,
    rng: random.Random,
    references: References | None,
) -> list[str]:
    """Several a step at random, in consecutive steps beside the first plan; all state is compared after each step."""
    plans = bundle.programs
    chance = 3 / max(len(p.instructions) for p in plans)
    asked, ran = 0, 0
    history: History = ()

    def ask(plan: int, instruction: int) -> None:
        nonlocal asked, ran, history
        part = bundle.parts[plan]
        if instruction == 0:
            history = ((part, ""),)
        elif plan != ran and part != bundle.parts[ran]:
            history = after(history, part, bundle.share(plan, instruction))
        ran = plan
        if rng.random() < chance:
            model.request(rng.choice(plans).arena_bytes)
            asked += 1

    steps: list[Found] = []
    histories: list[History] = []
    model.on_switch = None
    model.start(0)
    model.on_instruction = ask
    while asked < requests:
        steps.append((model.step(sample_inputs(plans[0], len(steps))), model.bits()))
        histories.append(history)
    went = model.switch_count
    model.on_instruction = None
    model.start(0)
    model.unobserved()
    for index, result in enumerate(steps):
        inputs = sample_inputs(plans[0], index)
        if references is None:
            expected = model.step(inputs), model.bits()
        else:
            expected = references.step(histories[index], inputs, steps[index - 1][1] if index else None)
        for text in _differences(expected, result):
            return [f"random requests, step {index + 1}: {text}"]
    return [] if went or requests < FEW or not bundle.switches else ["random requests: no switch was taken"]


# --- peaks ------------------------------------------------------------------------------------------------------------


def _end(memory: Array, pattern: int) -> int:
    changed = np.flatnonzero(memory != pattern)
    return int(changed[-1]) + 1 if len(changed) else 0


def _ends(program: Program, instructions: Sequence[Instruction]) -> Iterator[int]:
    for i in instructions:
        for operand in (*_reads(i), *_writes(i)):
            if operand.space is Space.ARENA:
                yield operand.offset_bytes + operand.type.size_bytes
        if not isinstance(i, Call | Move) and program.page_buffer_offset is not None:
            yield program.page_buffer_offset + program.block_bytes


def before_end(source: Program, switch: ProgramSwitch) -> int:
    """The end of the highest byte of the arena in use until the switch is done."""
    live = [b.operand for b in (*source.state, *all_inputs(source))]
    ends = [o.offset_bytes + o.type.size_bytes for o in live]
    return max(
        source.state_bytes if source.state else 0,
        *ends,
        *_ends(source, (*source.instructions[: switch.at], *switch.instructions)),
    )


def _suffix_end(target: Program, join: int) -> int:
    """The end of the highest byte that the rest of a plan uses."""
    return max(_live_end(target, join), *_ends(target, target.instructions[join:]), 0)


def _live_end(target: Program, join: int) -> int:
    """The end of the highest byte in use when the rest of a plan begins: state, and tensors that it reads."""
    end, written = target.state_bytes, set[str]()
    for i in target.instructions[join:]:
        for operand in _reads(i):
            if operand.tensor not in written and operand.space is Space.ARENA:
                end = max(end, operand.offset_bytes + operand.type.size_bytes)
        written |= {o.tensor for o in _writes(i)}
    for binding in target.outputs:
        if binding.operand.tensor not in written:
            end = max(end, binding.operand.offset_bytes + binding.operand.type.size_bytes)
    return end


def _reads(instruction: Instruction) -> tuple[Operand, ...]:
    match instruction:
        case Call(inputs=inputs):
            return inputs
        case Move(source=source):
            return (source,)
        case PageOut(operand=operand):
            return (operand,)
        case _:
            return ()


def _writes(instruction: Instruction) -> tuple[Operand, ...]:
    match instruction:
        case Call(outputs=outputs, workspace=workspace):
            return (*outputs, *((workspace,) if workspace is not None else ()))
        case PageOut():
            return ()
        case _:
            return (instruction.operand,)
