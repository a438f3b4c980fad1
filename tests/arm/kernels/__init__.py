"""Kernels on emulated boards: their bits are those of the host."""
