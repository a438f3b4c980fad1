"""Chains as the papers on checkpointing know them: l equal steps, their adjoints, nothing else."""

from __future__ import annotations

from collections.abc import Sequence

from poetc.scheduling import OperatorSpec, Paging, Problem, TensorSpec

UNIT = 16


def chain(
    steps: int,
    *,
    sizes: Sequence[int] | None = None,
    costs: Sequence[int] | None = None,
    reads_output: bool = False,
    budget_units: int = 1 << 20,
    page: tuple[int, int] | None = None,
) -> Problem:
    """x0 -> x1 -> ... -> xl -> gradient gl -> ... -> g0; the adjoint of step k reads x(k-1) (or xk) and gk.

    `sizes`: of x1 ... xl in units of 16 bytes; gradients take one unit. `page`: energy to write and to read a unit.
    """
    sizes = [1] * steps if sizes is None else list(sizes)
    costs = [1] * steps if costs is None else list(costs)

    def tensor(name: str, units: int, initial: bool = False, final: bool = False) -> TensorSpec:
        out, into = page or (0, 0)
        return TensorSpec(
            name=name,
            size_bytes=units * UNIT,
            initial="ram" if initial else "",
            final="ram" if final else "",
            pageable=page is not None and not initial and not final,
            page_out_pj=out * units,
            page_in_pj=into * units,
        )

    tensors = [tensor("x0", 1, initial=True)] + [tensor(f"x{k + 1}", sizes[k]) for k in range(steps)]
    tensors += [tensor(f"g{k}", 1, final=k == 0) for k in range(steps, -1, -1)]
    gradient = {k: steps + 1 + (steps - k) for k in range(steps + 1)}
    operators = [
        OperatorSpec(name=f"f{k + 1}", kind="Conv", inputs=(k,), outputs=(k + 1,), time_ns=costs[k], energy_pj=costs[k])
        for k in range(steps)
    ]
    operators.append(
        OperatorSpec(name="loss", phase="loss", inputs=(steps,), outputs=(gradient[steps],), time_ns=1, energy_pj=1)
    )
    for k in range(steps, 0, -1):
        read = k if reads_output else k - 1
        operators.append(
            OperatorSpec(
                name=f"b{k}",
                phase="backward",
                inputs=(read, gradient[k]),
                outputs=(gradient[k - 1],),
                time_ns=1,
                energy_pj=1,
            )
        )
    return Problem(
        name=f"chain{steps}",
        operators=tuple(operators),
        tensors=tuple(tensors),
        budget_bytes=budget_units * UNIT,
        paging=Paging.NONE if page is None else Paging.SYNC,
    )
