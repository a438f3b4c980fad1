"""Measures the kernels, and fits a device profile to what was measured."""

from poetc.benchmark._fit import ClassFit, Fit, cross_validate, fit, nnls, write_profile
from poetc.benchmark._measure import Measurement, measure, read_csv, write_csv
from poetc.benchmark._networks import networks
from poetc.benchmark._timing import Timing, compare_times, timing_text

__all__ = [
    "ClassFit",
    "Fit",
    "Measurement",
    "Timing",
    "compare_times",
    "cross_validate",
    "fit",
    "measure",
    "networks",
    "nnls",
    "read_csv",
    "timing_text",
    "write_csv",
    "write_profile",
]
