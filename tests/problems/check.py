#!/usr/bin/env python3
"""Checks a schedule for a scheduling problem, with Python alone: no package is imported, not even poetc.

    check.py PROBLEM.json SCHEDULE.json
    check.py NAME SCHEDULE.json            # a problem of the library beside this file, beside its best known cost
    check.py NAME SCHEDULE.json --csv buffers.csv

It replays the actions one by one, as docs/reference/formats.md describes them, and prints energy, time and peak. It
knows problems with one processor, one RAM, and a store without overlap, which all problems of the library are. `--csv`
writes the buffers of the schedule as minimalloc reads them: id, lower, upper, size.

The exit code is 0 for a valid schedule, 1 for another, 2 where a file cannot be read.
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
            while chain[-1] in follows:
                chain.append(follows[chain[-1]])
            if tensor["initial"] == "ram" and self.tensors[chain[-1]]["final"] == "ram":
                found.update(chain)
        return found

    def need(self, condition, reason):
        if not condition:
            raise Invalid(f"action {self.action}: {reason}")

    def name(self, t):
        self.need(isinstance(t, int) and 0 <= t < len(self.tensors), f"there is no tensor {t}")
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
        self.need(isinstance(k, int) and 0 <= k < len(self.operators), f"there is no operator {k}")
        op = self.operators[k]
        self.need(not action.get("processor"), f"{op['name']!r} on another processor")
        for t in op["inputs"]:
            self.in_ram(t, f"{op['name']!r} reads")
        for t in op["outputs"]:
            self.need(t not in self.ram, f"{op['name']!r} makes {self.name(t)}, which is in RAM already")
        for t in op.get("reads_store", ()):
            self.need(t in self.store, f"{op['name']!r} reads {self.name(t)} from the store, which is not there")
        self.need(op["recomputable"] or not self.executed[k], f"{op['name']!r} must be executed once only")
        pairs = [tuple(pair) for pair in action.get("in_place", ())]
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
            elif "move" in action:
                self.move(action["move"])
            else:
                self.need(False, f"is no action: {action}")
        for k, count in enumerate(self.executed):
            self.need(count, f"ends without {self.operators[k]['name']!r}")
        for t, tensor in enumerate(self.tensors):
            there = {"": True, "ram": t in self.ram, "store": t in self.store}[tensor["final"]]
            self.need(there, f"ends without {self.name(t)} in its final place")
        deadline = self.problem.get("deadline_ns")
        self.need(deadline is None or self.time_ns <= deadline, f"takes {self.time_ns} ns, the deadline is {deadline}")
        for t in sorted(self.ram):
            self.leave(t)


def check(problem, schedule):
    """A `Replay` of a valid schedule. Raises Invalid."""
    if problem.get("processors") or problem.get("banks") or problem["paging"] == "dma":
        raise Invalid("this checker knows one processor, one RAM and a store without overlap")
    replay = Replay(problem, any("page_out" in s or "page_in" in s for s in schedule["steps"]))
    replay.run(schedule["steps"])
    return replay


def read(path, kind):
    document = json.loads(Path(path).read_text(encoding="utf-8"))
    if document.get("format") != kind:
        raise ValueError(f"its format is {document.get('format')!r}, it must be {kind!r}")
    return document


def library(name):
    for archive in ("real.jsonl.gz", "random.jsonl.gz"):
        with gzip.open(HERE / archive, "rt", encoding="utf-8") as lines:
            for line in lines:
                problem = json.loads(line)
                if problem["name"] == name:
                    return problem
    raise ValueError("no file, and no problem of the library")


def main(arguments):
    if len(arguments) not in (2, 4) or arguments[2:3] not in ([], ["--csv"]):
        print(__doc__.split("\n\n")[1], file=sys.stderr)
        return 2
    source, of_schedule = arguments[:2]
    known = None
    try:
        at = source
        if Path(source).exists():
            problem = read(source, "poetc-problem-1")
        else:
            problem = library(source)
            known = json.loads((HERE / "best_known.json").read_text(encoding="utf-8"))["problems"].get(source)
        at = of_schedule
        schedule = read(of_schedule, "poetc-schedule-1")
        replay = check(problem, schedule)
    except Invalid as error:
        print(f"invalid: {error}")
        return 1
    except (OSError, ValueError, KeyError, TypeError) as error:
        print(f"{at}: cannot be read: {error}", file=sys.stderr)
        return 2
    cost = replay.energy_pj if problem["objective"] == "energy" else replay.time_ns
    print(f"valid: {replay.energy_pj} pJ, {replay.time_ns} ns, peak {replay.peak} of {problem['budget_bytes']} bytes")
    if known is not None:
        best, bound = known["objective"], known["bound"]
        word = "no schedule was known" if best is None else f"{cost - best:+d} against {best} by {known['solver']}"
        print(f"best known: {word}; bound {bound} ({known['schedule_class']})")
    if arguments[2:]:
        with open(arguments[3], "w", newline="", encoding="utf-8") as file:
            rows = csv.writer(file, lineterminator="\n")
            rows.writerow(("id", "lower", "upper", "size"))
            rows.writerows((f"{n}:{name}", low, high, size) for n, (name, low, high, size) in enumerate(replay.buffers))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
