"""Texts as samples of tokens: windows, completions, chats, and the one line that says why it is none."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from poetc.datasets import Samples, Settings, Slot, open_source
from poetc.datasets.text import IGNORED
from poetc.errors import UsageError
from poetc.graph import DType
from poetc.program import Limit
from tests.support.language import TEMPLATE, write_tokenizer

END, START = 256, 257
LENGTH = 16
TOKENS = Slot(
    name="input_ids",
    shape=(2, LENGTH),
    dtype=DType.I32,
    is_target=False,
    sample_shape=(LENGTH,),
    limit=Limit(0, 257, 0),
)
TARGET = replace(TOKENS, name="target", is_target=True, limit=Limit(0, 257, IGNORED))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_tokenizer(tmp_path)
    return tmp_path


def read(path: Path, *slots: Slot, told: list[str] | None = None, **values: Any) -> Samples:
    settings = Settings(values=values, model=path.parent / "model.onnx")
    note = (lambda text: None) if told is None else told.append
    found = open_source(str(path), slots or (TOKENS, TARGET), note, settings=settings)
    assert isinstance(found, Samples)
    return found


def lines(path: Path, *rows: object) -> Path:
    path.write_text("\n".join(json.dumps(row) for row in rows) + "\n")
    return path


def letters(text: str) -> list[int]:
    """Token numbers of a text: those of the alphabet of bytes, in its own order."""
    from tokenizers import pre_tokenizers

    known = sorted(pre_tokenizers.ByteLevel.alphabet())
    return [known.index({" ": "Ġ", "\n": "Ċ"}.get(c, c)) for c in text]


def test_each_token_of_a_document_but_the_first_is_a_target_once(folder: Path) -> None:
    (folder / "texts").mkdir()
    (folder / "texts" / "b.txt").write_text("zebra " * 7)
    (folder / "texts" / "a.txt").write_text("first")
    lines(folder / "texts" / "c.jsonl", {"text": "one"}, {"text": "two"})
    (folder / "texts" / "empty.txt").write_text(" \n")
    samples = read(folder / "texts", tokenizer=str(folder))
    documents = [[*letters(text), END] for text in ("first", "zebra " * 7, "one", "two")]
    joined = [token for document in documents for token in document]
    taken = samples.take(np.arange(len(samples)))
    targets = taken["target"]
    assert targets[targets != IGNORED].tolist() == [token for document in documents for token in document[1:]]
    assert (targets[taken["input_ids"] == END] == IGNORED).all()
    assert taken["input_ids"].reshape(-1)[: len(joined) - 1].tolist() == joined[:-1]
    assert samples.token_count == len(joined)


def test_a_completion_alone_is_a_target_with_mask_prompt(folder: Path) -> None:
    path = lines(folder / "d.jsonl", {"prompt": "2+2=", "completion": "4"}, {"prompt": "ab", "completion": " c"})
    for mask, expected in ((True, [*letters("4"), END]), (False, [*letters("+2=4"), END])):
        samples = read(path, mask_prompt=mask)
        first = samples.take(np.array([0]))
        assert first["input_ids"][0, :6].tolist() == [*letters("2+2=4"), END]
        assert first["input_ids"][0, 6:].tolist() == [END] * (LENGTH - 6)
        targets = first["target"][0]
        assert targets[targets != IGNORED].tolist() == expected
        assert targets[4 - len(expected) + 1 : 5].tolist() == expected


def test_answers_of_a_chat_are_targets(folder: Path) -> None:
    chat = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "b"},
        {"role": "user", "content": "c"},
        {"role": "assistant", "content": "d"},
    ]
    long = [replace(s, shape=(2, 80), sample_shape=(80,)) for s in (TOKENS, TARGET)]
    path = lines(folder / "d.jsonl", {"messages": chat})
    whole = read(path, *long).take(np.array([0]))
    turn = [START, *letters("user\na"), END, *letters("\n"), START, *letters("assistant\nb"), END, *letters("\n")]
    assert whole["input_ids"][0, : len(turn)].tolist() == turn
    assert whole["target"][0, : len(turn) - 1].tolist() == turn[1:]
    masked = read(path, *long, mask_prompt=True).take(np.array([0]))["target"][0]
    assert masked[masked != IGNORED].tolist() == [*letters("b"), END, *letters("\nd"), END, *letters("\n")]
    (folder / "other.jinja").write_text("{{ messages[2]['content'] }}yz")
    other = read(path, *long, chat_template=str(folder / "other.jinja")).take(np.array([0]))
    assert other["input_ids"][0, :3].tolist() == letters("cyz")


def test_masks_and_positions_are_inputs_too(folder: Path) -> None:
    mask, places = (replace(TOKENS, name=n, limit=None) for n in ("attention_mask", "position_ids"))
    samples = read(lines(folder / "d.jsonl", {"prompt": "ab", "completion": "c"}), TOKENS, mask, places, TARGET)
    taken = samples.take(np.array([0]))
    assert taken["attention_mask"][0].tolist() == [1] * 4 + [0] * (LENGTH - 4)
    assert taken["position_ids"][0].tolist() == list(range(LENGTH))


@pytest.mark.parametrize("kind", ["added", "floats", "truths"])
def test_documents_of_a_window_are_hidden_from_each_other(folder: Path, kind: str) -> None:
    """A mask of queries and keys, by brute force; positions begin anew; a place without a token sees such places."""
    types = {"added": DType.F32, "floats": DType.F32, "truths": DType.U8}
    pairs = replace(
        TOKENS, name="attention_mask" if kind != "added" else "bias", dtype=types[kind], limit=None,
        shape=(2, 1, LENGTH, LENGTH), sample_shape=(1, LENGTH, LENGTH), takes_any_range=True,
        hides=-1e9 if kind == "added" else 0.0,
    )  # fmt: skip
    places = replace(TOKENS, name="position_ids", limit=None)
    texts = ("abc", "d" * 20, "e", "fgh")
    told: list[str] = []
    path = lines(folder / "d.jsonl", *({"text": text} for text in texts))
    samples = read(path, TOKENS, pairs, places, TARGET, told=told)
    assert len(samples) == 2 and not any("attend" in line for line in told)
    of = [n for n, text in enumerate(texts) for _ in range(len(text) + 1)] + [-1] * LENGTH
    starts = [sum(len(t) + 1 for t in texts[:n]) for n in range(len(texts))]
    taken = samples.take(np.array([1, 0]))
    for sample, first in ((0, LENGTH), (1, 0)):
        mask = taken[pairs.name][sample, 0]
        assert mask.dtype == types[kind].numpy
        for i in range(LENGTH):
            for j in range(LENGTH):
                seen = j <= i and of[first + i] == of[first + j]
                assert mask[i, j] == ((0 if seen else -1e9) if kind == "added" else seen), (first, i, j)
            if of[first + i] >= 0:
                assert taken["position_ids"][sample, i] == i + first - max(starts[of[first + i]], first)


def test_documents_that_attend_to_each_other_are_told(folder: Path) -> None:
    path = lines(folder / "d.jsonl", {"text": "abc"}, {"text": "defg"})
    for values, expected in (({}, True), ({"unpacked": True}, False)):
        told: list[str] = []
        read(path, told=told, **values)
        assert any("attend to each other" in line and "--unpacked" in line for line in told) == expected


def test_a_mask_that_is_added_hides_places_without_a_token(folder: Path) -> None:
    mask = replace(TOKENS, name="bias_mask", dtype=DType.F32, limit=None, hides=-1e9)
    samples = read(lines(folder / "d.jsonl", {"prompt": "ab", "completion": "c"}), TOKENS, mask, TARGET)
    assert samples.take(np.array([0]))["bias_mask"][0].tolist() == [0] * 4 + [np.float32(-1e9)] * (LENGTH - 4)


def test_a_text_that_is_too_long_is_cut_where_that_is_asked_for(folder: Path) -> None:
    path = lines(folder / "d.jsonl", {"prompt": "a", "completion": "b" * 40})
    targets = read(path, truncate=True).take(np.array([0]))["target"][0]
    assert targets.tolist() == letters("b" * LENGTH)


def test_options_that_do_nothing_for_these_texts_are_told(folder: Path) -> None:
    pair, document = {"prompt": "a", "completion": "b"}, {"text": "one"}
    everything = {"truncate": True, "unpacked": True, "chat_template": "t.jinja"}
    for rows, idle in (
        ([pair], {"unpacked", "chat_template"}),
        ([document], {"truncate", "chat_template"}),
        ([pair, document], {"chat_template"}),
        ([CHAT], {"unpacked"}),
    ):
        (folder / "t.jinja").write_text("{% for m in messages %}{{ m.content }}{% endfor %}")
        given = everything | {"chat_template": str(folder / "t.jinja")}
        assert set(read(lines(folder / "d.jsonl", *rows), **given).idle) == idle
    assert not read(lines(folder / "d.jsonl", document)).idle


CHAT = {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}
SMALL = replace(TOKENS, limit=Limit(0, 99, 0))
LARGE = replace(TOKENS, limit=Limit(0, 49_151, 0))
LACKING = replace(TOKENS, limit=Limit(0, 249, 0))
CLASSES = replace(TARGET, shape=(2,), sample_shape=())
FLOATS = replace(TOKENS, dtype=DType.F32, limit=None)
OTHER = replace(TARGET, limit=Limit(0, 257, 0))


def test_a_key_that_stands_there_twice_is_refused(folder: Path) -> None:
    path = lines(folder / "d.jsonl", {"text": "a"})
    path.write_text(path.read_text() + '{"messages": [{"role": "user", "content": "a", "role": "assistant"}]}\n')
    with pytest.raises(UsageError, match=r"d.jsonl: line 2 has the key 'role' twice"):
        read(path)


@pytest.mark.parametrize(
    ("rows", "slots", "values", "complaint"),
    [
        ([{"prompt": "a", "completion": "b" * 40}], (), {}, r"line 1: 42 tokens; the model takes 16: .*--truncate"),
        ([{"prompt": "a", "completion": "b"}, {"prompt": 3, "completion": ""}], (), {}, r"line 2: 'prompt' is no text"),
        ([{"text": "a"}, {"x": "b"}], (), {}, r"line 2: 'text' is missing \(its keys: 'x'\)"),
        ([{"text": "a"}, 4], (), {}, r"line 2 is not an object"),
        (
            [{"promt": "a", "completion": "b"}],
            (),
            {},
            r"line 1: 'prompt' is missing \(its keys: 'promt', 'completion'\)",
        ),
        (
            [{"instruction": "a", "output": "b"}],
            (),
            {},
            r"line 1: 'text' is missing .* give text, prompt and completion",
        ),
        (
            [{"foo": 1}],
            (),
            {},
            r"d.jsonl: line 1 has neither text, prompt nor messages, and 1 number where .* takes 16",
        ),
        ([{"text": "abc"}], (), {"mask_prompt": True}, r"line 1: --mask-prompt: a text alone has no prompt"),
        ([{"text": ""}], (), {}, r"holds no text with a target"),
        ([{"text": "abc"}], (SMALL, TARGET), {}, r"tokenizer\.json: has 258 tokens, .* 100: that of another model"),
        ([{"text": "abc"}], (LARGE, TARGET), {}, r"tokenizer\.json: has 258 tokens, .* 49,152: that of another model"),
        ([{"text": "abc"}], (LACKING, TARGET), {}, r"tokenizer\.json: has 258 tokens, .* token 256; .* holds 250"),
        ([{"text": "abc"}], (TOKENS, CLASSES), {}, r"a target for each of the 16 tokens; .* takes \[samples\]"),
        ([{"text": "abc"}], (FLOATS, TARGET), {}, r"a model whose input are tokens; this one takes 'input_ids'"),
        ([{"text": "abc"}], (TOKENS, OTHER), {}, r"solve with --ignore-index -100"),
        ([{"text": "abc"}], (), {"tokenizer": "absent.json"}, r"--tokenizer absent.json: does not exist"),
        ([{"messages": []}], (), {}, r"line 1: 'messages' is no list of messages"),
        ([{"messages": [{"role": "user"}]}], (), {}, r"line 1: message 1 is no object with the texts"),
        ([CHAT], (), {"chat_template": "absent.jinja"}, r"--chat-template absent.jinja: does not exist"),
        ([CHAT], (), {"template": "{% for %}"}, r"line 1: the template of .*config.json fails"),
        ([CHAT], (), {"template": "{{ raise_exception('only tools') }}"}, r"template of .* fails: only tools"),
        ([CHAT], (), {"template": "{{ ''.__class__.__mro__ }}"}, r"template of .* fails: .*unsafe"),
        ([CHAT], (), {"template": None}, r"a chat needs a template, .* give --chat-template FILE"),
        ([CHAT], (), {"template": "{{ messages | length }}", "mask_prompt": True}, r"leave --mask-prompt out"),
    ],
)
def test_one_line_says_why_a_text_cannot_be_read(
    folder: Path, rows: list[object], slots: tuple[Slot, ...], values: dict[str, Any], complaint: str
) -> None:
    template = values.pop("template", TEMPLATE)
    if template != TEMPLATE:
        write_tokenizer(folder, template)
    with pytest.raises(UsageError, match=complaint) as caught:
        read(lines(folder / "d.jsonl", *rows), *slots, **values)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "content", "complaint"),
    [
        ("tokenizer.json", b"{", r"tokenizer\.json: not a tokenizer\.json"),
        ("tokenizer_config.json", b"[1]", r"tokenizer_config\.json: not an object with keys"),
        ("tokenizer_config.json", b"{", r"tokenizer_config\.json: not JSON"),
        ("d.txt", b"abc\xff", r"d\.txt: byte 3 is no text in UTF-8"),
    ],
)
def test_a_damaged_file_is_named(folder: Path, name: str, content: bytes, complaint: str) -> None:
    (folder / "d.txt").write_text("a text")
    (folder / name).write_bytes(content)
    with pytest.raises(UsageError, match=complaint):
        read(folder / "d.txt")


def test_without_a_tokenizer(tmp_path: Path) -> None:
    (tmp_path / "d.txt").write_text("a text")
    with pytest.raises(UsageError, match=r"there is no tokenizer\.json beside .*; give --tokenizer FILE"):
        read(tmp_path / "d.txt")


def test_options_of_texts_are_for_texts(tmp_path: Path) -> None:
    np.savez(tmp_path / "d.npz", input_ids=np.zeros((2, LENGTH), np.int32), target=np.zeros((2, LENGTH), np.int32))
    with pytest.raises(UsageError, match=r"--mask-prompt is for texts .*d\.npz holds none"):
        read(tmp_path / "d.npz", mask_prompt=True)
