"""A training begins with code that is compiled soon, and goes on with the fastest; unused kernels are not compiled."""

from __future__ import annotations

import ctypes
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import poetc
from poetc import measure
from poetc.commands import trainer
from poetc.commands.programs import all_programs, values_of
from poetc.emit import runtime_sources, without_unused
from poetc.measure import QuickBuild, compile_library
from poetc.ops import load_others
from poetc.runtime.session import Session


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    """A model without products, whose kernels take a compiler long, and data for it."""
    draw = np.random.default_rng(1).standard_normal
    nodes = [
        helper.make_node("Mul", ["x", "w"], ["h"]),
        helper.make_node("Relu", ["h"], ["r"]),
        helper.make_node("Add", ["r", "b"], ["y"]),
    ]
    weights = {"w": draw(3), "b": draw(3)}
    graph = helper.make_graph(
        nodes,
        "scales",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [4, 3])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [4, 3])],
        [numpy_helper.from_array(a.astype(np.float32), name) for name, a in weights.items()],
    )
    model, data = tmp_path / "model.onnx", tmp_path / "data.npz"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), model)
    np.savez(data, x=draw((40, 3)).astype(np.float32), y=draw((40, 3)).astype(np.float32))
    return model, data


def _trained(files: tuple[Path, Path], out: Path) -> bytes:
    model = poetc.load(files[0], training=poetc.TrainingOptions(optimizer="adam"))
    poetc.train(model=model, data=f"{files[1]}:x,y", out=out, epochs=2)
    return out.read_bytes()


def test_a_training_goes_on_with_other_code_and_the_same_bits(
    files: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CCACHE_DISABLE", "1")
    monkeypatch.delenv("POETC_TEST_LEVEL", raising=False)  # which would make both codes one
    first = _trained(files, tmp_path / "first.onnx")
    taken, take_over, better = [], Session.take_over, QuickBuild.better

    def ready_in_the_fourth_step(build: QuickBuild) -> Path | None:
        taken.append("asked")
        if len(taken) < 4:
            return None
        better(build)
        assert build._thread is not None
        build._thread.join()
        return better(build)

    def counted(session: Session, other: Session) -> None:
        assert other.steps == 3
        taken.append("taken")
        take_over(session, other)

    monkeypatch.setattr(QuickBuild, "better", ready_in_the_fourth_step)
    monkeypatch.setattr(Session, "take_over", counted)
    monkeypatch.setattr("poetc.measure._quick_build.LASTS_S", 0.0)
    second = _trained(files, tmp_path / "second.onnx")
    assert taken.count("taken") == 1
    assert second == first


def test_sources_are_copied_where_files_have_no_second_name(
    files: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object, **__: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr("os.link", refused)
    assert _trained(files, tmp_path / "out.onnx")


def test_a_build_has_no_kernel_that_nothing_calls(files: tuple[Path, Path], tmp_path: Path) -> None:
    solved = poetc.load(files[0]).solve(device="host").artifact
    dll = ctypes.CDLL(str(compile_library(all_programs(solved), values_of(solved), tmp_path)))
    assert hasattr(dll, "poetc_op_relu")
    assert not hasattr(dll, "poetc_op_gelu")
    assert hasattr(dll, "poetc_session_step")
    assert not hasattr(dll, "poetc_task_add")  # of boards whose examples come one by one


def test_what_another_kernel_calls_stays() -> None:
    load_others()
    runtime = {f"runtime/{n}": p for n, p in runtime_sources(["poetc_op_narrow_relu"]).items()}
    text = without_unused(runtime, ["poetc_op_narrow_relu"])["runtime/kernels/operators/activation.c"]
    assert isinstance(text, bytes)
    declared = text.split(b"#line", 1)[0]
    assert b"poetc_op_gelu(" in declared
    assert b"poetc_op_relu(" not in declared


def test_what_a_header_calls_stays(tmp_path: Path) -> None:
    header = tmp_path / "a.h"
    header.write_text(
        "int poetc_op_selu(const poetc_call *call);\nextern poetc_kernel_of_activation poetc_op_elu;\n"
        "static inline int both(const poetc_call *call) { return poetc_op_gelu(call); }\n"
    )
    kernels = runtime_sources(["poetc_op_relu"])["kernels/operators/activation.c"]
    text = without_unused({"runtime/a.h": header, "runtime/k.c": kernels}, ["poetc_op_relu"])["runtime/k.c"]
    assert isinstance(text, bytes)
    declared = text.split(b"#line", 1)[0]
    assert all(f"poetc_op_{name}(".encode() in declared for name in ("selu", "elu", "tanh"))
    assert all(f"poetc_op_{name}(".encode() not in declared for name in ("gelu", "relu"))


@pytest.mark.parametrize(("cores", "threads"), [(8, 3), (2, 2), (1, 0)])
def test_a_large_step_is_built_once_with_the_threads_of_its_schedule(
    cores: int, threads: int, files: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(cores)))
    solved = poetc.load(files[0]).solve(device="host").artifact
    solved = replace(solved, summary={**solved.summary, "threads": 3})
    made, built, compile_ = [], [], measure.compile_library
    monkeypatch.setattr(trainer, "MOST_TWICE", 0)
    monkeypatch.setattr(trainer, "all_programs", lambda *given: made.append(given) or all_programs(*given))
    monkeypatch.setattr(measure, "compile_library", lambda *a, **b: built.append(b["threads"]) or compile_(*a, **b))
    with trainer.quick_trainer(solved) as (session, successor):
        assert successor() is None and session.state_names()
    assert (len(made), built) == (1, [threads])
