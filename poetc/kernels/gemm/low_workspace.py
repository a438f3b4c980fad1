"""Rules of low-workspace kernels: fewer columns at a time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from poetc.kernels.gemm.packing import COLUMNS, PANELS, workspace_floats
from poetc.kernels.gemm.selection import PackedProduct, PackedSgdProduct, sgd_block_floats
from poetc.kernels.kernel import Kernel, Parameters, Rule, Sized


def _product(kernel: Kernel) -> Iterator[Sized]:
    p = kernel.parameters_as(PackedProduct)
    for panels in PANELS:
        floats = workspace_floats(p.columns, p.terms, panels, p.strides.a_term != 1)
        yield replace(p, workspace_floats=floats), floats


def _sgd_product(kernel: Kernel) -> Iterator[Sized]:
    p = kernel.parameters_as(PackedSgdProduct)
    for panels in PANELS:
        columns = panels * COLUMNS
        fewer = replace(p, block_floats=sgd_block_floats(p.terms, columns), columns_at_once=columns)
        yield fewer, fewer.workspace_floats


RULES: dict[type[Parameters], Rule] = {PackedProduct: _product, PackedSgdProduct: _sgd_product}
