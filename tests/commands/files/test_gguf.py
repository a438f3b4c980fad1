"""GGUF files become ONNX: numbers of blocks, logits and tokenizers beside others, and damaged files in one line."""

from __future__ import annotations

import random
from pathlib import Path

import gguf
import numpy as np
import onnxruntime
import pytest
from tokenizers import Tokenizer

from poetc.commands.gguf import BLOCKS, import_gguf
from poetc.errors import PoetcError, UnsupportedModelError, UsageError
from poetc.frontend import load
from poetc.training import adapter_names, select_updates
from tests.support import gguf_files
from tests.support.graphs import evaluate

IDS = np.array([[3, 77, 12, 200, 256, 9, 31]], np.int64)
LESS_THAN_A_BIT = 2.0**-23
ROUNDED = ("Q4_1", "Q5_1", "Q4_K", "Q5_K")  # those with a least number in each block


@pytest.mark.parametrize("kind", BLOCKS)
def test_numbers_of_blocks(kind: str) -> None:
    raw = gguf_files.random_blocks(kind, (6, 512), np.random.default_rng(1))
    expected = gguf.quants.dequantize(raw, gguf.GGMLQuantizationType[kind])
    found = BLOCKS[kind](raw, 6)
    assert found.codes.max() < 2**found.bits
    error = np.abs(found.decoded() - expected).max() / np.abs(expected).max()
    assert error <= (LESS_THAN_A_BIT if kind in ROUNDED else 0)


@pytest.mark.parametrize(
    ("architecture", "kind", "table", "tied"),
    [
        ("llama", "Q4_1", "Q8_0", True),
        ("llama", "Q4_0", "Q4_0", False),
        ("llama", "Q4_K", "Q6_K", True),
        ("qwen2", "Q8_0", "F16", True),
        ("qwen3", "Q6_K", "Q4_1", True),
        ("gemma3", "F16", "F32", True),
    ],
)
def test_logits_are_those_of_the_file(tmp_path: Path, architecture: str, kind: str, table: str, tied: bool) -> None:
    numbers = gguf_files.write(tmp_path / "m.gguf", architecture, kind, table, tied=tied)
    document = import_gguf(tmp_path / "m.gguf", tmp_path / "m.onnx")
    expected = gguf_files.logits(numbers, architecture, IDS[0])
    session = onnxruntime.InferenceSession(tmp_path / "m.onnx", providers=["CPUExecutionProvider"])
    (found,) = session.run(["logits"], {"input_ids": IDS})
    size = np.abs(expected).max()
    assert np.abs(found[0] - expected).max() < 1e-4 * size
    graph = load(tmp_path / "m.onnx", rows=1, dims={"sequence_length": IDS.size})
    made = evaluate(graph, {"input_ids": IDS.astype(np.int32)})[graph.outputs[0]]
    assert np.abs(made[0] - expected).max() < 1e-4 * size
    assert bool(document["notes"]) == (table == "Q4_1")
    modules = {a.removesuffix(".lora_A.weight") for a, _ in adapter_names(graph, _adapted(graph)).values()}
    layers = [f"model.layers.{n}." for n in range(gguf_files.LAYERS)]
    products = [f"self_attn.{x}_proj" for x in "qkvo"] + [f"mlp.{x}_proj" for x in ("gate", "up", "down")]
    assert modules == {layer + product for layer in layers for product in products}


def _adapted(graph: object) -> list[str]:
    return list(select_updates(graph, "all", ("4",)).adapters)  # type: ignore[arg-type]


def test_the_tokenizer_of_the_file(tmp_path: Path) -> None:
    gguf_files.write(tmp_path / "m.gguf", kind="Q8_0")
    import_gguf(tmp_path / "m.gguf", tmp_path / "m.onnx")
    tokenizer = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    found = tokenizer.encode("a tab<|end|>")
    assert [gguf_files.WORDS[i] for i in found.ids] == ["a", "Ġt", "ab", "<|end|>"]
    assert found.ids[-1] == 258
    assert tokenizer.decode(found.ids) == "a tab"
    config = (tmp_path / "tokenizer_config.json").read_text()
    assert '"eos_token": "<|end|>"' in config and "chat_template" in config


@pytest.mark.parametrize(
    ("architecture", "more", "error", "complaint"),
    [
        ("mamba", {}, UnsupportedModelError, r"its architecture is 'mamba'; imported are llama"),
        ("llama", {"without": "blk.1.ffn_up.weight"}, UsageError, r"has no tensor 'blk.1.ffn_up.weight'"),
        ("llama", {"fields": {"rope.dimension_count": 32}}, UnsupportedModelError, r"rotates a part of each head"),
        ("gemma", {"fields": {}}, None, ""),
    ],
)
def test_one_line_names_what_is_missing(
    tmp_path: Path, architecture: str, more: dict[str, object], error: type[PoetcError] | None, complaint: str
) -> None:
    gguf_files.write(tmp_path / "m.gguf", architecture, "Q8_0", **more)  # type: ignore[arg-type]
    if error is None:
        import_gguf(tmp_path / "m.gguf", tmp_path / "m.onnx")
        return
    with pytest.raises(error, match=complaint):
        import_gguf(tmp_path / "m.gguf", tmp_path / "m.onnx")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["m.gguf"]


def test_files_in_the_way_are_kept_or_refused(tmp_path: Path) -> None:
    """Files as they are written need no copy. The source and a folder are never replaced, and nothing else is then."""
    gguf_files.write(tmp_path / "m.gguf", kind="Q8_0")
    assert import_gguf(tmp_path / "m.gguf", tmp_path / "m.onnx")["copies"] == []
    names = ["m.onnx", "tokenizer.json", "tokenizer_config.json"]
    before = {name: (tmp_path / name).read_bytes() for name in names}
    (tmp_path / "tokenizer.json").write_text("mine")
    for copies in (["tokenizer.json.orig"], []):
        assert import_gguf(tmp_path / "m.gguf", tmp_path / "m.onnx", force=True)["copies"] == copies
        assert {name: (tmp_path / name).read_bytes() for name in names} == before
    (tmp_path / "tokenizer.json").write_text("mine too")
    assert import_gguf(tmp_path / "m.gguf", tmp_path / "m.onnx", force=True)["copies"] == ["tokenizer.json.orig2"]
    assert (tmp_path / "tokenizer.json.orig").read_text() == "mine"
    (tmp_path / "docs").mkdir()
    (tmp_path / "other" / "tokenizer.json").mkdir(parents=True)
    everything = sorted(tmp_path.rglob("*"))
    for place, complaint in (
        ("m.gguf", "m.gguf: is the file that is read"),
        ("docs", "docs: is a directory"),
        ("other/m.onnx", "other/tokenizer.json: is a directory"),
    ):
        with pytest.raises(UsageError, match=complaint):
            import_gguf(tmp_path / "m.gguf", tmp_path / place, force=True)
    assert sorted(tmp_path.rglob("*")) == everything


@pytest.mark.parametrize(("at", "said"), [(8, "21 tensors and 17 fields"), (16, "20 tensors and 18 fields")])
def test_a_header_that_counts_too_much_is_told_by_its_counts(tmp_path: Path, at: int, said: str) -> None:
    gguf_files.write(tmp_path / "m.gguf", kind="Q8_0")
    data = bytearray((tmp_path / "m.gguf").read_bytes())
    data[at] += 1
    for damaged in (data, data[:2000]):
        (tmp_path / "m.gguf").write_bytes(damaged)
        with pytest.raises(UsageError, match=f"it does not hold the {said} that its header counts"):
            import_gguf(tmp_path / "m.gguf", tmp_path / "m.onnx")
    (tmp_path / "m.gguf").write_bytes(data[:20])
    with pytest.raises(UsageError, match="it ends within its header"):
        import_gguf(tmp_path / "m.gguf", tmp_path / "m.onnx")


def test_damaged_files_end_in_an_error_for_users(tmp_path: Path) -> None:
    gguf_files.write(tmp_path / "m.gguf", kind="Q8_0")
    whole, chosen = (tmp_path / "m.gguf").read_bytes(), random.Random(0)
    damaged = [b"", b"GGUF", whole[:100], whole[:-1000], b"x" + whole]
    for _ in range(25):
        data = bytearray(whole)
        for _ in range(8):
            data[chosen.randrange(len(data) if chosen.random() < 0.3 else 6000)] = chosen.randrange(256)
        damaged.append(bytes(data))
    refused = 0
    for data in damaged:
        (tmp_path / "d.gguf").write_bytes(data)
        try:
            import_gguf(tmp_path / "d.gguf", tmp_path / "d.onnx", force=True)
        except PoetcError as error:
            assert "\n" not in str(error)
            refused += 1
    assert refused > 10
