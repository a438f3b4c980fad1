"""The onnx package's own node tests. All of them take nine seconds to compute: one process does it for the others."""

from __future__ import annotations

import fcntl
import functools
import importlib
import pickle
import warnings
from typing import Any

import onnx

from tests.support.compilers import cache_folder

PACKAGE = "onnx.backend.test.case.node"


@functools.cache
def every_case() -> list[Any]:
    """All cases that have data: read from what this process or another wrote, of this version of onnx."""
    path = cache_folder() / f"onnx-cases-{onnx.__version__}.pickle"
    with path.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not path.exists():
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                found = importlib.import_module(PACKAGE).collect_testcases(None)
            scratch = path.with_suffix(".new")
            scratch.write_bytes(pickle.dumps([case for case in found if case.data_sets]))
            scratch.rename(path)
    cases: list[Any] = pickle.loads(path.read_bytes())
    return cases


def cases_of(*modules: str) -> list[Any]:
    """The cases of a few operators, by the names of their files: quick enough for the collection of tests."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in modules:
            importlib.import_module(f"{PACKAGE}.{name}")
        found = importlib.import_module(PACKAGE)._NodeTestCases
    return [case for case in found if case.data_sets]
