"""Depthwise convolutions: runtime/kernels/depthwise."""
