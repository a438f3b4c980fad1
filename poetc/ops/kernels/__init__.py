"""Which kernel a shape gets, and its parameters by name: records that operators, counts of loops and C share."""

from poetc.ops.kernels.kernel import Kernel, Parameters
from poetc.ops.kernels.low_workspace import low_workspace_kernels
