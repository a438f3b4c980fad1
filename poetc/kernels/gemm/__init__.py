"""Products of matrices: runtime/kernels/gemm."""
