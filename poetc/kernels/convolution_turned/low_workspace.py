"""Rules of low-workspace kernels: fewer images at a time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from poetc.kernels.convolution_turned.selection import TurnedGradWeight, floats_of, images_at_once, sum_floats
from poetc.kernels.kernel import Kernel, Parameters, Rule, Sized


def _turned_images(kernel: Kernel) -> Iterator[Sized]:
    p = kernel.parameters_as(TurnedGradWeight)
    each, least = floats_of(p.convolution)
    images = images_at_once(p.workspace_floats, p.convolution)
    while images > 1:
        images = -(-images // 2)
        floats = least + sum_floats(p.convolution) + images * each
        yield replace(p, workspace_floats=floats), floats


RULES: dict[type[Parameters], Rule] = {TurnedGradWeight: _turned_images}
