"""Gradients of weights with lanes along the channels: convolution_turned.c."""
