"""Convolutions and their gradients: runtime/kernels/convolution."""
