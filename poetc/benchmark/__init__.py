"""Measures the kernels, and fits a device profile to the measurements."""

from poetc.benchmark._cycle_profile import cycles_document, cycles_text, fit_cycles
from poetc.benchmark._firmware import emit_bench
from poetc.benchmark._integers import coded_steps, integer_steps
from poetc.benchmark._measure import Measurement, bench, paging_program, plain_program, read_csv, step_of, write_csv
from poetc.benchmark._networks import board_networks, networks
from poetc.benchmark._pipeline import Loop, by_class, innermost_loops, model_of, run_model, target_of
from poetc.benchmark._profile_fit import (
    cross_validate,
    fit,
    fit_document,
    fit_text,
    least,
    nnls,
    write_profile,
)
from poetc.benchmark._timing import Timing, compare_times, time_solved, timing_text
