"""Kernels of less workspace, in assembly and in plain C, on emulated boards: the same bits."""
