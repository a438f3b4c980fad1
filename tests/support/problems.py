"""Random scheduling problems and action sequences, from a `random.Random` (a seed, or hypothesis' `st.randoms()`).

All sizes are multiples of 16 bytes and a few units large, so that ties and exact fits are frequent.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from random import Random

from poetc.scheduling import (
    Compute,
    Decision,
    InPlace,
    OperatorSpec,
    PageIn,
    PageOut,
    Paging,
    Place,
    Problem,
    TensorSpec,
    keep_all_decisions,
    keep_all_peak_bytes,
)
from tests.support.ram import order_free_bound_bytes

UNIT = 16


class ProblemBuilder:
    """Adds tensors and operators by name; costs and sizes in small random numbers."""

    def __init__(self, random: Random, *, paging: bool) -> None:
        self.random, self.paging = random, paging
        self.tensors: list[TensorSpec] = []
        self.operators: list[OperatorSpec] = []

    def tensor(self, name: str, units: int, *, initial: Place = "", final: Place = "") -> int:
        out, into = (self.random.randint(1, 9), self.random.randint(1, 9)) if self.paging else (0, 0)
        self.tensors.append(
            TensorSpec(
                name=name,
                size_bytes=units * UNIT,
                initial=initial,
                final=final,
                pageable=final == "store" or self.random.random() < 0.8,
                page_out_ns=out * 2,
                page_out_pj=out,
                page_in_ns=into * 2,
                page_in_pj=into,
                move_ns=None if len(self.tensors) % 7 == 3 else 2 * units,
                move_pj=units,
            )
        )
        return len(self.tensors) - 1

    def operator(
        self,
        name: str,
        inputs: Sequence[int],
        outputs: Sequence[int],
        *,
        phase: str = "forward",
        cost: int | None = None,
        workspace: int = 0,
        recomputable: bool = True,
        in_place: Sequence[InPlace] = (),
    ) -> None:
        self.operators.append(
            OperatorSpec(
                name=name,
                kind=name.rstrip("0123456789"),
                phase=phase,
                inputs=tuple(inputs),
                outputs=tuple(outputs),
                time_ns=self.random.randint(1, 20) if cost is None else cost,
                energy_pj=self.random.randint(1, 20) if cost is None else cost,
                workspace_bytes=workspace * UNIT,
                recomputable=recomputable,
                in_place=tuple(in_place),
            )
        )

    def problem(self, name: str, *, base_bytes: int = 0, page_buffer_bytes: int = 0) -> Problem:
        """With a budget that keep-all just needs."""
        problem = Problem(
            name=name,
            operators=tuple(self.operators),
            tensors=tuple(self.tensors),
            budget_bytes=2**40,
            paging=Paging.SYNC if self.paging else Paging.NONE,
            base_bytes=base_bytes,
            page_buffer_bytes=page_buffer_bytes,
        )
        return replace(problem, budget_bytes=keep_all_peak_bytes(problem))


def random_dag(random: Random, operators: int, *, paging: bool = False) -> Problem:
    """Any DAG: several and unread outputs, a tensor read twice, in-place, workspace, state, stored state."""
    b = ProblemBuilder(random, paging=paging)
    available = [b.tensor(f"x{i}", random.randint(1, 3), initial="ram") for i in range(random.randint(1, 2))]
    for k in range(operators):
        inputs = random.sample(available, min(len(available), random.choice((1, 1, 2, 2, 3))))
        if random.random() < 0.7 and available[-1] not in inputs:
            inputs[0] = available[-1]
        if random.random() < 0.15:
            stored = paging and random.random() < 0.5
            place: Place = "store" if stored else "ram"
            w = b.tensor(f"w{k}", random.randint(1, 4), initial=place)
            w1 = b.tensor(f"w{k}@1", b.tensors[w].size_bytes // UNIT, final=place)
            pair = InPlace(input=w, output=w1, required=True)
            b.operator(f"update{k}", (w, *inputs), (w1,), phase="update", recomputable=False, in_place=(pair,))
            available.append(w1)
            continue
        outputs = []
        in_place: list[InPlace] = []
        for j in range(random.choice((1, 1, 1, 2))):
            units = random.randint(1, 8)
            if random.random() < 0.5:
                source = random.choice(inputs)
                units = b.tensors[source].size_bytes // UNIT
                if not (b.tensors[source].final or b.tensors[source].initial):
                    in_place += [InPlace(input=source, output=len(b.tensors))]
            last = k == operators - 1
            final: Place = "ram" if last or random.random() < 0.1 else ""
            if paging and not last and random.random() < 0.1:
                final = "store"
            outputs.append(b.tensor(f"t{k}.{j}", units, final=final))
        if random.random() < 0.1:
            inputs.append(inputs[0])
        b.operator(
            f"op{k}",
            inputs,
            outputs,
            workspace=random.choice((0, 0, 0, 1, 3)),
            recomputable=random.random() < 0.9,
            in_place=in_place,
        )
        available += outputs
    return b.problem(
        f"dag{operators}",
        base_bytes=random.choice((0, 100)),
        page_buffer_bytes=random.choice((0, UNIT)) if paging else 0,
    )


def training_problem(
    random: Random, layers: int, *, paging: bool = False, scale: int = 1, skips: float = 0.2
) -> Problem:
    """A network's training step: `layers` x (matrix product with a parameter, activation, sometimes a skip), a loss,
    the backward pass, and an update of each parameter as soon as its gradient is there. 5 operators a layer and 2."""
    b = ProblemBuilder(random, paging=paging)

    def size(low: int, high: int) -> int:
        return random.randint(low, high) * scale

    x = b.tensor("x", size(1, 4), initial="ram")
    target = b.tensor("target", 1, initial="ram")
    weights, saved, kept_for_skip = [], [], [x]
    for i in range(layers):
        w = b.tensor(f"w{i}", size(1, 3), initial="ram")
        units = size(1, 8)
        h = b.tensor(f"h{i}", units)
        a = b.tensor(f"a{i}", units)
        b.operator(
            f"matmul{i}", (x, w), (h,), cost=random.randint(20, 200), workspace=random.choice((0, 0, size(1, 2)))
        )
        skip = (random.choice(kept_for_skip),) if random.random() < skips else ()
        # With a skip: a = act(h) + skip.
        b.operator(f"act{i}", (h, *skip), (a,), cost=random.randint(1, 5), in_place=(InPlace(input=h, output=a),))
        weights.append(w)
        saved.append((x, h, a))
        kept_for_skip = [*kept_for_skip[-2:], a]
        x = a
    loss = b.tensor("loss", 1, final="ram")
    b.operator("loss", (x, target), (loss,), phase="loss")
    gradient = b.tensor("gx", b.tensors[x].size_bytes // UNIT)
    b.operator("loss_grad", (x, target), (gradient,), phase="backward")
    for i in reversed(range(layers)):
        before, h, a = saved[i]
        gh = b.tensor(f"gh{i}", b.tensors[h].size_bytes // UNIT)
        b.operator(
            f"act_grad{i}",
            (a, gradient),
            (gh,),
            phase="backward",
            cost=random.randint(1, 5),
            in_place=(InPlace(input=gradient, output=gh), InPlace(input=a, output=gh)),
        )
        gw = b.tensor(f"gw{i}", b.tensors[weights[i]].size_bytes // UNIT)
        b.operator(f"matmul_grad_w{i}", (before, gh), (gw,), phase="backward", cost=random.randint(20, 200))
        if i:
            gradient = b.tensor(f"g{i}", b.tensors[before].size_bytes // UNIT)
            b.operator(
                f"matmul_grad_x{i}", (gh, weights[i]), (gradient,), phase="backward", cost=random.randint(20, 200)
            )
        w1 = b.tensor(f"w{i}@1", b.tensors[weights[i]].size_bytes // UNIT, final="ram")
        pair = InPlace(input=weights[i], output=w1, required=True)
        b.operator(f"update{i}", (weights[i], gw), (w1,), phase="update", cost=1, recomputable=False, in_place=(pair,))
    return b.problem(f"training{layers}", base_bytes=64, page_buffer_bytes=UNIT if paging else 0)


def with_budget(problem: Problem, fraction: float) -> Problem:
    """Between the first lower bound (0) and the keep-all peak (1)."""
    low, high = order_free_bound_bytes(problem), keep_all_peak_bytes(problem)
    return replace(problem, budget_bytes=low + int(max(0, high - low) * fraction))


def random_decisions(random: Random, problem: Problem, extra: int) -> tuple[Decision, ...]:
    """Keep-all with up to `extra` recomputations, page-outs and page-ins thrown in, each allowed where it stands."""
    decisions = list(keep_all_decisions(problem))
    pageable = problem.paging is not Paging.NONE
    for _ in range(extra):
        at = random.randint(0, len(decisions))
        made, consumed, stored = _state_after(problem, decisions[:at])
        choices: list[Decision] = [
            Compute(k)
            for k in made
            if problem.operators[k].recomputable
            and all(t not in consumed and problem.tensors[t].initial != "store" for t in problem.operators[k].inputs)
        ]
        if pageable:
            there = {t for k in made for t in problem.operators[k].outputs}
            there |= {t for t, tensor in enumerate(problem.tensors) if tensor.initial == "ram"}
            choices += [PageOut(t) for t in sorted(there - consumed) if problem.tensors[t].pageable]
            choices += [PageIn(t) for t in sorted(stored - consumed)] * 3
        if choices:
            decisions.insert(at, random.choice(choices))
    return tuple(decisions)


def _state_after(problem: Problem, decisions: Sequence[Decision]) -> tuple[list[int], set[int], set[int]]:
    """Operators executed, tensors updated in place, tensors on the store."""
    made: dict[int, None] = {}
    stored = {t for t, tensor in enumerate(problem.tensors) if tensor.initial == "store"}
    consumed: set[int] = set()
    for decision in decisions:
        if isinstance(decision, Compute):
            made[decision.operator] = None
            consumed |= {p.input for p in problem.operators[decision.operator].in_place if p.required}
        elif isinstance(decision, PageOut):
            stored.add(decision.tensor)
    return list(made), consumed, stored
