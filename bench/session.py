"""Overhead of a step of the Python session beside the call in C that it makes: `python -m bench.session`.

Both train the same library on the same arrays: `Session.step` from Python, and `poetc_session_step` in a loop in C,
with pointers to the arrays, so that both copy and check the inputs. Rounds of the two alternate in one process. The
fastest round of each is compared, so that other load on the machine is left out. Prints one line of JSON.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import subprocess
import tempfile
import time
from pathlib import Path

import numpy as np
from onnx import TensorProto, helper, numpy_helper, save

import poetc
from poetc.runtime.session import Session

ROUNDS, ROUND_S = 101, 0.02
LOOP = """
#include <time.h>
typedef int (*step_function)(void *, const void *const *, float *);
/* Nanoseconds of `count` steps, or a negative code. */
long long loop(step_function step, void *session, const void *const *inputs, int count)
{
    struct timespec a, b;
    float loss;
    int i, err = 0;

    clock_gettime(CLOCK_MONOTONIC, &a);
    for (i = 0; i < count && !err; i++)
        err = step(session, inputs, &loss);
    clock_gettime(CLOCK_MONOTONIC, &b);
    return err ? err : (b.tv_sec - a.tv_sec) * 1000000000ll + b.tv_nsec - a.tv_nsec;
}
"""


def measure(session: Session, directory: Path) -> dict[str, float]:
    (directory / "loop.c").write_text(LOOP)
    words = ["gcc", "-O2", "-shared", "-fPIC", "-o", str(directory / "loop.so"), str(directory / "loop.c")]
    subprocess.run(words, check=True)
    loop = ctypes.CDLL(str(directory / "loop.so")).loop
    loop.restype = ctypes.c_longlong
    random = np.random.default_rng(0)
    arrays = [
        random.integers(0, 2, shape, dtype) if dtype.kind == "i" else random.standard_normal(shape).astype(dtype)
        for shape, dtype in session.inputs().values()
    ]
    session.learning_rate = 1e-6  # losses stay finite for as long as it takes
    pointers = (ctypes.c_void_p * len(arrays))(*(array.ctypes.data for array in arrays))
    start = time.perf_counter()
    session.step(*arrays)
    count = max(1, int(ROUND_S / (time.perf_counter() - start)))
    in_c, in_python = [], []
    for _ in range(ROUNDS):
        ns = loop(session._c_step, session._pointer, pointers, count)
        assert ns >= 0, ns
        in_c.append(ns / count / 1000)
        start_ns = time.perf_counter_ns()
        for _ in range(count):
            session.step(*arrays)
        in_python.append((time.perf_counter_ns() - start_ns) / count / 1000)
    c_us, python_us = min(in_c), min(in_python)
    return {
        "steps_a_round": count,
        "c_us": round(c_us, 3),
        "python_us": round(python_us, 3),
        "overhead_us": round(python_us - c_us, 3),
        "ratio": round(python_us / c_us, 5),
    }


def write_small(path: Path) -> None:
    """x [8, 16] -> dense -> relu -> dense -> logits [8, 4]."""
    random = np.random.default_rng(0)
    weights = [
        numpy_helper.from_array(random.standard_normal(shape).astype(np.float32) * 0.1, name)
        for name, shape in (("w1", (16, 32)), ("w2", (32, 4)))
    ]
    nodes = [
        helper.make_node("MatMul", ["x", "w1"], ["h"]),
        helper.make_node("Relu", ["h"], ["a"]),
        helper.make_node("MatMul", ["a", "w2"], ["logits"]),
    ]
    x, y = (
        helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
        for name, shape in (("x", [8, 16]), ("logits", [8, 4]))
    )
    graph = helper.make_graph(nodes, "small", [x], [y], weights)
    save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", type=Path, help="default: two dense layers, a step of microseconds")
    parser.add_argument("--batch", type=int)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        directory = Path(scratch)
        model = arguments.model or directory / "small.onnx"
        if arguments.model is None:
            write_small(model)
        solution = poetc.load(model, batch=arguments.batch).solve(device="host", time_limit_s=10)
        with solution.trainer() as session:
            print(json.dumps({"model": model.name, "batch": arguments.batch, **measure(session, directory)}))


if __name__ == "__main__":
    main()
