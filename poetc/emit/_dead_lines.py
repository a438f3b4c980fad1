"""Lines for other processors are left out of the C for a microcontroller.

Kernels have bodies for the vectors of x86, 64-bit Arm and Helium. It is known which of them a core lacks. An `#if` line
that they alone decide is decided here, and so is a macro that only such lines define. The rest stays as it is. The
compiler sees the same code, and the object files are the same.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from poetc.boards import Core

_ELSEWHERE = r"__AVX\w*|__SSE\w*|__FMA__|__F16C__|__x86_64__|__i386__|__aarch64__|__ARM_NEON\w*"
_HELIUM, _FPU = "__ARM_FEATURE_MVE", "__ARM_FP"
# Whoever compiles may define these: whether they are is not known here.
_GIVEN = frozenset({"POETC_BANKS", "POETC_CHAINED", "POETC_FUSED", "POETC_PLAIN_C", "POETC_QUEUES", "POETC_THREADS"})

_ROUNDS = 20  # macros that depend on each other

_INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"', re.MULTILINE)
_KERNEL_HEADER = re.compile(r"(?:^|/)kernels/.*\.h$")
_ASKED = re.compile(r"(?:defined\s*\(?\s*|#\s*ifn?def\s+)(\w+)")
_DIRECTIVE = re.compile(r"^[ \t]*#[ \t]*(\w+)[ \t]*(.*)$", re.DOTALL)
_COMMENT = re.compile(r"/\*.*?\*/|//[^\n]*", re.DOTALL)
_TOKEN = re.compile(
    r"defined\s*\(\s*(\w+)\s*\)|defined\s+(\w+)|(\d+)[uUlL]*|(\w+)|(&&|\|\||[=!<>]=|[-+*/%!<>()?:&|^~])|\s+"
)
_OPERATORS = {"&&": "and", "||": "or", "!": "not"}

_COMPARISONS: dict[type[ast.cmpop], Callable[[int, int], bool]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}

Facts = dict[str, int | None]  # by name of a macro: its value, or None where it is not defined


@dataclass
class _Condition:
    """An `#if` that is open, and its parts so far."""

    outer: bool  # whether lines around it stay
    decided: bool = False  # a part that stays is the last
    written: bool = False  # an #if is in the text
    stays: bool = True
    guards: str = ""  # the macro of #ifndef, which keeps a header from being read twice
    parts: list[set[str]] = field(default_factory=list)  # the macros that each part that stays defines for certain
    has_else: bool = False

    def certain(self) -> set[str]:
        """The macros that it defines, whichever of its parts is taken."""
        if not self.parts:
            return set()
        guards = bool(self.guards) and self.guards in self.parts[0]
        return set.intersection(*self.parts) if not self.written or self.has_else or guards else set()


@dataclass
class _Pruned:
    text: str
    defined: dict[str, set[int | None]] = field(default_factory=dict)  # None: a value that is not known
    certain: set[str] = field(default_factory=set)  # defined whatever is not known


def without_dead_lines(files: Mapping[str, str], core: Core) -> dict[str, str]:
    """The texts of C files, by name, without lines for other processors than a microcontroller with this core.

    Headers of kernels that nothing includes any more are left out.
    """
    missing = [_ELSEWHERE] + [_HELIUM] * ("helium" not in core.features) + [_FPU] * (core.fpu == "none")
    absent = re.compile("|".join(missing))
    facts: Facts = {}
    everything = _defined(_prune(text, {}, None).defined for text in files.values())
    asked = {m for text in files.values() for m in _ASKED.findall(text)}  # whether they are defined
    stripped: dict[str, _Pruned] = {}
    for _ in range(_ROUNDS):
        stripped = {name: _prune(text, facts, absent) for name, text in files.items()}
        remaining = _defined(p.defined for p in stripped.values())
        known: Facts = dict.fromkeys(everything.keys() - remaining.keys() - _GIVEN)
        certain = set().union(*(p.certain for p in stripped.values()))
        for name in certain - asked - _GIVEN:
            value, *others = remaining[name]
            if value is not None and not others:
                known[name] = value
        if known == facts:
            break
        facts = known
    return _included({name: p.text for name, p in stripped.items()})


def _included(files: dict[str, str]) -> dict[str, str]:
    while True:
        included = {Path(path).name for text in files.values() for path in _INCLUDE.findall(text)}
        reachable = {n: t for n, t in files.items() if not _KERNEL_HEADER.search(n) or Path(n).name in included}
        if len(reachable) == len(files):
            return files
        files = reachable


def _defined(several: Iterable[Mapping[str, set[int | None]]]) -> dict[str, set[int | None]]:
    result: dict[str, set[int | None]] = {}
    for one in several:
        for name, values in one.items():
            result.setdefault(name, set()).update(values)
    return result


def _prune(text: str, facts: Facts, absent: re.Pattern[str] | None) -> _Pruned:
    result = _Pruned("")
    out: list[str] = []
    open_conditions: list[_Condition] = []
    lines = re.findall(r"(?:[^\n\\]|\\(?!\n)|\\\n)*\n|.+\Z", text, re.DOTALL)
    for line in lines:
        match = _DIRECTIVE.match(line)
        word = match[1] if match else ""
        rest = _COMMENT.sub(" ", match[2].replace("\\\n", " ")).strip() if match else ""
        stays = all(c.stays for c in open_conditions)
        if word in ("if", "ifdef", "ifndef"):
            expression = rest if word == "if" else f"defined({rest})" if word == "ifdef" else f"!defined({rest})"
            value = _value(expression, facts, absent)
            c = _Condition(stays, guards=rest if word == "ifndef" else "")
            open_conditions.append(c)
            _part(c, value, line, out, first=True)
        elif word in ("elif", "else"):
            c = open_conditions[-1]
            _part(c, True if word == "else" else _value(rest, facts, absent), line, out, is_else=word == "else")
        elif word == "endif":
            c = open_conditions.pop()
            if c.outer and c.written:
                out.append(line)
            if c.outer:
                (open_conditions[-1].parts[-1] if open_conditions else result.certain).update(c.certain())
        elif stays:
            out.append(line)
            if word == "define":
                name = re.match(r"\w+", rest)
                if name:
                    result.defined.setdefault(name[0], set()).add(_value_of(rest[name.end() :].strip(), facts))
                    (open_conditions[-1].parts[-1] if open_conditions else result.certain).add(name[0])
            elif word == "undef":
                result.defined.setdefault(rest, set()).add(None)
    result.text = "".join(out)
    return result


def _value_of(body: str, facts: Facts) -> int | None:
    """Of a macro that is a number, or another macro's name."""
    return int(body) if re.fullmatch(r"\d+", body) else facts.get(body)


def _part(
    c: _Condition, value: int | None, line: str, out: list[str], *, first: bool = False, is_else: bool = False
) -> None:
    """A part of a condition begins: written, taken as it is, or left out."""
    if not c.outer:
        c.stays = False
        return
    if c.decided or (value is not None and not value and not is_else):
        c.stays = False
        return
    c.stays = True
    c.parts.append(set())
    c.has_else = c.has_else or is_else or value is not None
    if value is None:
        out.append(line if first or c.written else re.sub(r"\belif\b", "if", line, count=1))
        c.written = True
    else:
        c.decided = True
        if c.written:
            indent = line[: line.index("#")]
            out.append(line if is_else else f"{indent}#else\n")


def _value(expression: str, facts: Facts, absent: re.Pattern[str] | None) -> int | None:
    """0, 1, or None where the facts do not decide it."""
    tokens: list[str] = []
    at = 0
    while at < len(expression):
        match = _TOKEN.match(expression, at)
        if match is None:
            return None
        at = match.end()
        asked = match[1] or match[2]
        name = asked or match[4]
        if name:
            if (absent is not None and absent.fullmatch(name)) or (name in facts and facts[name] is None):
                tokens.append("0")
            elif name in facts:
                tokens.append("1" if asked else str(facts[name]))
            else:
                tokens.append("X")
        elif match[3]:
            tokens.append(match[3])
        elif match[5]:
            tokens.append(_OPERATORS.get(match[5], match[5]))
    try:
        return _evaluate(ast.parse(" ".join(tokens).strip(), mode="eval").body)
    except SyntaxError:
        return None


def _evaluate(node: ast.expr) -> int | None:
    """In the logic of three values."""
    match node:
        case ast.Constant(int(value)):
            return value
        case ast.UnaryOp(ast.Not(), operand):
            one = _evaluate(operand)
            return None if one is None else int(not one)
        case ast.BoolOp(op, operands):
            values = [_evaluate(v) for v in operands]
            decides = isinstance(op, ast.Or)
            if any(v is not None and bool(v) is decides for v in values):
                return int(decides)
            return None if None in values else int(not decides)
        case ast.Compare(left, [comparison], [right]):
            a, b = _evaluate(left), _evaluate(right)
            return None if a is None or b is None else int(_COMPARISONS[type(comparison)](a, b))
    return None
