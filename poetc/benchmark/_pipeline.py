"""Cycles of the kernels' loops by a model of a core's pipeline: GCC's assembly, in llvm-mca.

Every innermost loop of the compiled runtime is run fifty times by the model, with all operands in the first cache
and every branch foretold. A class of kernels takes the mean of its loops, weighted by their instructions. Unrolled
loops over whole vectors are long, and do most of the work.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from poetc import boards
from poetc.devices.core_cycles import has_table
from poetc.errors import UsageError
from poetc.kernels.classes import OTHER, class_of_group, class_of_source
from poetc.runtime import runtime_directory

ITERATIONS = 50
SHORTEST, LONGEST = 3, 600  # instructions of a loop
_LOW, _HIGH = 0.25, 0.75  # quantiles of a class's loops, as its band
_TOGETHER = 32  # loops in one run of llvm-mca
# Where every branch that is taken refills the pipeline in one cycle, or in three, and not in two (tests/arm).
_REFILL_LOW, _REFILL_HIGH = 0.97, 1.03
_KNOWN = 0.75  # share of a loop's instructions that the model must know
_BRANCH = re.compile(r"\t(?:b|b\.?[a-z]{2}|cbn?z|tbn?z|j[a-z]+|le|dls|wls)\s.*?(\.L\w+)$")
_LABEL = re.compile(r"^(\.L\w+):")
_FUNCTION = re.compile(r"^([A-Za-z_]\w*)(?:\.\w+)*:")


@dataclass(frozen=True, slots=True)
class Model:
    """A pipeline model of llvm-mca: `scheduler` is the core that LLVM's numbers are of."""

    cpu: str  # llvm-mca's -mcpu
    scheduler: str
    exact: bool  # of this core, not the nearest one
    since: int = 14  # the release of LLVM that has it


# Read from LLVM 14: lib/Target/AArch64/AArch64.td, lib/Target/ARM/ARM.td. A core that is not named there has no model.
_A57, _M4 = "Cortex-A57", "Cortex-M4"
MODELS = {
    "cortex-a35": Model("cortex-a35", "Cortex-A53", False),
    "cortex-a53": Model("cortex-a53", "Cortex-A53", True),
    "cortex-a55": Model("cortex-a55", "Cortex-A55", True),
    "cortex-a57": Model("cortex-a57", _A57, True),
    "cortex-a72": Model("cortex-a72", _A57, False),
    "cortex-a73": Model("cortex-a73", _A57, False),
    "cortex-a76": Model("cortex-a76", _A57, False),
    "cortex-a78": Model("cortex-a78", _A57, False),
    "cortex-m7": Model("cortex-m7", "Cortex-M7", True),
    "cortex-m55": Model("cortex-m55", _M4, False),
}
# Better ones of later releases: lib/Target/ARM/ARMScheduleM55.td, lib/Target/AArch64/AArch64SchedNeoverseN1.td. A
# Neoverse N1 has the pipelines of a Cortex-A76.
LATER = {
    "cortex-m55": Model("cortex-m55", "Cortex-M55", True, since=16),
    "cortex-a76": Model("neoverse-n1", "Neoverse N1", False, since=16),
}
_PACKAGED = 19  # release that Debian 12 has beside its own 14
_NEWEST = 22  # release of LLVM that is looked for, downwards


@dataclass(frozen=True, slots=True)
class Loop:
    """An innermost loop of the compiled runtime; `body` is its assembly, without directives."""

    source: str  # below runtime/kernels, where most of its lines stand
    function: str
    line: int
    body: tuple[str, ...]

    @property
    def kernel_class(self) -> str:
        of_source = class_of_source(self.source)
        if of_source in ("elementwise", "function", "other") and self.function.startswith("poetc_op_"):
            return class_of_group(self.function.removeprefix("poetc_op_"))
        return of_source


@dataclass(frozen=True, slots=True)
class Timed:
    loop: Loop
    instructions: int
    cycles: float  # of one pass

    @property
    def per_instruction(self) -> float:
        return self.cycles / self.instructions


@dataclass(frozen=True, slots=True)
class ClassCycles:
    """Cycles an instruction of a class of kernels: their mean, and the quartiles of its loops."""

    per_instruction: float
    low: float
    high: float
    loops: int


def model_of(core: str) -> Model | None:
    """None for a core of which Arm has a table. Raises UsageError for an unknown core."""
    if has_table(core):
        return None
    if core not in MODELS:
        raise UsageError(
            f"llvm-mca 14 has no model of {core!r}, nor of one like it; known: {', '.join(sorted(MODELS))}"
        )
    later = LATER.get(core)
    return later if later is not None and tool_for(later)[1] >= later.since else MODELS[core]


def missing_model(core: str) -> str:
    """The advice for a core whose own model only a later llvm-mca has, which is not installed; else empty."""
    later = LATER.get(core)
    if later is None or tool_for(later)[1] >= later.since:
        return ""
    return (
        f"LLVM {later.since} and later model the {later.scheduler}, which fits {core} better than the"
        f" {MODELS[core].scheduler} that was taken: apt-get install llvm-{_PACKAGED}, and fit again"
    )


@cache
def tool_for(model: Model) -> tuple[str, int]:
    """The program and its release: `llvm-mca`, or `llvm-mca-N` where a later one has the model. Release 0: none."""
    plain = "llvm-mca"
    release = _release(plain)
    for number in range(_NEWEST, model.since - 1, -1) if 0 < release < model.since else ():
        if shutil.which(f"{plain}-{number}"):
            return f"{plain}-{number}", _release(f"{plain}-{number}")
    return plain, release


def _release(program: str) -> int:
    if shutil.which(program) is None:
        return 0
    said = subprocess.run([program, "--version"], capture_output=True, text=True, check=False).stdout
    number = re.search(r"LLVM version (\d+)", said)
    return int(number[1]) if number else 0


def target_of(core: boards.Core, numerics: boards.Numerics = "separate") -> tuple[str, str, str]:
    """GCC's prefix and flags for the kernels on a core, as firmware and programs compile them; LLVM's triple."""
    numerical = boards.numerics_flags(numerics)
    if core.is_microcontroller:
        thumb = "-O2 -mthumb -fno-tree-loop-distribute-patterns"
        return "arm-none-eabi-", f"{thumb} {core.flags(exact=True)} {numerical}", "thumbv7em-none-eabihf"
    return "aarch64-linux-gnu-", f"-O2 {core.flags()} {numerical}", "aarch64-linux-gnu"


def assemble(prefix: str, flags: Sequence[str], progress: Callable[[str], None] = lambda _: None) -> Iterator[str]:
    """The assembly of every file of the kernels, with line numbers."""
    if shutil.which(f"{prefix}gcc") is None:
        raise UsageError(f"{prefix}gcc not found: make setup-arm")
    root = runtime_directory()
    folders = [root / "include", root / "src", *sorted(p for p in (root / "kernels").rglob("*") if p.is_dir())]
    command = [f"{prefix}gcc", "-std=c99", *flags, "-g1", f"-I{root / 'kernels'}"]
    command += [f"-I{folder}" for folder in folders]
    for source in sorted((root / "kernels").rglob("*.c")):
        progress(source.stem)
        done = subprocess.run([*command, "-S", "-o", "-", source], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise UsageError(f"{prefix}gcc: {done.stderr.strip().splitlines()[0]}")
        yield done.stdout


def innermost_loops(assembly: str) -> list[Loop]:
    """Loops that hold no other, of the length of kernels' loops and without calls."""
    kernels = (runtime_directory() / "kernels").as_posix() + "/"
    lines = assembly.splitlines()
    labels = {m[1]: at for at, line in enumerate(lines) if (m := _LABEL.match(line))}
    files = dict(re.findall(r'\.file (\d+) "([^"]*)"$', assembly, re.MULTILINE))
    spans: list[tuple[int, int]] = []
    for at, line in enumerate(lines):
        branch = _BRANCH.match(line.split("\t@")[0].rstrip())
        if branch and labels.get(branch[1], at) < at:
            spans.append((labels[branch[1]], at))
    loops: list[Loop] = []
    functions = [(at, m[1]) for at, line in enumerate(lines) if (m := _FUNCTION.match(line))]
    ordered = sorted(set(spans))
    for begin, end in ordered:
        if any(other != (begin, end) and begin <= other[0] and other[1] <= end for other in ordered):
            continue
        function = next((name for at, name in reversed(functions) if at < begin), "")
        body = tuple(_instructions(lines[begin : end + 1]))
        apart = any(re.match(r"(bl|blx|call|b|jmp)\s", word) for word in body)  # not one line of instructions
        if not SHORTEST <= len(body) <= LONGEST or apart:
            continue
        places = re.findall(r"\.loc (\d+) (\d+)", "\n".join(lines[begin : end + 1]))
        counts: dict[str, list[int]] = defaultdict(list)
        for number, line_number in places:
            counts[files.get(number, "").removeprefix(kernels)].append(int(line_number))
        own = {name: at for name, at in counts.items() if not name.startswith(("simd/", "/"))} or counts
        source = max(own, key=lambda name: len(own[name]), default="")
        loops.append(Loop(source, function, min(own.get(source, [0])), body))
    return loops


def _instructions(lines: Iterable[str]) -> Iterator[str]:
    for line in lines:
        text = line.strip()
        if line.startswith("\t") and text and not text.startswith((".", "@", "//", "#")):
            yield text


def run_model(loops: Sequence[Loop], triple: str, cpu: str, program: str = "llvm-mca") -> list[Timed]:
    """Each loop's cycles a pass. Instructions that the model does not know are left out, and cost nothing.

    Such are `it` blocks and comparisons with exceptions on a Cortex-M7. A loop of which the model knows less than
    three quarters is left out altogether.
    """
    if shutil.which(program) is None:
        raise UsageError("llvm-mca not found: apt-get install llvm")
    comment = "//" if triple.startswith("aarch64") else "@" if triple.startswith("thumb") else "#"
    bodies = [
        [line.split(f"\t{comment}")[0] for line in loop.body if not re.match(r"it[te]*\s", line)] for loop in loops
    ]
    result: list[Timed] = []
    for first in range(0, len(loops), _TOGETHER):
        part = bodies[first : first + _TOGETHER]
        cycles = _cycles(part, comment, triple, cpu, program)
        for loop, body, known in zip(loops[first : first + _TOGETHER], part, cycles, strict=True):
            loop_cycles = _without_unknown(body, comment, triple, cpu, program) if known is None else known
            if loop_cycles is not None:
                result.append(Timed(loop, len(loop.body), loop_cycles + _more_registers(loop, cpu)))
    return result


def _more_registers(loop: Loop, cpu: str) -> float:
    """Cycles of loads and stores of several registers that LLVM's model of a Cortex-M7 leaves out.

    One of n registers takes n / 2, since the bus has 64 bits. The model has 2 for all.
    """
    if cpu != "cortex-m7":
        return 0.0
    extra = 0.0
    for line in loop.body:
        registers = re.match(r"(?:v?ldm|v?stm|push|pop|vpush|vpop)[\w.]*\s.*\{(.*)\}", line)
        if registers:
            extra += max(0.0, _count_registers(registers[1]) / 2 - 2)
    return extra


def _count_registers(text: str) -> int:
    """Of a list as `r4, s0-s3`."""
    total = 0
    for part in text.split(","):
        ends = [int(n) for n in re.findall(r"[rsdq](\d+)", part)]
        total += ends[1] - ends[0] + 1 if len(ends) == 2 else 1
    return total


def _mca(bodies: Sequence[Sequence[str]], comment: str, triple: str, cpu: str, program: str) -> tuple[list[float], str]:
    """Cycles of a pass of each body, none where one of them is refused, and llvm-mca's complaints."""
    lines = []
    for number, body in enumerate(bodies):
        lines += [f"{comment} LLVM-MCA-BEGIN {number}", *(f"\t{line}" for line in body), f"{comment} LLVM-MCA-END"]
    more = ["-mattr=+mve.fp"] if cpu == "cortex-m55" else []
    command = [program, f"-mtriple={triple}", f"-mcpu={cpu}", *more, f"-iterations={ITERATIONS}"]
    command += ["-instruction-info=0", "-resource-pressure=0"]
    done = subprocess.run(command, input="\n".join(lines) + "\n", capture_output=True, text=True, check=False)
    cycles = [int(n) / ITERATIONS for n in re.findall(r"^Total Cycles:\s+(\d+)", done.stdout, re.MULTILINE)]
    whole = len(cycles) == len(bodies) and "error:" not in done.stderr
    return (cycles if whole else []), done.stderr


def _cycles(bodies: Sequence[Sequence[str]], comment: str, triple: str, cpu: str, program: str) -> list[float | None]:
    cycles, _ = _mca(bodies, comment, triple, cpu, program)
    return list(cycles) or [None] * len(bodies)


def _without_unknown(body: list[str], comment: str, triple: str, cpu: str, program: str) -> float | None:
    least = _KNOWN * len(body)
    while body and len(body) >= least:
        cycles, complaints = _mca([body], comment, triple, cpu, program)
        if cycles:
            return cycles[0]
        refused = {int(n) - 2 for n in re.findall(r"^<stdin>:(\d+):\d+: error", complaints, re.MULTILINE)}
        unknown = re.search(r"note: instruction:\s+(\w+)", complaints)
        if not refused and unknown:
            refused = {at for at, line in enumerate(body) if line.startswith(unknown[1])}
        if not refused:
            return None
        body = [line for at, line in enumerate(body) if at not in refused]
    return None


def by_class(timed: Iterable[Timed]) -> dict[str, ClassCycles]:
    """Of each class, and of all loops as `other`."""
    groups: dict[str, list[Timed]] = defaultdict(list)
    for t in timed:
        for name in {t.loop.kernel_class, OTHER}:
            groups[name].append(t)
    return {name: _mean(group) for name, group in sorted(groups.items())}


def _mean(group: Sequence[Timed]) -> ClassCycles:
    ordered = sorted(group, key=lambda t: t.per_instruction)
    total = sum(t.instructions for t in ordered)
    mean = sum(t.cycles for t in ordered) / total
    quantiles = []
    for share in (_LOW, _HIGH):
        passed = 0
        for t in ordered:
            passed += t.instructions
            if passed >= share * total:
                quantiles.append(t.per_instruction)
                break
    return ClassCycles(mean, min(quantiles[0], mean), max(quantiles[-1], mean), len(ordered))


def measure_class_cycles(
    core: boards.Core,
    numerics: boards.Numerics = "separate",
    progress: Callable[[str], None] = lambda _: None,
) -> Mapping[str, ClassCycles]:
    """Cycles of a counted instruction by class of kernels; of a counted cycle, 1, where Arm has a table of the core.

    `numerics`: those of the device's programs. Raises UsageError where a tool or a model is missing.
    """
    model = model_of(core.name)
    if model is None:
        return {OTHER: ClassCycles(1.0, _REFILL_LOW, _REFILL_HIGH, 0)}
    prefix, flags, triple = target_of(core, numerics)
    loops = [loop for text in assemble(prefix, flags.split(), progress) for loop in innermost_loops(text)]
    return by_class(run_model(loops, triple, model.cpu, tool_for(model)[0]))
