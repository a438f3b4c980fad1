"""Kernels that go over elements and rows: runtime/kernels/operators."""
