"""JSON of Problem, Schedule and MemoryPlan: typed reading with one-line errors, canonical writing.

docs/reference/formats.md describes the files.

The same value gives the same bytes: keys sorted, no spaces, one operator, tensor, action or allocation a line.
"""

from __future__ import annotations

import functools
import inspect
import types
import typing
from dataclasses import fields, is_dataclass, replace
from typing import Any, TypeVar

import msgspec

from poetc.errors import UsageError
from poetc.scheduling._validation import MAX_BYTES, validate_problem
from poetc.scheduling.problem import OperatorSpec, Problem, Variant
from poetc.scheduling.schedule import (
    Action,
    Compute,
    Free,
    MemoryPlan,
    Move,
    PageIn,
    PageOut,
    Proof,
    Schedule,
    Status,
    first_executions,
)
from poetc.scheduling.scope import ANY, Option, Repetition, Scope

PROBLEM_FORMAT = "poetc-problem-1"
SCHEDULE_FORMAT = "poetc-schedule-1"
PLAN_FORMAT = "poetc-plan-1"
OLD_VARIANTS_KEY = "leaner"  # of version 0.1, for `low_workspace`


def problem_to_json(problem: Problem) -> bytes:
    operators = [_operator_to_json(op) for op in problem.operators]
    return _write(
        PROBLEM_FORMAT, _present(_fields_of(problem) | {"operators": operators}, "processors", "banks", "idle_uw")
    )


def problem_from_json(data: bytes | str, source: str = "problem") -> Problem:
    """Read and validate. UsageError naming `source` (the file) and the place in the document."""
    problem = _read(data, Problem, PROBLEM_FORMAT, source)
    validate_problem(problem, source)
    return problem


def schedule_to_json(schedule: Schedule, schedule_class: str = "") -> bytes:
    """`schedule_class`: the scope of the proof as a sentence, for people who read the file."""
    members = _fields_of(schedule)
    members["steps"] = [_action_to_json(action) for action in members.pop("actions")]
    members["proof"] = _proof_to_json(schedule, schedule_class)
    return _write(SCHEDULE_FORMAT, _present(members, "banks", "workspace_banks"))


def schedule_from_json(data: bytes | str, source: str = "schedule") -> Schedule:
    """Read. UsageError as for problems; whether the schedule is valid is for `verify` to say."""
    document = _read(data, _ScheduleDocument, SCHEDULE_FORMAT, source)
    actions = tuple(_action_from_json(s, f"{source}: $.steps[{i}]") for i, s in enumerate(document.steps))
    proof = _proof_from_json(document.proof, actions, f"{source}: $.proof.scope")
    return Schedule(
        solver=document.solver,
        actions=actions,
        proof=proof,
        log=document.log,
        banks=document.banks,
        workspace_banks=document.workspace_banks,
    )


def plan_to_json(plan: MemoryPlan) -> bytes:
    return _write(PLAN_FORMAT, _present(_fields_of(plan), "banks"))


def plan_from_json(data: bytes | str, source: str = "plan") -> MemoryPlan:
    """Read. UsageError as for problems; whether the plan is valid is for `verify_plan` to say."""
    return _read(data, MemoryPlan, PLAN_FORMAT, source)


def problem_schema() -> dict[str, Any]:
    """JSON Schema (2020-12) of a Problem document. A schema cannot check everything, such as the order:
    `validate_problem` does.
    """
    schema = msgspec.json.schema(Problem)
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    for definition in schema["$defs"].values():
        if "description" in definition:  # docstrings: their indentation is gone from Python 3.13 on
            definition["description"] = inspect.cleandoc(definition["description"])
        if definition.get("type") != "object":
            continue
        definition["additionalProperties"] = False
        for name, value in definition["properties"].items():
            for integer in _integers(value):
                integer["minimum"] = {"alignment_bytes": 1, "rewritten_bytes": -MAX_BYTES}.get(name, 0)
                if name.endswith("_bytes"):
                    integer["maximum"] = MAX_BYTES
    schema["$defs"]["Problem"]["properties"]["format"] = {"const": PROBLEM_FORMAT}
    return schema


class _ActionDocument(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """One of the five kinds, with its operator or tensor; `in_place`, `processor` and `fence` only with `compute`.

    `bank` only with `move`.
    """

    compute: int | None = None
    in_place: tuple[tuple[int, int], ...] = ()
    processor: int = 0
    fence: bool = False
    free: int | None = None
    page_out: int | None = None
    page_in: int | None = None
    move: int | None = None
    bank: int | None = None


class _ProofDocument(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    status: Status
    objective: int
    bound: int
    schedule_class: str = ""
    scope: dict[str, str | tuple[int, ...]] | None = None  # order, repetition, and an option a kind of choice
    method: str = ""


class _ScheduleDocument(msgspec.Struct, forbid_unknown_fields=True):
    solver: str
    steps: tuple[_ActionDocument, ...]  # as in files of version 0.1
    proof: _ProofDocument
    log: tuple[str, ...] = ()
    banks: tuple[int, ...] = ()
    workspace_banks: tuple[int, ...] = ()


def _proof_to_json(schedule: Schedule, schedule_class: str) -> _ProofDocument:
    proof, scope = schedule.proof, schedule.proof.scope
    options = {"order": scope.order, **dict(scope.choices)}
    document = {name: "any" if option is ANY else option for name, option in options.items()}
    if document["order"] == first_executions(schedule.actions):
        document["order"] = "own"
    document["repetition"] = scope.repetition.value
    return _ProofDocument(
        status=proof.status,
        objective=proof.objective,
        bound=proof.bound,
        schedule_class=schedule_class,
        scope=document,
        method=proof.method,
    )


def _proof_from_json(document: _ProofDocument, actions: tuple[Action, ...], where: str) -> Proof:
    """A file of version 0.1 has no scope: its bound is taken to be about schedules that nobody else can name."""
    scope = document.scope
    if scope is None:
        of_all = document.schedule_class == "all schedules"
        scope = {"order": "any" if of_all else "own", "repetition": "any" if of_all else "other"}
    return Proof(
        status=document.status,
        objective=document.objective,
        bound=document.bound,
        scope=_scope_from_json(scope, actions, where),
        method=document.method,
    )


def _scope_from_json(document: dict[str, str | tuple[int, ...]], actions: tuple[Action, ...], where: str) -> Scope:
    """Each entry but `repetition` is an option: "any", numbers, or for the order also "own"."""
    for name in ("order", "repetition"):
        if name not in document:
            raise UsageError(f"{where}: there is no {name}")
    options: dict[str, Option] = {}
    for name, option in document.items():
        if name == "repetition":
            if option not in {r.value for r in Repetition}:
                raise UsageError(f"{where}.{name}: expected one of {', '.join(Repetition)}, got {option!r}")
        elif isinstance(option, tuple):
            options[name] = option
        elif option == "any":
            options[name] = ANY
        elif (name, option) == ("order", "own"):
            options[name] = first_executions(actions)
        else:
            raise UsageError(f"{where}.{name}: expected any or numbers, got {option!r}")
    scope = Scope(order=options.pop("order"), repetition=Repetition(str(document["repetition"])))
    return replace(scope, choices=tuple(sorted(options.items())))


def _action_to_json(action: Action) -> _ActionDocument:
    match action:
        case Compute(operator, in_place, processor, fence):
            return _ActionDocument(compute=operator, in_place=in_place, processor=processor, fence=fence)
        case Free(tensor):
            return _ActionDocument(free=tensor)
        case PageOut(tensor):
            return _ActionDocument(page_out=tensor)
        case PageIn(tensor):
            return _ActionDocument(page_in=tensor)
        case Move(tensor, bank):
            return _ActionDocument(move=tensor, bank=bank)


def _action_from_json(action: _ActionDocument, where: str) -> Action:
    kinds: dict[str, type[Free | PageOut | PageIn | Move]]
    kinds = {"free": Free, "page_out": PageOut, "page_in": PageIn, "move": Move}
    if (
        action.move is not None
        and action.bank is not None
        and action == _ActionDocument(move=action.move, bank=action.bank)
    ):
        return Move(action.move, action.bank)
    named = {name: tensor for name in kinds if (tensor := getattr(action, name)) is not None}
    if action.compute is not None and not named and action.bank is None:
        return Compute(action.compute, action.in_place, action.processor, action.fence)
    if action.compute is None and len(named) == 1 and action == _ActionDocument(**named):
        ((name, tensor),) = named.items()
        return kinds[name](tensor)
    raise UsageError(
        f"{where}: an action has exactly one of compute (with in_place, processor, fence or not), free, page_out,"
        " page_in, move (with bank or not)"
    )


T = TypeVar("T")


def _read(data: bytes | str, kind: type[T], format: str, source: str) -> T:
    try:
        document = msgspec.json.decode(data)
        if isinstance(document, dict) and (written := document.pop("format", format)) != format:
            raise msgspec.ValidationError(f"Expected {format!r}, got {written!r} - at `$.format`")
        if kind is Problem:
            _take_old_keys(document)
        result = msgspec.convert(document, kind)
        _refuse_unknown(document, kind, "$")
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:  # the first includes ValidationError
        if not isinstance(error, msgspec.ValidationError):
            raise UsageError(f"{source}: is no whole JSON: {_broken(error)}") from None
        reason, _, path = str(error).partition(" - at ")
        path = path.strip("`") or "$"
        raise UsageError(f"{source}: {path}: {reason.replace('Expected', 'expected', 1)}") from None
    return result


def _take_old_keys(document: Any) -> None:
    """Rename the keys of version 0.1 in a problem document; one that has both names is left to be refused.

    Documents of version 0.2 said with `semantics` whether paging takes time.
    """
    operators = document.get("operators") if isinstance(document, dict) else None
    for operator in operators if isinstance(operators, list) else ():
        if isinstance(operator, dict) and OLD_VARIANTS_KEY in operator and "low_workspace" not in operator:
            operator["low_workspace"] = operator.pop(OLD_VARIANTS_KEY)
    if isinstance(document, dict) and document.get("semantics") in ("exact", "poet"):
        tensors = document.get("tensors") if document.pop("semantics") == "poet" else None
        for tensor in tensors if isinstance(tensors, list) else ():
            if isinstance(tensor, dict):
                tensor.update(page_in_ns=0, page_out_ns=0)


def _broken(error: Exception) -> str:
    """A parser's complaint about text that is no JSON, in plain words."""
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    if isinstance(error, UnicodeError):
        return "it is not UTF-8"
    reason = str(error).removeprefix("JSON is malformed: ")
    return "it ends too early" if "truncated" in reason else reason


def _refuse_unknown(value: Any, kind: Any, path: str) -> None:
    """A misspelt optional field would otherwise be ignored in silence.

    (Structs see to it themselves, dataclasses do not.)
    """
    if isinstance(kind, types.UnionType) or typing.get_origin(kind) is typing.Union:
        for alternative in typing.get_args(kind):
            _refuse_unknown(value, alternative, path)
    elif isinstance(value, list) and typing.get_origin(kind) in (tuple, list):
        for index, (element, element_kind) in enumerate(zip(value, _element_kinds(kind, len(value)), strict=True)):
            _refuse_unknown(element, element_kind, f"{path}[{index}]")
    elif isinstance(value, dict) and _has_fields(kind):
        hints = _hints_of(kind)
        for key, member in value.items():
            if key not in hints:
                raise msgspec.ValidationError(f"Object contains unknown field `{key}` - at `{path}`")
            _refuse_unknown(member, hints[key], f"{path}.{key}")


@functools.cache
def _hints_of(kind: Any) -> dict[str, Any]:
    """The kinds of a class's fields: a document has thousands of objects of a few classes."""
    return typing.get_type_hints(kind)


def _has_fields(kind: Any) -> bool:
    return is_dataclass(kind) or (isinstance(kind, type) and issubclass(kind, msgspec.Struct))


def _element_kinds(kind: Any, count: int) -> tuple[Any, ...]:
    arguments = typing.get_args(kind)
    return (arguments[0],) * count if arguments[-1] is Ellipsis else arguments


def _integers(schema: dict[str, Any]) -> list[dict[str, Any]]:
    """The integer schemas in the schema of a field: itself, its elements, or one of its alternatives."""
    if schema.get("type") == "integer":
        return [schema]
    parts = [*schema.get("anyOf", ()), *([schema["items"]] if "items" in schema else ())]
    return [i for part in parts for i in _integers(part)]


def _operator_to_json(operator: OperatorSpec) -> dict[str, Any]:
    """Without kernels where they have no names, and without alternatives where there are none."""
    variants = [_present(_fields_of(variant), "kernel", "elsewhere") for variant in operator.low_workspace]
    return _present(
        _fields_of(operator) | {"low_workspace": variants}, "kernel", "low_workspace", "elsewhere", *_STREAMED
    )


_STREAMED = (
    *("reads_store", "writes_store", "replaces", "cut", "block", "inner_block"),
    *("rewritten_bytes", "piece_ns", "overlaps"),
)


def _present(members: dict[str, Any], *optional: str) -> dict[str, Any]:
    return {key: value for key, value in members.items() if value or key not in optional}


def _fields_of(value: Problem | OperatorSpec | Variant | Schedule | MemoryPlan) -> dict[str, Any]:
    return {field.name: getattr(value, field.name) for field in fields(value)}


def _write(format: str, members: dict[str, Any]) -> bytes:
    lines = []
    for key, value in sorted((members | {"format": format}).items()):
        if isinstance(value, list | tuple) and value:
            body = b"[\n  " + b",\n  ".join(_encode(element) for element in value) + b"\n ]"
        else:
            body = _encode(value)
        lines.append(_encode(key) + b":" + body)
    return b"{\n " + b",\n ".join(lines) + b"\n}\n"


def _encode(value: Any) -> bytes:
    return msgspec.json.encode(value, order="sorted")
