"""Texts for language models: .txt files, folders of them, and JSON lines of texts, prompts with completions, or chats.

Token t of a sample is an input, and token t + 1 its target. Documents are joined, each with the tokenizer's end token
behind it, and cut into windows of the model's length. With `unpacked` each is cut for itself. A prompt with its
completion, or a chat, is a sample of its own, filled up to that length. The target of a place that does not count is
-100. So is that of a document's end, as its next token is another document's. Where the model takes a mask of queries
and keys, a token attends to its own document alone.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from poetc.datasets._columns import Column, Samples
from poetc.datasets._kinds import KINDS, Kind, Request
from poetc.datasets._objects import LARGEST_BYTES, objects
from poetc.datasets._slots import Slot
from poetc.datasets._tokenizing import Encoded, Span, Tokenizer, find_tokenizer
from poetc.declare import Option, Switch
from poetc.errors import UsageError, format_count, printable
from poetc.files import read_file
from poetc.graph import Array, DType

IGNORED = -100  # the target of a place that does not count, as in PyTorch
_LINES = (".jsonl", ".ndjson")
_FIRST_BYTES = 1 << 20  # in which the first line of a file is looked for
_MASK, _POSITIONS, _SEGMENTS = (
    re.compile(p) for p in (r"(^|_)mask$", r"position_?ids$|positions$", r"token_type_ids$|segment_?ids$")
)

OPTIONS = (
    Option(
        name="tokenizer",
        metavar="FILE",
        default_text="tokenizer.json beside the model",
        help="The tokenizer of texts: a tokenizer.json, or its folder.",
    ),
    Option(
        name="chat_template",
        metavar="FILE",
        default_text="that of tokenizer_config.json or chat_template.jinja beside the tokenizer",
        help="The template that makes a text of a chat.",
    ),
    Option(
        name="mask_prompt",
        values=Switch(),
        default=False,
        help="The loss counts completions, and answers of the assistant, alone.",
    ),
    Option(
        name="truncate",
        values=Switch(),
        default=False,
        default_text="refuse them",
        help="Cut prompts with completions, and chats, that are longer than the model's sequence.",
    ),
    Option(
        name="unpacked",
        values=Switch(),
        default=False,
        default_text="join documents to full windows",
        help="No document shares a sample with another, so none attends to another.",
    ),
)


def read_text(request: Request) -> Samples:
    """The texts as samples of tokens. Raises UsageError, which names the file and the line."""
    tokens, target = _places(request)
    length, values = tokens.elements, request.settings.values
    template = values.get("chat_template")
    path = find_tokenizer(values.get("tokenizer"), request.settings.model)
    tokenizer = Tokenizer(path, Path(template) if template else None)
    assert tokens.limit is not None
    tokenizer.require_model(tokens.limit.most + 1)
    mask_prompt, truncate, unpacked = (bool(values.get(n)) for n in ("mask_prompt", "truncate", "unpacked"))
    reader = _Reader(tokenizer, length, mask_prompt, truncate, unpacked)
    reader.read(request.path)
    if not reader.rows:
        raise UsageError(f"{request.path}: holds no text with a target")
    if tokenizer.end is None:
        request.note(f"{path}: names no end token, so none is put behind a text")
    ids, targets, counts, segments = reader.arrays()
    _require_vocabulary(ids, tokens, path, tokenizer)
    ignores = target is None or target.limit is None or target.limit.ignored == IGNORED
    if not ignores and (targets == IGNORED).any():
        raise UsageError(f"{request.path}: some of its targets do not count; solve with --ignore-index {IGNORED}")
    masked = any(_is_of_pairs(slot, length) for slot in request.slots)
    columns: dict[str, Column] = {tokens.name: ids.reshape(-1, *tokens.sample_shape)}
    if target is not None:
        columns[target.name] = targets.reshape(-1, *target.sample_shape)
    for slot in request.slots:
        if slot.name not in columns:
            columns[slot.name] = _beside(slot, segments, masked)
    request.note(_remark(request.path, reader, counts, targets))
    if not masked and (segments > 0).any():
        request.note(
            f"{request.path}: documents that share a sample attend to each other, since the model takes no mask of"
            f" {length} x {length} places; --unpacked keeps them apart"
        )
    return Samples(
        where=str(request.path),
        columns=columns,
        called={n: f"the {n} of its texts" for n in columns},
        tokens=counts,
        idle={name: why for name, why in reader.idle().items() if values.get(name)},
    )


def _remark(path: Path, reader: _Reader, counts: Array, targets: Array) -> str:
    samples, length = targets.shape
    total, scored = int(counts.sum()), int((targets != IGNORED).sum())
    texts, cut = format_count(reader.texts, "text"), format_count(reader.cut, "text")
    return (
        f"{path}: {texts} in {format_count(samples, 'sample')} of {length} tokens; {total:,} tokens, {scored:,} of"
        f" them targets{f', {cut} cut' if reader.cut else ''}"
    )


def _places(request: Request) -> tuple[Slot, Slot | None]:
    """The input of the tokens, and the target. UsageError for a model that is none of tokens."""
    inputs = [s for s in request.slots if not s.is_target]
    tokens = [s for s in inputs if s.dtype is DType.I32 and s.limit is not None and not _is_beside(s)]
    targets = [s for s in request.slots if s.is_target]
    length = tokens[0].elements if len(tokens) == 1 else 0
    others = [s.name for s in inputs if s not in tokens and not _is_beside(s) and not _is_of_pairs(s, length)]
    if len(tokens) != 1 or others or len(targets) > 1:
        names = ", ".join(repr(printable(s.name)) for s in inputs)
        raise UsageError(f"{request.path}: texts are for a model whose input are tokens; this one takes {names}")
    slot, length = tokens[0], tokens[0].elements
    if targets and (targets[0].elements != length or targets[0].dtype is not DType.I32):
        raise UsageError(
            f"{request.path}: texts give a target for each of the {length} tokens; the loss of this model takes"
            f" {targets[0].shape_text}"
        )
    if length < 2:
        raise UsageError(f"{request.path}: the model takes {length} token; give its length with --dim NAME=N")
    return slot, targets[0] if targets else None


def _is_beside(slot: Slot) -> bool:
    return any(p.search(slot.name) for p in (_MASK, _POSITIONS, _SEGMENTS))


def _is_of_pairs(slot: Slot, length: int) -> bool:
    """Whether it is a mask with a number for each query and key: [..., length, length]."""
    is_mask = slot.hides or _MASK.search(slot.name)
    return bool(is_mask) and slot.sample_shape[-2:] == (length, length) and slot.elements == length**2


def _beside(slot: Slot, segments: Array, masked: bool) -> Column:
    """The mask of places that hold a token, or of pairs; their positions; or token types, which are all 0.

    `segments` [samples, length]: the document of each place, -1 where there is none. `masked`: documents are kept
    apart, so that positions begin anew in each.
    """
    samples, length = segments.shape
    shape = samples, *slot.sample_shape
    if _is_of_pairs(slot, length):
        return _Pairs(slot, segments)
    if slot.hides or _MASK.search(slot.name):
        return _shown(slot, segments >= 0).reshape(shape)
    numbers = np.zeros((samples, length), np.int32)
    if _POSITIONS.search(slot.name):
        numbers += np.arange(length, dtype=np.int32)
        if masked:
            begins = np.diff(segments, axis=1, prepend=segments[:, :1]) != 0
            numbers -= np.maximum.accumulate(np.where(begins, numbers, 0), axis=1)
    return numbers.reshape(shape)


def _shown(slot: Slot, seen: Array) -> Array:
    """The numbers of a mask: 0 or the slot's `hides` where scores take it as a term, else whether a place is seen."""
    if slot.hides:
        return np.where(seen, 0, slot.hides).astype(np.float32)
    return seen.astype(slot.dtype.numpy)


class _Pairs:
    """A column of masks [samples, ..., length, length]: a token sees those before it in its document, and itself."""

    def __init__(self, slot: Slot, segments: Array) -> None:
        self._slot, self._segments = slot, segments
        self.shape = len(segments), *slot.sample_shape
        self.dtype = slot.dtype.numpy

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: Any, /) -> Array:
        of = self._segments[rows]
        seen = np.tril(of[..., :, None] == of[..., None, :])
        return _shown(self._slot, seen).reshape(*of.shape[:-1], *self._slot.sample_shape)


def _require_vocabulary(ids: Array, slot: Slot, path: Path, tokenizer: Tokenizer) -> None:
    """UsageError where the tokenizer makes tokens that the model's table lacks."""
    assert slot.limit is not None
    most = int(ids.max(initial=0))
    if most > slot.limit.most:
        raise UsageError(
            f"{path}: has {tokenizer.size:,} tokens, and the texts token {most:,}; the model's table holds"
            f" {slot.limit.most + 1:,}: it is the tokenizer of another model"
        )


@dataclass(slots=True)
class _Reader:
    """Makes `rows` of `length` + 1 tokens at most, whether each is a target, and its document, counted from 0.

    `cut`: of the `texts`, how many.
    """

    tokenizer: Tokenizer
    length: int
    mask_prompt: bool
    truncate: bool
    unpacked: bool
    rows: list[tuple[Array, Array, Array]] = field(default_factory=list)
    texts: int = 0
    cut: int = 0
    chats: int = 0
    _joined: list[Array] = field(default_factory=list)

    def read(self, path: Path) -> None:
        for file in _files(path) if path.is_dir() else [path]:
            if file.suffix.lower() in _LINES:
                for number, _, row in objects(file):
                    self._object(f"{file}: line {number}", row)
            else:
                self._document(str(file), _decoded(file))
        self._cut_windows()

    def arrays(self) -> tuple[Array, Array, Array, Array]:
        """Token numbers and targets [samples, length], the tokens of each sample, and the document of each place.

        Documents are counted from 0 in each sample; -1 is a place without a token.
        """
        shape = len(self.rows), self.length
        fill = self.tokenizer.pad if self.tokenizer.pad is not None else self.tokenizer.end or 0
        ids, targets = np.full(shape, fill, np.int32), np.full(shape, IGNORED, np.int32)
        counts, segments = np.zeros(len(self.rows), np.int64), np.full(shape, -1, np.int32)
        for number, (tokens, counting, documents) in enumerate(self.rows):
            taken = tokens[: self.length]
            ids[number, : len(taken)] = taken
            segments[number, : len(taken)] = documents[: len(taken)] - documents[0]
            following = np.where(counting[1:], tokens[1:], IGNORED)
            targets[number, : len(following)] = following
            counts[number] = len(taken)
        return ids, targets, counts, segments

    def idle(self) -> dict[str, str]:
        """The options that do nothing for the texts that were read, and why."""
        documents = len(self._joined)
        return {
            **({} if self.chats else {"chat_template": "holds no chat"}),
            **({"truncate": "holds documents alone, which are cut into windows"} if documents == self.texts else {}),
            **({} if documents else {"unpacked": "holds no documents, which alone are packed"}),
        }

    def _object(self, where: str, row: dict[str, Any]) -> None:
        mask = self.mask_prompt
        if "messages" in row:
            self.chats += 1
            messages = _messages(where, row["messages"])
            spans = self.tokenizer.chat(messages, mask_prompt=mask, where=where)
            self._sample(where, self.tokenizer.encode(spans, special=False))
        elif "prompt" in row or "completion" in row:
            prompt, completion = _word(where, row, "prompt"), _word(where, row, "completion")
            encoding = self.tokenizer.encode([Span(prompt, not mask), Span(completion, True)])
            self._sample(where, self._ended(encoding))
        else:
            self._document(where, _word(where, row, "text"))

    def _ended(self, encoded: Encoded) -> Encoded:
        """With the end token behind it, which is a target too."""
        end = self.tokenizer.end
        if end is None or (encoded.ids and encoded.ids[-1] == end):
            return encoded
        return Encoded([*encoded.ids, end], [*encoded.counts, True])

    def _sample(self, where: str, encoded: Encoded) -> None:
        self.texts += 1
        most = self.length + 1  # the last one is a target alone
        if len(encoded.ids) > most:
            if not self.truncate:
                raise UsageError(
                    f"{where}: {len(encoded.ids):,} tokens; the model takes {self.length:,}: shorten it, give a longer"
                    " sequence, or --truncate"
                )
            self.cut += 1
        counting = np.array(encoded.counts[:most], bool)
        if counting[1:].any():
            self.rows.append((np.array(encoded.ids[:most], np.int32), counting, np.zeros(len(counting), np.int32)))

    def _document(self, where: str, text: str) -> None:
        if self.mask_prompt:
            raise UsageError(f"{where}: --mask-prompt: a text alone has no prompt; leave the option out")
        if text.strip():
            self.texts += 1
            ids = self._ended(self.tokenizer.encode([Span(text, True)])).ids
            self._joined.append(np.array(ids, np.int32))

    def _cut_windows(self) -> None:
        """Windows of documents: the last token of one is the first of the next, so that each is a target once.

        The first token of a document is none.
        """
        if not self._joined:
            return
        for documents in [[d] for d in self._joined] if self.unpacked else [self._joined]:
            tokens = np.concatenate(documents)
            number = np.repeat(np.arange(len(documents), dtype=np.int32), [len(d) for d in documents])
            counting = np.diff(number, prepend=-1) == 0
            for start in range(0, len(tokens) - 1, self.length):
                part = slice(start, start + self.length + 1)
                if counting[part][1:].any():
                    self.rows.append((tokens[part], counting[part], number[part]))


# --- files ------------------------------------------------------------------------------------------------------------


def _files(path: Path) -> list[Path]:
    """The texts in a folder and below it, in the order of their names."""
    return sorted(p for p in path.rglob("*") if p.is_file() and (p.suffix.lower() == ".txt" or _is_lines(p)))


def _is_lines(path: Path) -> bool:
    """Whether a .jsonl holds texts, as its first line shows."""
    row = _first_row(path)
    return "messages" in row or {"prompt", "completion"} <= set(row) or set(row) == {"text"}


def _first_row(path: Path) -> dict[str, Any]:
    """The object in the first line of a .jsonl; empty where there is none."""
    if path.suffix.lower() not in _LINES or not path.is_file():
        return {}
    try:
        with path.open("rb") as file:
            first = next((line for line in file.read(_FIRST_BYTES).splitlines() if line.strip()), b"")
        row = msgspec.json.decode(first)
    except (OSError, msgspec.DecodeError, UnicodeError, RecursionError):
        return {}
    return row if isinstance(row, dict) else {}


def _decoded(path: Path) -> str:
    try:
        return read_file(path, LARGEST_BYTES).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UsageError(f"{path}: byte {error.start:,} is no text in UTF-8") from None


def _word(where: str, row: dict[str, Any], name: str) -> str:
    value = row.get(name)
    if not isinstance(value, str):
        has = "is no text" if name in row else "is missing"
        keys = ", ".join(map(repr, map(printable, row))) or "none"
        raise UsageError(f"{where}: {name!r} {has} (its keys: {keys}); give text, prompt and completion, or messages")
    return value


def _messages(where: str, value: Any) -> Sequence[dict[str, Any]]:
    if not isinstance(value, list) or not value:
        raise UsageError(f"{where}: 'messages' is no list of messages")
    for number, message in enumerate(value, 1):
        fields = message if isinstance(message, dict) else {}
        if not (isinstance(fields.get("role"), str) and isinstance(fields.get("content"), str)):
            raise UsageError(f"{where}: message {number} is no object with the texts 'role' and 'content'")
    return value


def _takes(path: Path) -> bool:
    if path.is_dir():
        return bool(_files(path)) and not any(path.glob("*.npy"))
    row = _first_row(path)  # one of words alone has no number for an input: its keys are misspelt
    return (
        path.suffix.lower() == ".txt"
        or _is_lines(path)
        or (bool(row) and all(isinstance(v, str) for v in row.values()))
    )


KINDS.add(
    "text",
    Kind(
        name="text",
        description="texts (.txt, .jsonl)",
        takes=_takes,
        read=read_text,
        help="For models of tokens: a .txt, a .jsonl of text, prompt and completion or messages, or a folder of these.",
        options=OPTIONS,
        ignores=IGNORED,
    ),
)
