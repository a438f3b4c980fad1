"""Which kernel a shape gets, its parameters, how often its loops run, and those with less workspace.

A folder a family, named as the folder or file of its C in runtime/kernels. Operators, counts of loops and C share the
records of parameters.
"""

from poetc.kernels.kernel import Kernel, Parameters
from poetc.kernels.low_workspace import low_workspace_kernels
