"""Language models are trained on texts: the command, beside onnxruntime."""

from __future__ import annotations

import html
import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from tokenizers import Tokenizer

from poetc.commands.sample_text import TOKENS, Sample
from tests.cli.conftest import Ended
from tests.support.language import END, write_decoder, write_tokenizer

Run = Callable[..., Ended]
LENGTH = 12
PAIRS = [(f"{n}+{n}=", str(2 * n)) for n in range(8)]
OPTIONS = ("--batch", 2, "--dim", f"sequence_length={LENGTH}", "--epochs", 1, "--time-limit", 1)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    write_tokenizer(tmp_path)
    return write_decoder(tmp_path / "model.onnx")


def write_pairs(path: Path) -> Path:
    path.write_text("".join(json.dumps({"prompt": p, "completion": c}) + "\n" for p, c in PAIRS))
    return path


def measured(model: Path, folder: Path, pairs: Sequence[tuple[str, str]] = PAIRS) -> float:
    """The loss of the completions by onnxruntime, each text for itself, in float64."""
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    losses: list[float] = []
    for prompt, completion in pairs:
        ids = tokenizer.encode(prompt + completion + END).ids
        (logits,) = session.run(["logits"], {"input_ids": np.array([ids], np.int64)})
        scores = logits[0].astype(np.float64)
        scores -= scores.max(axis=-1, keepdims=True)
        logs = scores - np.log(np.exp(scores).sum(axis=-1, keepdims=True))
        losses += [-logs[t - 1, ids[t]] for t in range(len(prompt), len(ids))]
    return float(np.mean(losses))


def test_texts_say_the_steps_of_an_epoch(tmp_path: Path, poetc: Run, model: Path) -> None:
    """The tokenizer lies beside the model, or is named; 8 pairs are 8 samples with prompts masked."""
    data = write_pairs(tmp_path / "pairs.jsonl")
    shapes = ("--batch", 2, "--dim", f"sequence_length={LENGTH}", "--device", "rpi4")
    (tmp_path / "elsewhere").mkdir()
    other = Path(shutil.copy(model, tmp_path / "elsewhere"))
    for file, more in ((model, ()), (other, ("--tokenizer", tmp_path / "tokenizer.json"))):
        ended = poetc("analyze", file, *shapes, "--data", data, "--mask-prompt", "--epochs", 3, *more, "--json")
        assert ended.code == 0, ended.err
        assert ended.json["estimate"]["steps_per_epoch"] == 4
    ended = poetc("analyze", model, *shapes, "--mask-prompt")
    assert ended.code == 2 and "--mask-prompt does nothing without --data" in ended.err


def test_a_decoder_learns_completions(tmp_path: Path, poetc: Run, model: Path) -> None:
    data, out = write_pairs(tmp_path / "pairs.jsonl"), tmp_path / "out.onnx"
    train = ("--data", data, "--validation", data, "--mask-prompt", "--optimizer", "adam", "--lr", 0.01)
    ended = poetc("train", model, *train, *OPTIONS, "--lora", 4, "--sample", "1+1=", "-o", out, "--json")
    assert ended.code == 0, ended.err
    beside = ("--chat", "--tokens", TOKENS, "--json", "--tokenizer", tmp_path / "tokenizer.json")
    texts = [poetc("generate", path, "--prompt", "1+1=", *beside).json["text"] for path in (model, out)]
    assert [ended.json["sample"][when] for when in ("before", "after")] == texts and texts[0] != texts[1]
    assert "before the training: " in ended.err
    assert html.escape(texts[1]) in Path(ended.json["report"]).read_text()
    before, row = ended.json["before"], ended.json["epochs"][-1]
    assert before["loss"] == pytest.approx(measured(model, tmp_path), rel=1e-5)
    assert row["validation"]["loss"] == pytest.approx(measured(out, tmp_path), rel=1e-4)
    assert row["validation"]["perplexity"] == pytest.approx(np.exp(row["validation"]["loss"]))
    assert row["validation"]["loss"] < before["loss"]
    assert row["tokens_per_second"] > 0
    assert "val. perpl. tokens/s" in ended.err
    again = poetc("train", "--resume", "-o", out, "--json")
    assert again.code == 0, again.err


def test_packed_documents_have_the_losses_of_documents_alone(tmp_path: Path, poetc: Run, model: Path) -> None:
    """Where attention takes a mask; the text of such a model is that of one without."""
    texts = ["abcd", "efghij", "klm", "nopqrst", "uv"]  # windows of 12 tokens begin with a document
    data, masked = tmp_path / "d.jsonl", write_decoder(tmp_path / "masked.onnx", bias=True)
    data.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    losses = []
    for source in (masked, model):
        options = ("--data", data, "--validation", data, "--lora", 4, *OPTIONS)
        ended = poetc("train", source, *options, "-o", tmp_path / f"{source.stem}.out.onnx", "--json")
        assert ended.code == 0, ended.err
        assert ("attend to each other" in ended.err) == (source == model)
        losses.append(ended.json["before"]["loss"])
    alone = measured(model, tmp_path, [(text[0], text[1:]) for text in texts])
    assert losses[0] == pytest.approx(alone, rel=1e-5)
    assert abs(losses[1] - alone) > 1e-3 * alone
    written = [poetc("generate", m, "--prompt", "ab", "--tokens", 6, "--json").json["tokens"] for m in (masked, model)]
    assert written[0] == written[1]


def test_a_solved_model_without_the_ignored_class_says_so(tmp_path: Path, poetc: Run, model: Path) -> None:
    data, solved = write_pairs(tmp_path / "pairs.jsonl"), tmp_path / "solved"
    shapes = OPTIONS[:4]
    for more, code in (((), 2), (("--ignore-index", -100), 0)):
        assert poetc("solve", model, *shapes, *more, "--train", "last:1", "-o", solved, "--force").code == 0
        ended = poetc("train", solved, "--data", data, "--epochs", 1, "-o", tmp_path / "out.onnx", "--force")
        assert ended.code == code, ended.err
        assert (code == 0) or ("solve with --ignore-index -100" in ended.err)


def test_a_text_that_cannot_be_made_costs_the_text_alone(tmp_path: Path, model: Path) -> None:
    """Model, report and training.json of a training are written, whatever happens to its last text."""
    notes: list[str] = []
    sample = Sample("1+1=", model, {}, lambda text: None, notes.append)
    assert sample.to_json(model) == {"prompt": "1+1=", "before": sample.before, "after": sample.before}
    (tmp_path / "broken.onnx").write_bytes(b"no model")
    assert sample.to_json(tmp_path / "broken.onnx")["after"] == ""
    assert notes[-1].startswith("--sample: there is no text after the training: ")


def test_unpacked_documents_share_no_sample(tmp_path: Path, poetc: Run, model: Path) -> None:
    data = tmp_path / "texts.jsonl"
    data.write_text("".join(json.dumps({"text": text}) + "\n" for text in ("abc", "defgh", "i" * (LENGTH + 3))))
    words = ("train", model, "--data", data, *OPTIONS, "--train", "last:1", "--json", "--force")
    packed, apart = (poetc(*words, *more, "-o", tmp_path / "o.onnx") for more in ((), ("--unpacked",)))
    assert packed.code == apart.code == 0, packed.err + apart.err
    # 26 tokens, end tokens included; the first of each text is no target
    assert "in 3 samples of 12 tokens" in packed.err and " 23 of them targets" in packed.err
    assert "in 4 samples of 12 tokens" in apart.err and " 23 of them targets" in apart.err


def test_an_option_that_does_nothing_for_the_texts_is_refused(tmp_path: Path, poetc: Run, model: Path) -> None:
    data = tmp_path / "plain.txt"
    data.write_text("plain text")
    ended = poetc("train", model, "--data", data, *OPTIONS, "--truncate", "-o", tmp_path / "o.onnx")
    assert ended.code == 2
    assert f"--truncate does nothing: {data} holds documents alone, which are cut into windows; leave" in ended.err


@pytest.mark.parametrize(("prompt", "words"), [(" ", "--sample: holds no text"), ("long " * 20, "")])
def test_a_sample_is_refused_before_the_training(
    tmp_path: Path, poetc: Run, model: Path, prompt: str, words: str
) -> None:
    data, out = write_pairs(tmp_path / "pairs.jsonl"), tmp_path / "out.onnx"
    ended = poetc("train", model, "--data", data, *OPTIONS, "--sample", prompt, "-o", out)
    assert ended.code in (2, 3) and len(ended.err.splitlines()) < 4, ended.err
    assert words in ended.err and not out.exists() and not out.with_name("out.onnx.train").exists()
