"""Adapters for llama.cpp and onnxruntime: read by their own packages, and compared with the merged model."""

from __future__ import annotations

import re
from pathlib import Path

import gguf
import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import numpy_helper

from poetc import TrainingOptions, artifact
from poetc.commands.export import ExportRequest, export_arrays
from poetc.commands.gguf import import_gguf
from poetc.commands.requests import ModelRequest, SolveOptions, SolveRequest
from poetc.commands.solve import solve
from poetc.commands.weights import model_of
from poetc.errors import UnsupportedModelError, UsageError
from tests.support import gguf_files
from tests.support.language import write_decoder

IDS = np.array([[3, 77, 12, 200, 258, 9, 31]], np.int64)
LORA = ("2", "4:q_proj,k_proj:alpha=12")


def _solved(model: Path, lora: tuple[str, ...] = LORA) -> artifact.Artifact:
    options = TrainingOptions(lora=lora, dim=("batch_size=1", f"sequence_length={IDS.size}"))
    request = SolveRequest(model=ModelRequest(source=model, training=options), options=SolveOptions(time_limit_s=1))
    return solve(request)


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, artifact.Artifact, dict[str, np.ndarray]]:
    """A folder with the files, the solved model, and factors that are not 0."""
    folder = tmp_path_factory.mktemp("tuned")
    gguf_files.write(folder / "m.gguf", kind="Q4_0", tied=False)
    import_gguf(folder / "m.gguf", folder / "m.onnx")
    solved, random = _solved(folder / "m.onnx"), np.random.default_rng(3)
    graph = model_of(solved)
    names = [n for n in graph.tensors if ".lora_" in n and n in graph.values]
    state = {n: (0.05 * random.standard_normal(graph.tensors[n].shape)).astype(np.float32) for n in names}
    request = ExportRequest(
        out=folder / "merged.onnx",
        gguf_adapter=folder / "a.gguf",
        onnx_adapter=folder / "a.onnx_adapter",
        adapter_base=folder / "base.onnx",
    )
    export_arrays(solved, state, request)
    found = export_arrays(solved, state, ExportRequest(out=folder / "rounded.onnx", rounding=True))
    (folder / "note.txt").write_text(found["notes"][-1])
    return folder, solved, state


def scores(model: Path, options: onnxruntime.RunOptions | None = None) -> np.ndarray:
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    (found,) = session.run(["logits"], {"input_ids": IDS}, options)
    return np.asarray(found)


def test_onnxruntime_takes_the_adapter(tuned: tuple[Path, artifact.Artifact, dict[str, np.ndarray]]) -> None:
    folder = tuned[0]
    merged, plain = scores(folder / "merged.onnx"), scores(folder / "m.onnx")
    size = np.abs(merged).max()
    assert np.abs(merged - plain).max() > 0.01 * size
    assert np.abs(scores(folder / "base.onnx") - plain).max() < 1e-5 * size
    adapter, options = onnxruntime.LoraAdapter(), onnxruntime.RunOptions()
    adapter.Load(str(folder / "a.onnx_adapter"))
    options.add_active_adapter(adapter)
    assert np.abs(scores(folder / "base.onnx", options) - merged).max() < 1e-4 * size


def test_merged_weights_in_the_codes_of_the_file(
    tuned: tuple[Path, artifact.Artifact, dict[str, np.ndarray]], tmp_path: Path
) -> None:
    """Four bits again, with the error that the note states; onnxruntime computes with them."""
    folder, solved, state = tuned
    found = re.search(r"14 of them in the codes of the file, are rounded: by ([\d.e-]+) at most", note := _note(folder))
    assert found and re.search(r"[\d.]+% of the numbers' root mean square", note)
    whole, coded, plain = (onnx.load(folder / f"{n}.onnx") for n in ("merged", "rounded", "m"))
    assert [n.op_type for n in coded.graph.node] == [n.op_type for n in plain.graph.node]
    assert coded.graph.ByteSize() == plain.graph.ByteSize() < 0.3 * whole.graph.ByteSize()
    floats = {t.name: numpy_helper.to_array(t) for t in whole.graph.initializer}
    makers = {o: n for n in whole.graph.node for o in n.output}
    most, products = 0.0, [n for n in coded.graph.node if n.op_type == "MatMulNBits"]
    for node in products:
        product = makers[makers[node.output[0]].input[0]]  # behind an Identity
        turned = makers.get(product.input[1])
        if turned is not None and turned.input[0] in floats:  # else it has no adapter
            most = max(most, float(np.abs(_numbers(coded, node) - floats[turned.input[0]]).max()))
    assert len(products) >= 14 and most == pytest.approx(float(found[1]), rel=0.01)
    exact, rounded = scores(folder / "merged.onnx"), scores(folder / "rounded.onnx")
    assert 0 < np.abs(rounded - exact).max() < 0.5 * np.abs(scores(folder / "m.onnx") - exact).max()
    export_arrays(
        solved,
        {n: np.zeros_like(a) for n, a in state.items()},
        ExportRequest(out=tmp_path / "same.onnx", rounding=True),
    )
    same = onnx.load(tmp_path / "same.onnx")
    assert same.graph.SerializeToString() == plain.graph.SerializeToString(), "no code changes without need"


def test_a_change_below_half_a_step_of_the_codes_is_lost(
    tuned: tuple[Path, artifact.Artifact, dict[str, np.ndarray]], tmp_path: Path
) -> None:
    """The share that is stated is that of the three files' numbers."""
    folder, solved, state = tuned
    for name, scale, warning in (("small", 0.01, "nearly all"), ("some", 0.2, "much"), ("large", 1.0, None)):
        request = ExportRequest(out=tmp_path / f"{name}.onnx", rounding=True)
        scaled = {n: (scale * a).astype(np.float32) for n, a in state.items()}
        answer = export_arrays(solved, scaled, request)
        export_arrays(solved, scaled, ExportRequest(out=tmp_path / "whole.onnx", force=True))
        whole, coded, plain = (onnx.load(p) for p in (tmp_path / "whole.onnx", request.out, folder / "m.onnx"))
        floats = {t.name: numpy_helper.to_array(t) for t in whole.graph.initializer}
        makers = {o: n for n in whole.graph.node for o in n.output}
        error = change = 0.0
        for node, old in zip(
            *([n for n in m.graph.node if n.op_type == "MatMulNBits"] for m in (coded, plain)), strict=True
        ):
            turned = makers.get(makers[makers[node.output[0]].input[0]].input[1])
            if turned is not None and turned.input[0] in floats:
                wanted = floats[turned.input[0]].astype(np.float64)
                error += float(np.square(wanted - _numbers(coded, node)).sum())
                change += float(np.square(wanted - _numbers(plain, old)).sum())
        lost = answer["rounding_error_of_change"]
        assert lost == pytest.approx((error / change) ** 0.5, rel=1e-3), name
        assert any(f"{lost:.1%} of that of the training's change" in n for n in answer["notes"])
        warnings = [n for n in answer["notes"] if n.startswith("warning: ")]
        assert [f"rounding loses {warning} of the training's change" in n for n in warnings] == [True] * bool(warning)
    assert export_arrays(solved, state, ExportRequest(npz=tmp_path / "w.npz"))["rounding_error_of_change"] is None


def _note(folder: Path) -> str:
    return (folder / "note.txt").read_text()


def _numbers(model: onnx.ModelProto, node: onnx.NodeProto) -> np.ndarray:
    """[N, K] of a MatMulNBits of 4 bits without zero points."""
    held = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}
    codes, scales = held[node.input[1]], held[node.input[2]]
    numbers = np.stack([codes & 15, codes >> 4], -1).reshape(*codes.shape[:2], -1).astype(np.float32) - 8
    return (numbers * scales.reshape(len(codes), -1, 1).astype(np.float32)).reshape(len(codes), -1)


def test_the_gguf_adapter_added_to_the_weights_of_the_gguf_model(
    tuned: tuple[Path, artifact.Artifact, dict[str, np.ndarray]],
) -> None:
    """As llama.cpp adds it: alpha / rank · B · A, in its own order of rows."""
    folder = tuned[0]
    numbers = gguf_files.write(folder / "again.gguf", kind="Q4_0", tied=False)
    reader = gguf.GGUFReader(str(folder / "a.gguf"))
    assert reader.fields["general.type"].contents() == "adapter"
    assert reader.fields["general.architecture"].contents() == "llama"
    alpha = reader.fields["adapter.lora.alpha"].contents()
    held = {t.name: np.array(t.data, np.float64) for t in reader.tensors}
    adapted = {name.removesuffix(".lora_a") for name in held if name.endswith(".lora_a")}
    assert len(adapted) == 7 * gguf_files.LAYERS
    for name in adapted:
        a, b = held[f"{name}.lora_a"], held[f"{name}.lora_b"]
        numbers[name] = numbers[name] + alpha / len(a) * b @ a
    expected = gguf_files.logits(numbers, "llama", IDS[0])
    merged = scores(folder / "merged.onnx")[0]
    assert np.abs(merged - expected).max() < 1e-4 * np.abs(expected).max()


def test_models_that_have_no_such_format(tmp_path: Path) -> None:
    solved = _solved(write_decoder(tmp_path / "model.onnx"))
    with pytest.raises(UnsupportedModelError, match=r"was not made by poetc import-gguf.*convert_lora_to_gguf"):
        export_arrays(solved, {}, ExportRequest(gguf_adapter=tmp_path / "a.gguf"))
    with pytest.raises(UsageError, match="named twice"):
        ExportRequest(gguf_adapter=tmp_path / "a", onnx_adapter=tmp_path / "a").outputs()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["model.onnx"]


@pytest.mark.parametrize(
    ("lora", "written", "message"),
    [
        (("2:dora",), {"gguf_adapter": "a.gguf"}, "magnitudes of dora"),
        (("2:dora",), {"onnx_adapter": "a.onnx_adapter"}, "magnitudes of dora"),
        (("2:dora",), {"adapter_base": "base.onnx"}, "magnitudes of dora"),
        (("2", "2:q_proj:dora"), {"adapter": "a.safetensors"}, "DoRA for all adapters or none"),
    ],
)
def test_magnitudes_have_no_place_in_some_files(
    lora: tuple[str, ...], written: dict[str, str], message: str, tmp_path: Path
) -> None:
    gguf_files.write(tmp_path / "m.gguf", kind="Q4_0", tied=False)
    import_gguf(tmp_path / "m.gguf", tmp_path / "m.onnx")
    request = ExportRequest(**{name: tmp_path / file for name, file in written.items()})  # type: ignore[arg-type]
    with pytest.raises(UnsupportedModelError, match=message) as caught:
        export_arrays(_solved(tmp_path / "m.onnx", lora), {}, request)
    assert "\n" not in str(caught.value)
