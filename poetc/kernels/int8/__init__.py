"""Products and pools of integers of 8 bits: runtime/kernels/int8."""
