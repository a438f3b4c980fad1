"""Low-workspace kernels run the same C function, with fewer columns, images, tiles or outputs at a time.

The bits are the same: no sum has other terms or another order, since blocks of terms stay as they are. Kernels without
workspace add up in another order, and Winograd's filters compute something else. So neither is a low-workspace kernel
of a packing one. On Helium a convolution runs without packing where its workspace has room (convolution_packed*.c,
direct_*). No low-workspace kernel changes that: they are chosen by shape alone, for all targets.
"""

from __future__ import annotations

from dataclasses import replace

from poetc.kernels.convolution import low_workspace as convolution
from poetc.kernels.convolution_turned import low_workspace as turned
from poetc.kernels.convolution_winograd import low_workspace as winograd
from poetc.kernels.gemm import low_workspace as gemm
from poetc.kernels.kernel import Kernel

WORTH = 8  # each saves at least this part of the workspace of the one before
_RULES = gemm.RULES | convolution.RULES | turned.RULES | winograd.RULES


def low_workspace_kernels(kernel: Kernel) -> tuple[Kernel, ...]:
    """Return the alternatives to `kernel`, each with less workspace than the one before."""
    rule = _RULES.get(type(kernel.parameters))
    if rule is None or not kernel.workspace_bytes:
        return ()
    kernels: list[Kernel] = []
    least, direct = kernel.workspace_bytes, convolution.direct(kernel)
    for parameters, floats in rule(kernel):
        other = replace(kernel, parameters=parameters, workspace_bytes=4 * floats, alternative=1 + len(kernels))
        if WORTH * other.workspace_bytes <= (WORTH - 1) * least and convolution.direct(other) == direct:
            kernels.append(other)
            least = other.workspace_bytes
    return tuple(kernels)
