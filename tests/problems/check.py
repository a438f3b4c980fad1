#!/usr/bin/env python3
"""Checks a schedule for a scheduling problem, with Python alone: no package is imported, not even poetc.

    check.py PROBLEM.json SCHEDULE.json
    check.py NAME SCHEDULE.json            # a problem of the library beside this file, beside its best known cost
    check.py NAME SCHEDULE.json --csv buffers.csv

It replays the actions one by one, as docs/reference/formats.md describes them, and prints energy, time and peak. It
knows problems with one processor, one RAM, and a store without overlap, which all problems of the library are. `--csv`
writes the buffers of the schedule as minimalloc reads them: id, lower, upper, size.

The exit code is 0 for a valid schedule, 1 for another, 2 where a file cannot be read or written.
"""

from __future__ import annotations

import csv
import gzip
import json
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent


class Invalid(Exception):
    """The schedule breaks a rule; the action is named."""


def is_of(type_, noun, least=None):
    """A reader of values of one type. It raises ValueError for others, with the name of the field."""

    def read_value(value, field):
        if type(value) is not type_ or (least is not None and value < least):  # true is no 1
            raise ValueError(f"{field} must be {noun}")
        return value

    return read_value


STRING, FLAG, INDEX = is_of(str, "a string"), is_of(bool, "true or false"), is_of(int, "an integer")
COUNT, ARRAY, OBJECT = is_of(int, "an integer of at least 0", 0), is_of(list, "an array"), is_of(dict, "an object")


def one_of(*names):
    def read_name(value, field):
        if value not in names:
            raise ValueError(f"{field} must be {' or '.join(map(repr, names))}")
        return value

    return read_name


def many(item):
    return lambda value, field: [item(v, f"{field}[{n}]") for n, v in enumerate(ARRAY(value, field))]


def pair(value, field):
    if len(ARRAY(value, field)) != 2:
        raise ValueError(f"{field} must be two integers")
    return tuple(INDEX(v, field) for v in value)


def fields(required, /, **optional):
    """A reader of objects. An optional field has its value where it is absent; where that is None, it may be null."""

    def read_fields(value, field):
        OBJECT(value, field)
        for name in required:
            if name not in value:
                raise ValueError(f"{field}.{name} is missing")
        read = {name: kind(value[name], f"{field}.{name}") for name, kind in required.items()}
        for name, (kind, default) in optional.items():
            v = value.get(name, default)
            read[name] = None if v is default is None else kind(v, f"{field}.{name}")
        return read

    return read_fields


def step(value, field):
    """Reads an action: one of the five kinds. `compute` has other fields beside it."""
    kinds = [kind for kind in ("compute", "free", "page_out", "page_in", "move") if kind in OBJECT(value, field)]
    others = {"in_place": many(pair), "processor": INDEX, "fence": FLAG} if kinds == ["compute"] else {}
    if len(kinds) != 1 or not value.keys() <= {*kinds, *others}:
        raise ValueError(f"{field} must be one action, with the fields of this action alone")
    return {name: others.get(name, INDEX)(v, f"{field}.{name}") for name, v in value.items()}


PLACE, AMOUNT, LIMIT = (one_of("", "ram", "store"), ""), (COUNT, 0), (COUNT, None)
TENSOR = fields(
    {"name": STRING, "size_bytes": COUNT},
    **dict.fromkeys(("initial", "final"), PLACE),
    **dict.fromkeys(("page_out_ns", "page_out_pj", "page_in_ns", "page_in_pj", "move_pj"), AMOUNT),
    **dict.fromkeys(("store_bytes", "move_ns"), LIMIT),
    pageable=(FLAG, True),
)
OPERATOR = fields(
    {"name": STRING, "inputs": many(INDEX), "outputs": many(INDEX), "time_ns": COUNT, "energy_pj": COUNT},
    workspace_bytes=AMOUNT,
    recomputable=(FLAG, True),
    in_place=(many(fields({"input": INDEX, "output": INDEX}, required=(FLAG, False))), []),
    **dict.fromkeys(("reads_store", "writes_store"), (many(INDEX), [])),
)
PROBLEM = fields(
    {"name": STRING, "budget_bytes": COUNT, "tensors": many(TENSOR), "operators": many(OPERATOR)},
    objective=(one_of("energy", "time"), "energy"),
    paging=(one_of("none", "sync", "dma"), "none"),
    **dict.fromkeys(("base_bytes", "page_buffer_bytes"), AMOUNT),
    **dict.fromkeys(("deadline_ns", "store_capacity_bytes", "write_limit_bytes"), LIMIT),
    **dict.fromkeys(("processors", "banks"), (ARRAY, [])),
)
SCHEDULE = fields({"steps": many(step)})


class Replay:
    """RAM and store, action by action. `buffers`: (id, first action, action behind the last, bytes)."""

    def __init__(self, problem, paged):
        self.problem, self.tensors, self.operators = problem, problem["tensors"], problem["operators"]
        self.fixed = problem["base_bytes"] + (problem["page_buffer_bytes"] if paged else 0)
        self.ram = {i: t["size_bytes"] for i, t in enumerate(self.tensors) if t["initial"] == "ram"}
        self.store = {i for i, t in enumerate(self.tensors) if t["initial"] == "store"}
        self.state = self.fixed_state() & set(self.ram)
        self.executed = [0] * len(self.operators)
        self.energy_pj = self.time_ns = self.written = self.peak = self.action = 0
        self.open = {t: (t, 0) for t in self.ram}  # the buffer that a tensor lies in: its first tensor and action
        self.buffers = []

    def fixed_state(self):
        """Tensors that are in RAM when the step begins and, in their last version, when it ends: all versions."""
        follows = {p["input"]: p["output"] for o in self.operators for p in o["in_place"] if p["required"]}
        found = set()
        for t, tensor in enumerate(self.tensors):
            chain = [t]
            while chain[-1] in follows and follows[chain[-1]] not in chain:
                chain.append(follows[chain[-1]])
            if tensor["initial"] == "ram" and self.tensors[chain[-1]]["final"] == "ram":
                found.update(chain)
        return found

    def need(self, condition, reason):
        if not condition:
            raise Invalid(f"action {self.action}: {reason}")

    def name(self, t):
        self.need(0 <= t < len(self.tensors), f"there is no tensor {t}")
        return repr(self.tensors[t]["name"])

    def in_ram(self, t, does):
        name = self.name(t)
        self.need(t in self.ram, f"{does} {name}, which is not in RAM")

    def count(self, more):
        used = self.fixed + sum(self.ram.values()) + more
        self.peak = max(self.peak, used)
        budget = self.problem["budget_bytes"]
        self.need(used <= budget, f"needs {used} bytes of RAM, the budget is {budget}")

    def leave(self, t):
        size = self.ram.pop(t)
        first, begin = self.open.pop(t)
        self.buffers.append((self.tensors[first]["name"], begin, self.action + 1, size))
        self.state.discard(t)

    def put_on_store(self, t):
        self.store.add(t)
        held = sum(self.footprint(u) for u in self.store)
        capacity, limit = self.problem.get("store_capacity_bytes"), self.problem.get("write_limit_bytes")
        self.need(
            capacity is None or held <= capacity, f"the store would hold {held} bytes, its capacity is {capacity}"
        )
        self.written += self.footprint(t)
        self.need(
            limit is None or self.written <= limit, f"{self.written} bytes would be written, the limit is {limit}"
        )

    def footprint(self, t):
        found = self.tensors[t].get("store_bytes")
        return self.tensors[t]["size_bytes"] if found is None else found

    def compute(self, action):
        k = action["compute"]
        self.need(0 <= k < len(self.operators), f"there is no operator {k}")
        op = self.operators[k]
        self.need(not action.get("processor"), f"{op['name']!r} on another processor")
        for t in op["inputs"]:
            self.in_ram(t, f"{op['name']!r} reads")
        for t in op["outputs"]:
            self.need(t not in self.ram, f"{op['name']!r} makes {self.name(t)}, which is in RAM already")
        for t in op.get("reads_store", ()):
            self.need(t in self.store, f"{op['name']!r} reads {self.name(t)} from the store, which is not there")
        self.need(op["recomputable"] or not self.executed[k], f"{op['name']!r} must be executed once only")
        pairs = action.get("in_place", [])
        allowed = {(p["input"], p["output"]): p["required"] for p in op["in_place"]}
        for i, o in pairs:
            self.need((i, o) in allowed, f"{op['name']!r} may not work in place on {i} -> {o}")
            fits = self.tensors[o]["size_bytes"] <= self.ram[i]
            self.need(fits, f"{self.name(o)} does not fit in the bytes of {self.name(i)}")
        once = len({i for i, _ in pairs}) == len({o for _, o in pairs}) == len(pairs)
        self.need(once, f"{op['name']!r} uses one tensor in two in-place pairs")
        for pair, required in allowed.items():
            self.need(not required or pair in pairs, f"{op['name']!r} must work in place on {pair[0]} -> {pair[1]}")
        of = {o: i for i, o in pairs}
        sizes = {t: self.ram[of[t]] if t in of else self.tensors[t]["size_bytes"] for t in op["outputs"]}
        self.count(sum(n for t, n in sizes.items() if t not in of) + op["workspace_bytes"])
        if op["workspace_bytes"]:
            self.buffers.append((f"{op['name']} at {self.action}", self.action, self.action + 1, op["workspace_bytes"]))
        for t in op["outputs"]:
            if t in of:
                self.open[t] = self.open.pop(of[t])
                if of[t] in self.state:
                    self.state.add(t)
                self.state.discard(of[t])
                del self.ram[of[t]]
            else:
                self.open[t] = t, self.action
            self.ram[t] = sizes[t]
        for t in op.get("writes_store", ()):
            self.put_on_store(t)
        self.executed[k] += 1
        self.pay(op["energy_pj"], op["time_ns"])

    def pay(self, energy_pj, time_ns):
        self.energy_pj += energy_pj
        self.time_ns += time_ns

    def page_out(self, t):
        self.in_ram(t, "pages out")
        tensor = self.tensors[t]
        self.need(self.problem["paging"] != "none" and tensor["pageable"], f"{self.name(t)} is not pageable here")
        self.put_on_store(t)
        self.count(0)
        self.pay(tensor["page_out_pj"], tensor["page_out_ns"])

    def page_in(self, t):
        name = self.name(t)
        self.need(t in self.store, f"pages in {name}, which is not on the store")
        self.need(t not in self.ram, f"pages in {name}, which is in RAM already")
        self.count(self.tensors[t]["size_bytes"])
        self.ram[t], self.open[t] = self.tensors[t]["size_bytes"], (t, self.action)
        self.pay(self.tensors[t]["page_in_pj"], self.tensors[t]["page_in_ns"])

    def move(self, t):
        self.in_ram(t, "moves")
        tensor, name = self.tensors[t], self.name(t)
        self.need(tensor.get("move_ns") is not None, f"moves {name}, which may not be moved")
        self.need(t not in self.state, f"moves {name}, which is state in its fixed place")
        self.need(self.action > 0, f"moves {name} before anything is done")
        self.count(0)
        first, begin = self.open[t]
        self.buffers.append((self.tensors[first]["name"], begin, self.action, self.ram[t]))
        self.open[t] = t, self.action
        self.pay(tensor["move_pj"], tensor["move_ns"])

    def run(self, actions):
        for self.action, action in enumerate(actions):
            if "compute" in action:
                self.compute(action)
            elif "free" in action:
                self.in_ram(action["free"], "frees")
                self.count(0)
                self.leave(action["free"])
            elif "page_out" in action:
                self.page_out(action["page_out"])
            elif "page_in" in action:
                self.page_in(action["page_in"])
            else:
                self.move(action["move"])
        for k, count in enumerate(self.executed):
            self.need(count, f"ends without {self.operators[k]['name']!r}")
        for t, tensor in enumerate(self.tensors):
            there = {"": True, "ram": t in self.ram, "store": t in self.store}[tensor["final"]]
            self.need(there, f"ends without {self.name(t)} in its final place")
        deadline = self.problem.get("deadline_ns")
        self.need(deadline is None or self.time_ns <= deadline, f"takes {self.time_ns} ns, the deadline is {deadline}")
        for t in sorted(self.ram):
            self.leave(t)


def check(problem, schedule, of_problem="problem", of_schedule="schedule"):
    """A `Replay` of a valid schedule. Raises Invalid, or ValueError with the field where one cannot be read."""
    problem = PROBLEM(problem, f"{of_problem}: $")
    for n, operator in enumerate(problem["operators"]):
        reads, makes = operator["inputs"], operator["outputs"]
        for t in (*reads, *makes, *operator["reads_store"], *operator["writes_store"]):
            if not 0 <= t < len(problem["tensors"]):
                raise ValueError(f"{of_problem}: $.operators[{n}] names tensor {t}, which is not there")
        if not all(p["input"] in reads and p["output"] in makes for p in operator["in_place"]):
            raise ValueError(f"{of_problem}: $.operators[{n}].in_place must have its inputs and outputs")
    schedule = SCHEDULE(schedule, f"{of_schedule}: $")
    if problem["processors"] or problem["banks"] or problem["paging"] == "dma":
        raise Invalid("this checker knows one processor, one RAM and a store without overlap")
    replay = Replay(problem, any("page_out" in s or "page_in" in s for s in schedule["steps"]))
    replay.run(schedule["steps"])
    return replay


def read(path, kind):
    """The JSON of a file. Raises ValueError."""
    try:
        document = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror}") from None
    except RecursionError:
        raise ValueError(f"{path}: it is nested too deeply") from None
    except UnicodeDecodeError:
        raise ValueError(f"{path}: it is not UTF-8") from None
    except ValueError as error:
        raise ValueError(f"{path}: it is no JSON: {error}") from None
    one_of(kind)(OBJECT(document, f"{path}: $").get("format", kind), f"{path}: $.format")
    return document


def library(name):
    for archive in ("real.jsonl.gz", "random.jsonl.gz"):
        with gzip.open(HERE / archive, "rt", encoding="utf-8") as lines:
            for line in lines:
                problem = json.loads(line)
                if problem["name"] == name:
                    return problem
    raise ValueError(f"{name}: no file, and no problem of the library")


def write_buffers(path, buffers):
    try:
        with open(path, "w", newline="", encoding="utf-8") as file:
            rows = csv.writer(file, lineterminator="\n")
            rows.writerow(("id", "lower", "upper", "size"))
            rows.writerows((f"{n}:{name}", low, high, size) for n, (name, low, high, size) in enumerate(buffers))
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror}") from None


def main(arguments):
    usage = __doc__.split("\n\n", 1)[1]
    if {"-h", "--help"} & set(arguments):
        print(usage, end="")
        return 0
    if len(arguments) not in (2, 4) or arguments[2:3] not in ([], ["--csv"]):
        print(usage.split("\n\n")[0], file=sys.stderr)
        return 2
    source, of_schedule = arguments[:2]
    known = None
    try:
        if Path(source).exists():
            problem = read(source, "poetc-problem-1")
        else:
            problem = library(source)
            known = json.loads((HERE / "best_known.json").read_text(encoding="utf-8"))["problems"].get(source)
        replay = check(problem, read(of_schedule, "poetc-schedule-1"), source, of_schedule)
        if arguments[2:]:
            write_buffers(arguments[3], replay.buffers)
    except Invalid as error:
        print(f"invalid: {error}")
        return 1
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    cost = replay.time_ns if problem.get("objective") == "time" else replay.energy_pj
    print(f"valid: {replay.energy_pj} pJ, {replay.time_ns} ns, peak {replay.peak} of {problem['budget_bytes']} bytes")
    if known is not None:
        best, bound = known["objective"], known["bound"]
        word = "no schedule was known" if best is None else f"{cost - best:+d} against {best} by {known['solver']}"
        print(f"best known: {word}; bound {bound} ({known['schedule_class']})")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
