"""`poetc generate` beside onnxruntime, and the demonstration of texts with a tiny model."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper
from tokenizers import Tokenizer

from poetc.commands.generate import SHORT, Writer, loaded_at
from tests.cli.conftest import Ended
from tests.support import gguf_files
from tests.support.language import write_decoder, write_tokenizer

Run = Callable[..., Ended]
DEMO = Path(__file__).parents[3] / "demo" / "text.py"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    write_tokenizer(tmp_path)
    return write_decoder(tmp_path / "model.onnx")


def likeliest(model: Path, ids: list[int], count: int) -> list[int]:
    """The next tokens by onnxruntime, the end token excluded."""
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    made: list[int] = []
    for _ in range(count):
        (scores,) = session.run(["logits"], {"input_ids": np.array([ids + made], np.int64)})
        token = int(scores[0, -1].argmax())
        if token == 256:
            break
        made.append(token)
    return made


def test_the_likeliest_tokens_are_those_of_onnxruntime(tmp_path: Path, poetc: Run, model: Path) -> None:
    tokenizer = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    ended = poetc("generate", model, "--prompt", "abc", "--tokens", 9, "--json")
    assert ended.code == 0, ended.err
    expected = likeliest(model, tokenizer.encode("abc").ids, 9)
    assert ended.json["tokens"] == expected and expected
    assert ended.json["text"] == tokenizer.decode(expected)
    solved = tmp_path / "solved"
    options = ("--batch", 1, "--dim", "sequence_length=8", "--train", "last:1", "--time-limit", 1)
    assert poetc("solve", model, *options, "-o", solved).code == 0
    ended = poetc("generate", solved, "--prompt", "abc", "--tokens", 9, "--json")
    assert ended.json["tokens"] == expected[:5], ended.err
    assert f"the text ends with the context of 8 tokens ({solved}), not with --tokens" in ended.err
    ended = poetc("generate", solved, "--prompt", "too long for it")
    assert ended.code == 2 and "15 tokens, and " in ended.err and "has a context of 8" in ended.err


def test_a_text_ends_with_the_context_of_the_model(tmp_path: Path, poetc: Run, model: Path) -> None:
    whole = poetc("generate", model, "--prompt", "abc", "--tokens", 9, "--json").json["tokens"]
    for text in ('{"max_position_embeddings": 7}', '{"text_config": {"n_positions": 7}}'):
        (tmp_path / "config.json").write_text(text)
        ended = poetc("generate", model, "--prompt", "abc", "--tokens", 9, "--json")
        assert (ended.code, ended.json["tokens"]) == (0, whole[:4]), ended.err
        assert "the text ends with the context of 7 tokens (config.json), not with --tokens" in ended.err
        assert poetc("generate", model, "--prompt", "abc", "--tokens", 4).err == ""
        ended = poetc("generate", model, "--prompt", "abcdefg")
        assert ended.code == 2 and "7 tokens, and config.json has a context of 7" in ended.err


def test_a_text_ends_with_the_tables_of_cosines(poetc: Run, model: Path) -> None:
    """The model has 64 places, and no file beside it states a context."""
    ended = poetc("generate", model, "--prompt", "a" * 62, "--tokens", 9, "--json")
    assert ended.code == 0 and 0 < len(ended.json["tokens"]) <= 2
    if len(ended.json["tokens"]) == 2:
        assert f"the text ends with the context of 64 tokens ({model}), not with --tokens" in ended.err


@pytest.mark.parametrize(("vocabulary", "code"), [(250, 0), (260, 0), (1000, 2), (100, 2)])
def test_tokens_that_the_tokenizer_lacks_are_not_written(
    tmp_path: Path, poetc: Run, vocabulary: int, code: int
) -> None:
    """A few make a matrix even; many are of a model that this tokenizer is not for."""
    write_tokenizer(tmp_path)
    model = write_decoder(tmp_path / "model.onnx", vocabulary=vocabulary)
    proto = onnx.load(model)
    (head,) = [t for t in proto.graph.initializer if t.name == "lm_head.MatMul.weight"]
    weights = onnx.numpy_helper.to_array(head).copy()
    weights[:, 258:] *= 100  # one of them, if there are any, is always the likeliest
    head.CopyFrom(onnx.numpy_helper.from_array(weights, head.name))
    onnx.save(proto, model)
    ended = poetc("generate", model, "--prompt", "abc", "--tokens", 5, "--json")
    assert ended.code == code, ended.err
    if code:
        assert f"has 258 tokens, and the model {vocabulary:,}: that of another model" in ended.err
    else:
        assert ended.json["text"] and max(ended.json["tokens"]) < 258


def test_drawn_tokens_follow_the_seed(poetc: Run, model: Path) -> None:
    def drawn(*more: object) -> list[int]:
        ended = poetc("generate", model, "--prompt", "hi", "--tokens", 8, "--json", "--chat", *more)
        assert ended.code == 0, ended.err
        return list(ended.json["tokens"])

    assert drawn("--top-p", 0.99, "--seed", 1) == drawn("--top-p", 0.99, "--seed", 1)
    assert drawn("--top-p", 0.99, "--temperature", 9, "--seed", 1) != drawn("--top-p", 0.99, "--temperature", 9)
    assert drawn("--top-p", 1e-6) == drawn()


def test_models_that_generate_no_text_are_refused(tmp_path: Path, poetc: Run, model: Path) -> None:
    info = helper.make_tensor_value_info
    nodes = [helper.make_node("Cast", ["ids"], ["f"], to=TensorProto.FLOAT), helper.make_node("Softmax", ["f"], ["s"])]
    nodes += [helper.make_node("Unsqueeze", ["s", "last"], ["u"]), helper.make_node("Mul", ["u", "w"], ["y"])]
    held = [helper.make_tensor("last", TensorProto.INT64, [1], [2]), helper.make_tensor("w", 1, [258], [1.0] * 258)]
    ids = info("ids", TensorProto.INT64, ["batch", "length"])
    graph = helper.make_graph(nodes, "g", [ids], [info("y", TensorProto.FLOAT, None)], held)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), tmp_path / "b.onnx")
    for name, words in (("b.onnx", "a token sees those behind it"), ("absent.onnx", "absent.onnx")):
        ended = poetc("generate", tmp_path / name, "--prompt", "abc")
        assert ended.code in (2, 3) and words in ended.err, ended.err
    (tmp_path / "model.txt").write_text("no model")
    ended = poetc("generate", tmp_path / "model.txt", "--prompt", "abc")
    assert ended.code == 2 and "not an ONNX file" in ended.err
    ended = poetc("generate", model, "--prompt", "")
    assert ended.code == 2 and "--prompt: holds no token" in ended.err


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("--prompt", "a\udcffb"), "the text's character 2, \\udcff, is none of UTF-8"),
        (("--prompt", "a\udcffb", "--chat"), "\\udcff, is none of UTF-8"),
        (("--prompt", "a" * 64), "--prompt: 64 tokens, and "),
        (("--prompt", "a" * 90), "model.onnx has a context of 64"),
        (("--prompt", "abc", "--seed", 3), "--seed does nothing without --top-p"),
        (("--prompt", "abc", "--temperature", 3), "--temperature does nothing without --top-p"),
        (("--prompt", "abc", "--chat-template", "x"), "--chat-template does nothing without --chat"),
    ],
)
def test_a_wrong_call_is_named_in_one_line(poetc: Run, model: Path, words: tuple[object, ...], named: str) -> None:
    ended = poetc("generate", model, *words)
    assert ended.code in (2, 3) and named in ended.err and ended.err.count("\n") == 1, ended.err


def test_a_model_of_numbers_is_told_from_one_of_tokens(tmp_path: Path, poetc: Run, model: Path) -> None:
    """Symbolic lengths are none of its faults: the command has no option for them."""
    ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["batch", 4]) for n in "xy"]
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", ends[:1], ends[1:])
    numbers = tmp_path / "numbers.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), numbers)
    ended = poetc("generate", numbers, "--prompt", "abc")
    assert ended.code == 3 and "whose one input are tokens" in ended.err, ended.err


@pytest.mark.long
def test_the_demonstration_with_a_tiny_model(tmp_path: Path) -> None:
    gguf_files.write(tmp_path / "tiny.gguf", kind="Q4_0")
    words = ("--model", tmp_path / "tiny.gguf", "--out", tmp_path / "out", "--length", 160, "--budget", "8MB")
    less = ("--epochs", 1, "--rank", 2, "--tokens", 3, "--time-limit", 2)
    ended = subprocess.run(
        [sys.executable, DEMO, *map(str, (*words, *less))], capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stderr
    first, last = (float(x) for x in ended.stdout.split("perplexity")[1].split("\n")[0].split("->"))
    assert last < first
    assert "B measured" in ended.stdout and "adapter" in ended.stdout
    written = tmp_path / "out" / "tuned.onnx.train" / "adapter"
    assert sorted(p.name for p in written.iterdir()) == [
        "adapter.gguf",
        "adapter_config.json",
        "adapter_model.safetensors",
    ]


def write_masked(path: Path) -> Path:
    """One attention of tokens to those before them that `attention_mask` shows, with scores as exporters mask them."""
    info, node = helper.make_tensor_value_info, helper.make_node
    table = np.random.default_rng(2).standard_normal((258, 8)).astype(np.float32)
    held = [onnx.numpy_helper.from_array(a, n) for n, a in (("table", table), ("words", table.T.copy()))]
    held += [onnx.numpy_helper.from_array(np.float32(v), n) for n, v in (("one", 1.0), ("least", 1e9))]
    held.append(onnx.numpy_helper.from_array(np.array([1], np.int64), "axis"))
    fill = helper.make_tensor("value", TensorProto.FLOAT, [1], [1.0])
    nodes = [
        node("Gather", ["table", "input_ids"], ["x"]),
        node("Transpose", ["x"], ["keys"], perm=[0, 2, 1]),
        node("MatMul", ["x", "keys"], ["scores"]),
        node("Shape", ["scores"], ["shape"]),
        node("ConstantOfShape", ["shape"], ["ones"], value=fill),
        node("Trilu", ["ones"], ["before"], upper=0),
        node("Cast", ["attention_mask"], ["mask"], to=TensorProto.FLOAT),
        node("Unsqueeze", ["mask", "axis"], ["shown"]),
        node("Mul", ["before", "shown"], ["seen"]),
        node("Sub", ["seen", "one"], ["hidden"]),
        node("Mul", ["hidden", "least"], ["bias"]),
        node("Add", ["scores", "bias"], ["biased"]),
        node("Softmax", ["biased"], ["shares"], axis=-1),
        node("MatMul", ["shares", "x"], ["mixed"]),
        node("MatMul", ["mixed", "words"], ["logits"]),
    ]
    inputs = [info(n, TensorProto.INT64, ["batch", "length"]) for n in ("input_ids", "attention_mask")]
    graph = helper.make_graph(nodes, "masked", inputs, [info("logits", TensorProto.FLOAT, None)], held)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
    return path


@pytest.mark.parametrize("kind", ["decoder", "masked"])
def test_tokens_are_the_same_with_and_without_a_cache(tmp_path: Path, poetc: Run, kind: str) -> None:
    write_tokenizer(tmp_path)
    model = write_decoder(tmp_path / "m.onnx", layers=2) if kind == "decoder" else write_masked(tmp_path / "m.onnx")
    for more in ((), ("--top-p", 0.9, "--temperature", 3)):
        words = ("generate", model, "--prompt", "abc", "--tokens", 12, "--json", *more)
        cached, anew = poetc(*words), poetc(*words, "--no-cache")
        assert cached.code == anew.code == 0, cached.err + anew.err
        assert cached.json["tokens"] == anew.json["tokens"] and len(cached.json["tokens"]) > 4


def test_a_cache_holds_keys_and_values_alone(tmp_path: Path) -> None:
    path = write_decoder(tmp_path / "m.onnx", layers=2)
    writer = Writer(loaded_at(path, 20), "m", loaded_at(path, SHORT))
    assert writer.cache is not None
    plan, graph = writer.cache.plan, writer.graph
    assert not plan.whole  # every operator computes one place
    readers = {n: {o.kind for o in graph.operators if n in o.inputs} for n in plan.cached - {writer.input}}
    assert len(readers) == 4 and all(kinds == {"MatMul"} for kinds in readers.values())


def test_a_model_that_is_not_there_is_named_before_its_tokenizer(tmp_path: Path, poetc: Run) -> None:
    ended = poetc("generate", tmp_path / "nosuch.onnx", "--prompt", "abc")
    assert (
        ended.code == 2 and ended.err.strip() == f"poetc: error: {tmp_path / 'nosuch.onnx'}: no such file or directory"
    )
