"""A sequence as a problem of its own: every execution and page-in is an operator that makes new versions of tensors.

The eviction heuristic follows a list of operators. With a plan as this list it can repair the plan where it needs too
much RAM. It lets go of versions and makes them again, and leaves the rest of the plan as it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from poetc.scheduling import OperatorSpec, Problem, TensorSpec
from poetc.solvers.model import Model


class Unrolled:
    """`problem` is the sequence as a problem; `restored` turns sequences of it into sequences of the original."""

    def __init__(self, model: Model, codes: Sequence[int]) -> None:
        original, n, m = model.problem, model.n_ops, model.n_tensors
        self.model = model
        self.code_of: list[int] = []  # by operator
        self.tensor_of = list(range(m))  # by version
        self.written: list[list[int]] = [[]]  # page-outs, by the number of operators before them
        specs = list(original.tensors)
        operators: list[OperatorSpec] = []
        current = list(range(m))
        executed: set[int] = set()

        def version(t: int) -> int:
            """A new version of `t`. The first takes the place of the original; the last has its `final`."""
            if current[t] == t and model.producer[t] >= 0 and model.producer[t] not in executed:
                return t
            specs.append(replace(specs[current[t]], name=f"{specs[t].name}#{len(operators)}", initial=""))
            specs[current[t]] = replace(specs[current[t]], final="")
            self.tensor_of.append(t)
            current[t] = len(specs) - 1
            return current[t]

        for code in codes:
            if code >= n + m:
                self.written[-1].append(code)
                continue
            if code < n:
                op = original.operators[code]
                inputs = tuple(current[t] for t in op.inputs)
                before = list(current)
                outputs = tuple(version(t) for t in op.outputs)
                executed.add(code)
                pairs = tuple(replace(p, input=before[p.input], output=current[p.output]) for p in op.in_place)
                operators.append(replace(op, inputs=inputs, outputs=outputs, in_place=pairs))
            else:
                t = code - n
                spec: TensorSpec = original.tensors[t]
                operators.append(
                    OperatorSpec(
                        name=f"page-in {spec.name}#{len(operators)}",
                        inputs=(),
                        outputs=(version(t),),
                        time_ns=spec.page_in_ns,
                        energy_pj=spec.page_in_pj,
                    )
                )
            self.code_of.append(code)
            self.written.append([])
        pages = any(code >= n for code in codes)
        buffer = original.page_buffer_bytes
        self.problem: Problem = replace(
            original,
            operators=tuple(operators),
            tensors=tuple(specs),
            base_bytes=original.base_bytes + (buffer if pages else 0),
            page_buffer_bytes=0 if pages else buffer,
        )

    def restored(self, codes: Sequence[int]) -> list[int] | None:
        """A sequence of `problem` as one of the original; None if an operand would not be there.

        Versions of a tensor are apart in `problem`, so one may be read after an update has overwritten another. The
        original is then read from the store once more, if it is there.
        """
        n, m = self.model.n_ops, self.model.n_tensors
        operators, versions = len(self.code_of), len(self.tensor_of)
        out = list(self.written[0])
        seen = [False] * operators
        gone: set[int] = set()
        stored = {t for t in range(m) if self.model.on_store[t]} | {code - n - m for code in out}
        for code in codes:
            if code < operators:
                action = self.code_of[code]
                if action < n:
                    for t in sorted(gone.intersection(self.model.inputs[action])):
                        if t not in stored:
                            return None
                        out.append(n + t)
                        gone.discard(t)
                    gone |= self.model.overwritten[action]
                else:
                    gone.discard(action - n)
                out.append(action)
                if not seen[code]:
                    seen[code] = True
                    out += self.written[code + 1]
                    stored |= {written - n - m for written in self.written[code + 1]}
            elif code < operators + versions:
                gone.discard(self.tensor_of[code - operators])
                out.append(n + self.tensor_of[code - operators])
            else:
                stored.add(self.tensor_of[code - operators - versions])
                out.append(n + m + self.tensor_of[code - operators - versions])
        return out
