"""Synthetic training problems for solver benchmarks: convolution networks, transformers and chains, with weights and
updates.

Costs follow a simple roofline: time = max(FLOP / rate, bytes / bandwidth). They resemble what a graph and a device
profile give, without needing either.
"""

from __future__ import annotations

import argparse
import dataclasses
from dataclasses import dataclass, field
from pathlib import Path

from poetc.scheduling import InPlace, OperatorSpec, Paging, Problem, TensorSpec, problem_to_json

FLOPS_PER_S, BYTES_PER_S, WATTS, STORE_BYTES_PER_S, STORE_WATTS = 2e9, 2e9, 3.0, 3e7, 0.5


@dataclass
class Network:
    """Records forward operators, then `train` appends the backward pass and the updates."""

    name: str
    tensors: list[TensorSpec] = field(default_factory=list)
    operators: list[OperatorSpec] = field(default_factory=list)
    tape: list[tuple[str, tuple[int, ...], int | None, int, float, tuple[int, ...]]] = field(default_factory=list)
    updates: list[tuple[int, int]] = field(default_factory=list)
    gradients: dict[int, int] = field(default_factory=dict)

    def tensor(self, name: str, size: float, initial: str = "", final: str = "") -> int:
        size_bytes = (int(size) + 15) // 16 * 16
        page_ns, page_pj = (
            int(size_bytes / STORE_BYTES_PER_S * 1e9),
            int(size_bytes / STORE_BYTES_PER_S * STORE_WATTS * 1e12),
        )
        moved_s = 2 * size_bytes / BYTES_PER_S
        self.tensors.append(
            TensorSpec(
                name=f"{name}.{len(self.tensors)}",
                size_bytes=size_bytes,
                initial=initial,
                final=final,  # type: ignore[arg-type]
                pageable=not initial and not final,
                page_in_ns=page_ns,
                page_in_pj=page_pj,
                page_out_ns=2 * page_ns,
                page_out_pj=2 * page_pj,
                move_ns=int(moved_s * 1e9),
                move_pj=int(moved_s * WATTS * 1e12),
            )
        )
        return len(self.tensors) - 1

    def operator(
        self,
        kind: str,
        phase: str,
        inputs: tuple[int, ...],
        outputs: tuple[int, ...],
        flop: float,
        in_place: tuple[InPlace, ...] = (),
        workspace: int = 0,
        recomputable: bool = True,
    ) -> None:
        moved = sum(self.tensors[t].size_bytes for t in (*inputs, *outputs))
        seconds = max(flop / FLOPS_PER_S, moved / BYTES_PER_S) + 1e-6
        self.operators.append(
            OperatorSpec(
                name=f"{kind}.{len(self.operators)}",
                kind=kind,
                phase=phase,
                inputs=tuple(dict.fromkeys(inputs)),
                outputs=outputs,
                time_ns=int(seconds * 1e9),
                energy_pj=int(seconds * WATTS * 1e12),
                workspace_bytes=workspace,
                in_place=in_place,
                recomputable=recomputable,
            )
        )

    def apply(
        self,
        kind: str,
        inputs: tuple[int, ...],
        size: float,
        flop: float,
        weight: float = 0,
        saves: str = "xy",
        in_place: bool = False,
    ) -> int:
        """A forward operator. `saves`: x = its gradient reads the inputs, y = the output."""
        w = self.tensor(f"{kind}.w", weight, "ram", "") if weight else None
        out = self.tensor(kind, size)
        reads = (*inputs, w) if w is not None else inputs
        pairs = tuple(
            InPlace(input=i, output=out)
            for i in inputs
            if in_place and self.tensors[i].size_bytes == self.tensors[out].size_bytes
        )
        self.operator(kind, "forward", reads, (out,), flop, pairs)
        saved = tuple(inputs) if "x" in saves else ()
        saved += (out,) if "y" in saves else ()
        self.tape.append((kind, inputs, w, out, flop, saved))
        return out

    def train(self, loss_input: int, data: int) -> Problem:
        gradient: dict[int, int] = {}
        g = self.tensor("gloss", self.tensors[loss_input].size_bytes)
        self.operator("loss", "loss", (loss_input,), (g,), self.tensors[loss_input].size_bytes)
        gradient[loss_input] = g
        for kind, inputs, w, out, flop, saved in reversed(self.tape):
            gy = gradient.pop(out)
            if w is not None:
                gw = self.tensor(f"{kind}.gw", self.tensors[w].size_bytes)
                self.operator(f"{kind}.gradw", "backward", (*[s for s in saved if s != out], gy), (gw,), flop)
                new = self.tensor(f"{kind}.w1", self.tensors[w].size_bytes, "", "ram")
                update = (w, gw, new)
            for i in dict.fromkeys(inputs):
                if i == data:
                    continue
                gx = self.tensor(f"{kind}.gx", self.tensors[i].size_bytes)
                reads = (gy, w) if w is not None else (gy, *saved)
                same = self.tensors[gy].size_bytes == self.tensors[gx].size_bytes and w is None and len(inputs) == 1
                pairs = (InPlace(input=gy, output=gx),) if same else ()
                self.operator(f"{kind}.gradx", "backward", reads, (gx,), flop, pairs)
                if i in gradient:
                    total = self.tensor(f"{kind}.sum", self.tensors[i].size_bytes)
                    old = gradient[i]
                    self.operator(
                        "add",
                        "backward",
                        (old, gx),
                        (total,),
                        self.tensors[i].size_bytes / 4,
                        (InPlace(input=old, output=total), InPlace(input=gx, output=total)),
                    )
                    gx = total
                gradient[i] = gx
            if w is not None:
                w0, gw0, new0 = update
                self.operator(
                    "sgd",
                    "update",
                    (w0, gw0),
                    (new0,),
                    self.tensors[w0].size_bytes / 2,
                    (InPlace(input=w0, output=new0, required=True),),
                    recomputable=False,
                )
        return Problem(
            name=self.name,
            operators=tuple(self.operators),
            tensors=tuple(self.tensors),
            budget_bytes=1 << 60,
            paging=Paging.NONE,
        )


def chain(layers: int = 30, batch: int = 8) -> Problem:
    net = Network(f"chain{layers}")
    x = data = net.tensor("x", batch * 4096, "ram")
    for k in range(layers):
        width = 64 + 32 * (k % 5)
        x = net.apply("dense", (x,), batch * 4 * width, 2.0 * batch * width * 128, 4 * width * 128, "x")
        x = net.apply("relu", (x,), batch * 4 * width, batch * width, saves="y", in_place=True)
    return net.train(x, data)


def resnet(blocks: tuple[int, ...] = (3, 4, 6, 3), batch: int = 16, side: int = 56, bottleneck: bool = True) -> Problem:
    net = Network(f"resnet{sum(blocks)}")

    def conv(x: int, hw: int, cin: int, cout: int, k: int, act: bool = True) -> int:
        macs = batch * hw * hw * cin * cout * k * k
        y = net.apply("conv", (x,), 4 * batch * cout * hw * hw, 2.0 * macs, 4 * cin * cout * k * k, "x")
        y = net.apply("bn", (y,), 4 * batch * cout * hw * hw, batch * cout * hw * hw * 6, 8 * cout, "x")
        return (
            net.apply("relu", (y,), 4 * batch * cout * hw * hw, batch * cout * hw * hw, saves="y", in_place=True)
            if act
            else y
        )

    data = net.tensor("x", 4 * batch * 3 * (2 * side) ** 2, "ram")
    x = conv(data, side, 3, 64, 7)
    cin, hw = 64, side
    for stage, count in enumerate(blocks):
        width = 64 << stage
        out = width * 4 if bottleneck else width
        for k in range(count):
            if k == 0 and stage:
                hw //= 2
            y = conv(x, hw, cin, width, 1 if bottleneck else 3)
            if bottleneck:
                y = conv(y, hw, width, width, 3)
            y = conv(y, hw, width, out, 1 if bottleneck else 3, act=False)
            s = conv(x, hw, cin, out, 1, act=False) if k == 0 else x
            z = net.apply("add", (y, s), 4 * batch * out * hw * hw, batch * out * hw * hw, saves="")
            x = net.apply("relu", (z,), 4 * batch * out * hw * hw, batch * out * hw * hw, saves="y", in_place=True)
            cin = out
    x = net.apply("pool", (x,), 4 * batch * cin, batch * cin * hw * hw, saves="")
    x = net.apply("dense", (x,), 4 * batch * 1000, 2.0 * batch * cin * 1000, 4 * cin * 1000, "x")
    return net.train(x, data)


def transformer(layers: int = 12, width: int = 768, sequence: int = 128, batch: int = 4, heads: int = 12) -> Problem:
    net = Network(f"transformer{layers}")
    n, f = batch * sequence, 4 * batch * sequence * width
    p = 4 * batch * heads * sequence * sequence
    x = data = net.tensor("x", f, "ram")

    def dense(x: int, out: float, k: int, m: int) -> int:
        return net.apply("dense", (x,), out, 2.0 * n * k * m, 4 * k * m, "x")

    for _ in range(layers):
        h = net.apply("norm", (x,), f, n * width * 8, 8 * width, "x")
        q, k, v = (dense(h, f, width, width) for _ in range(3))
        s = net.apply("scores", (q, k), p, 2.0 * n * sequence * width, saves="x")
        a = net.apply("softmax", (s,), p, p, saves="y", in_place=True)
        d = net.apply("dropout", (a,), p, p / 2, saves="")
        c = net.apply("context", (d, v), f, 2.0 * n * sequence * width, saves="x")
        c = dense(c, f, width, width)
        x = net.apply("add", (x, c), f, n * width, saves="")
        h = net.apply("norm", (x,), f, n * width * 8, 8 * width, "x")
        h = dense(h, 4 * f, width, 4 * width)
        g = net.apply("gelu", (h,), 4 * f, 4 * n * width * 8, saves="x")
        g = dense(g, f, 4 * width, width)
        x = net.apply("add", (x, g), f, n * width, saves="")
    x = net.apply("norm", (x,), f, n * width * 8, 8 * width, "x")
    x = net.apply("dense", (x,), 4 * n * 1000, 2.0 * n * width * 1000, 4 * width * 1000, "x")
    return net.train(x, data)


def with_pageable_state(problem: Problem) -> Problem:
    """Weights may be paged as well, and live on the store; for what keep-all needs."""
    from poetc.scheduling import keep_all_peak_bytes

    tensors = tuple(dataclasses.replace(t, pageable=True) for t in problem.tensors)
    budget = keep_all_peak_bytes(problem)
    return dataclasses.replace(problem, tensors=tensors, paging=Paging.SYNC, budget_bytes=budget)


def with_budget(problem: Problem, fraction: float, *, paging: bool = False, deadline: float | None = None) -> Problem:
    """The problem at a fraction of its keep-all peak."""
    from poetc.scheduling import keep_all_peak_bytes

    return dataclasses.replace(
        problem,
        budget_bytes=int(keep_all_peak_bytes(problem) * fraction),
        paging=Paging.SYNC if paging else Paging.NONE,
        deadline_ns=None if deadline is None else int(problem.compute_once_ns * deadline),
    )


def main() -> None:
    """A transformer of so many layers with pageable weights, as a file that `poetc solve` reads."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--layers", type=int, default=93, help="54 operators each, 6 beside them")
    parser.add_argument("out", type=Path)
    options = parser.parse_args()
    options.out.write_bytes(problem_to_json(with_pageable_state(transformer(options.layers))))


if __name__ == "__main__":
    main()
