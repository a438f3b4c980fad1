"""Operator kinds, one file a family. `_registry.py` lists the parts that a kind must provide."""

from poetc.entry_points import own_modules
from poetc.kernels import Kernel, Parameters
from poetc.ops._blocks import kernels_of_blocks
from poetc.ops._bound import Bound, bind
from poetc.ops._builder import Builder
from poetc.ops._by_parts import box_of, results_by_parts
from poetc.ops._cuts import INDICES, WHOLE, Cut, Part, Range, Span, whole
from poetc.ops._indices import Indices, Use
from poetc.ops._others import load_others
from poetc.ops._registry import OpSpec, Work, register, registry, spec
from poetc.ops._samples import sample
from poetc.ops._strides import collapse, contiguous_strides, view_steps
from poetc.ops._views import view_roots

own_modules(__name__)

__all__ = [
    "INDICES",
    "WHOLE",
    "Bound",
    "Builder",
    "Cut",
    "Indices",
    "Kernel",
    "OpSpec",
    "Parameters",
    "Part",
    "Range",
    "Span",
    "Use",
    "Work",
    "bind",
    "box_of",
    "collapse",
    "contiguous_strides",
    "kernels_of_blocks",
    "load_others",
    "register",
    "registry",
    "results_by_parts",
    "sample",
    "spec",
    "view_roots",
    "view_steps",
    "whole",
]
