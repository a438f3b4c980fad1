"""Tokenizers of language models: tokenizer.json, its end token, and the template of its chats.

The package `tokenizers` reads tokenizer.json, and jinja2 runs the template (the extra `text`). Beside tokenizer.json
lie files that Hugging Face's transformers writes: tokenizer_config.json has the names of special tokens and the
template. The template may lie in chat_template.jinja.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from poetc.errors import UsageError, printable, shortened
from poetc.files import exists, read_file

TOKENIZER, CONFIG, TEMPLATE = "tokenizer.json", "tokenizer_config.json", "chat_template.jinja"
_OTHER_CONFIGS = ("special_tokens_map.json", "config.json", "generation_config.json", "genai_config.json")
_CONTEXT_CONFIGS = ("config.json", "genai_config.json")
_CONTEXT_KEYS = ("max_position_embeddings", "n_positions", "n_ctx", "context_length")
_PADDED = 0.05  # the most of a model's tokens that only make its matrices even, or that its table lacks
LARGEST_BYTES = 1 << 28
_EXTRA = "pip install '.[text]' in the clone"


@dataclass(frozen=True, slots=True)
class Span:
    """A part of a text, in characters, and whether its tokens are targets."""

    text: str
    counts: bool


@dataclass(frozen=True, slots=True)
class Encoded:
    """Token numbers, and for each whether it is a target."""

    ids: list[int]
    counts: list[bool]


class Tokenizer:
    """A tokenizer.json with the files beside it. `template`: a file in place of the chat template found there."""

    def __init__(self, path: Path, template: Path | None = None) -> None:
        self.path = path
        self._model = _read(path)
        self._config = _json(path.with_name(CONFIG))
        self._template_file = template
        if template is not None and not exists(template):
            raise UsageError(f"--chat-template {template}: does not exist")
        self.end = self._special("eos_token", "eos_token_id")
        self.pad = self._special("pad_token", "pad_token_id")

    @property
    def size(self) -> int:
        """One more than the largest token number."""
        return max(self._model.get_vocab(with_added_tokens=True).values(), default=-1) + 1

    @property
    def context(self) -> tuple[int, str]:
        """The tokens that the model was made for, and the file beside the tokenizer that says so; (0, "") by none."""
        for name in _CONTEXT_CONFIGS:
            config = _json(self.path.with_name(name))
            for part in (config, config.get("text_config"), config.get("model")):
                for key in _CONTEXT_KEYS:
                    length = part.get(key) if isinstance(part, dict) else None
                    if isinstance(length, int) and not isinstance(length, bool) and length > 0:
                        return length, name
        return 0, ""

    def require_model(self, vocabulary: int) -> None:
        """UsageError for a tokenizer of far fewer or more tokens than a model's `vocabulary`: that of another model."""
        if abs(vocabulary - self.size) > _PADDED * vocabulary:
            raise UsageError(
                f"{self.path}: has {self.size:,} tokens, and the model {vocabulary:,}: that of another model"
            )

    def encode(self, spans: Sequence[Span], *, special: bool = True) -> Encoded:
        """The tokens of the spans, one text, with those that the tokenizer puts around a text where `special`.

        A token that begins in one span and ends in another belongs to the later one.
        """
        text = "".join(span.text for span in spans)
        try:
            encoding = self._model.encode(text, add_special_tokens=special)
        except TypeError:  # a byte that is no UTF-8, as in an argument of the command line
            wrong = [(i, letter) for i, letter in enumerate(text, 1) if "\ud800" <= letter <= "\udfff"]
            if not wrong:
                raise
            at, letter = wrong[0]
            raise UsageError(f"the text's character {at:,}, {printable(letter)}, is none of UTF-8") from None
        ends, counts, at = [], [], 0
        for span in spans:
            at += len(span.text)
            ends.append(at)
        for (start, end), added in zip(encoding.offsets, encoding.special_tokens_mask, strict=True):
            if added and start == end:
                counts.append(False)
                continue
            place = max(end - 1, start)
            counts.append(next((s.counts for s, e in zip(spans, ends, strict=True) if place < e), spans[-1].counts))
        return Encoded(list(encoding.ids), counts)

    def decode(self, ids: Sequence[int], *, special: bool = False) -> str:
        """The text of tokens; `special`: with the special ones."""
        return str(self._model.decode(list(ids), skip_special_tokens=not special))

    # --- chats --------------------------------------------------------------------------------------------------------

    @property
    def has_template(self) -> bool:
        return self._template_file is not None or self._template() is not None

    def chat(self, messages: Sequence[Mapping[str, Any]], *, mask_prompt: bool, where: str) -> list[Span]:
        """The text of a chat; with `mask_prompt` the answers of the assistant alone are targets."""
        whole = self.render(messages, where=where)
        if not mask_prompt:
            return [Span(whole, True)]
        spans, at = [], 0
        for number, message in enumerate(messages):
            if message.get("role") != "assistant":
                continue
            before = self.render(messages[:number], where=where, asks=True) if number else ""
            until = self.render(messages[: number + 1], where=where)
            if not (whole.startswith(before) and whole.startswith(until) and at <= len(before) <= len(until)):
                raise UsageError(
                    f"{where}: the template of {self._template_name()} writes the beginning of a chat otherwise than"
                    " alone, so the answers cannot be told from it; leave --mask-prompt out"
                )
            spans += [Span(whole[at : len(before)], False), Span(whole[len(before) : len(until)], True)]
            at = len(until)
        spans.append(Span(whole[at:], False))
        return spans

    def render(self, messages: Sequence[Mapping[str, Any]], *, where: str, asks: bool = False) -> str:
        """The text of `messages` by the template; `asks`: the assistant is to answer."""
        source = self._template()
        if source is None:
            raise UsageError(
                f"{where}: a chat needs a template, and there is none in {CONFIG} or {TEMPLATE} beside {self.path};"
                " give --chat-template FILE"
            )
        names = {
            name: _content(value)
            for name, value in self._config.items()
            if name.endswith("_token") and value is not None
        }
        try:
            template = _environment().from_string(source)
            return str(template.render(messages=list(messages), add_generation_prompt=asks, **names))
        except UsageError:
            raise
        except Exception as error:  # the template is a program
            reason = shortened(str(error) or type(error).__name__, 120)
            raise UsageError(f"{where}: the template of {self._template_name()} fails: {reason}") from error

    def _template(self) -> str | None:
        if self._template_file is not None:
            return _text(self._template_file)
        path = self.path.with_name(TEMPLATE)
        if path.is_file():
            return _text(path)
        template = self._config.get("chat_template")
        if isinstance(template, list):  # several, by name
            named = {e.get("name"): e.get("template") for e in template if isinstance(e, dict)}
            template = named.get("default")
        return template if isinstance(template, str) else None

    def _template_name(self) -> str:
        path = self.path.with_name(TEMPLATE)
        return str(self._template_file or (path if path.is_file() else self.path.with_name(CONFIG)))

    # --- special tokens -----------------------------------------------------------------------------------------------

    def _special(self, name: str, number: str) -> int | None:
        """The token that the files beside the tokenizer call `name`, or whose number they give."""
        word = _content(self._config.get(name))
        for other in _OTHER_CONFIGS:
            if word:
                break
            config = _json(self.path.with_name(other))
            inner = config.get("model", config)
            token = inner.get(number) if isinstance(inner, dict) else None
            token = token[0] if isinstance(token, list) and token else token
            if isinstance(token, int) and not isinstance(token, bool) and token >= 0:
                return token
            word = _content(config.get(name))
        return self._model.token_to_id(word) if word else None


def find_tokenizer(tokenizer: str | None, model: Path | None) -> Path:
    """tokenizer.json of `--tokenizer`, which may be its folder; else the one beside the model. UsageError."""
    if tokenizer:
        path = Path(tokenizer)
        path = path / TOKENIZER if path.is_dir() else path
        if not exists(path):
            raise UsageError(f"--tokenizer {tokenizer}: does not exist")
        return path
    if model is not None and (neighbour := model.absolute().parent / TOKENIZER).is_file():
        return neighbour
    where = f" beside {model}" if model is not None else ""
    raise UsageError(f"texts need a tokenizer, and there is no {TOKENIZER}{where}; give --tokenizer FILE")


def _read(path: Path) -> Any:
    try:
        from tokenizers import Tokenizer as Model
    except ImportError:
        raise UsageError(f"texts need the package tokenizers: {_EXTRA}") from None
    try:
        model = Model.from_str(read_file(path, LARGEST_BYTES).decode())
    except (OSError, UsageError):
        raise
    except Exception as error:  # of a library in another language
        raise UsageError(f"{path}: not a tokenizer.json ({shortened(error, 120)})") from error
    model.no_padding()
    model.no_truncation()
    return model


def _environment() -> Any:
    try:
        from jinja2.sandbox import ImmutableSandboxedEnvironment
    except ImportError:
        raise UsageError(f"the template of a chat needs the package jinja2: {_EXTRA}") from None

    def refuse(message: str) -> None:
        raise ValueError(message)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.globals["raise_exception"] = refuse
    environment.globals["strftime_now"] = lambda form: ""  # a text must not depend on the day
    environment.filters["tojson"] = lambda value, **options: json.dumps(value, ensure_ascii=False)
    return environment


def _json(path: Path) -> dict[str, Any]:
    """The object in a file; empty where there is none."""
    if not path.is_file():
        return {}
    try:
        document = json.loads(read_file(path))
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path}: not JSON ({shortened(error, 80)})") from None
    if not isinstance(document, dict):
        raise UsageError(f"{path}: not an object with keys")
    return document


def _text(path: Path) -> str:
    try:
        return read_file(path).decode()
    except UnicodeDecodeError:
        raise UsageError(f"{path}: not a text in UTF-8") from None


def _content(value: Any) -> str:
    """The text of a special token, which a file may describe by an object."""
    if isinstance(value, dict):
        value = value.get("content")
    return printable(value) if isinstance(value, str) else ""
