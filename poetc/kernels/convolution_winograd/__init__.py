"""Winograd's minimal filters: convolution_winograd.c."""
