"""Operator kinds, one file a family. `_registry.py` says what a kind must provide."""

from poetc.ops._builder import Builder
from poetc.ops._registry import Bound, Kernel, OpSpec, Work, bind, register, registry, spec
from poetc.ops._samples import Use, sample
from poetc.ops._views import view_roots

__all__ = [
    "Bound",
    "Builder",
    "Kernel",
    "OpSpec",
    "Use",
    "Work",
    "bind",
    "register",
    "registry",
    "sample",
    "spec",
    "view_roots",
]
