"""tokenizer.json and tokenizer_config.json out of the fields of a GGUF file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from poetc.commands.gguf._reading import Gguf
from poetc.errors import UsageError, printable, shortened

_CONTROL, _USER = 3, 4  # types of tokens in llama.cpp
_SPACE = "\u2581"  # of SentencePiece
_THREE = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)
# Patterns that split a text, by `tokenizer.ggml.pre`. "": GPT-2's.
_SPLITS = {
    "gpt-2": "",
    "default": "",
    "smollm": "digits",
    "llama-bpe": _THREE,
    "llama3": _THREE,
    "qwen2": _THREE.replace("{1,3}", ""),
}
_SPECIAL = ("bos", "eos", "unknown", "padding")
_NAMES = {"unknown": "unk", "padding": "pad"}


def tokenizer_files(file: Gguf) -> tuple[dict[str, bytes], str]:
    """The files by name, and why there are none: "" where there are."""
    from tokenizers import Tokenizer

    fields = file.fields
    kind, tokens = fields.get("tokenizer.ggml.model"), fields.get("tokenizer.ggml.tokens")
    types = fields.get("tokenizer.ggml.token_type") or [1] * len(tokens or [])
    if not isinstance(tokens, list) or not all(isinstance(t, str) for t in tokens) or len(types) != len(tokens):
        return {}, "the file holds no tokenizer"
    try:
        if kind == "gpt2":
            model = _of_bytes(fields, tokens)
        elif kind == "llama":
            model = _of_pieces(fields, tokens)
        else:
            return {}, f"its tokenizer is of the kind {printable(str(kind))!r}; known are gpt2 and llama"
        if isinstance(model, str):
            return {}, model
        special = {
            name: tokens[i]
            for name in _SPECIAL
            if isinstance(i := fields.get(f"tokenizer.ggml.{name}_token_id"), int) and 0 <= i < len(tokens)
        }
        model["added_tokens"] = [
            {"id": i, "content": t, "special": types[i] == _CONTROL, **_EXACT}
            for i, t in enumerate(tokens)
            if types[i] in (_CONTROL, _USER)
        ]
        begins = bool(fields.get("tokenizer.ggml.add_bos_token", kind == "llama"))
        if begins and "bos" in special:
            model["post_processor"] = _beginning(special["bos"], tokens.index(special["bos"]))
        text = json.dumps(model, ensure_ascii=False)
        Tokenizer.from_str(text)
    except Exception as error:  # the fields are the file's, the checks another library's
        raise UsageError(f"{file.path}: its tokenizer is damaged ({shortened(error, 100)})") from error
    config: dict[str, Any] = {f"{_NAMES.get(name, name)}_token": token for name, token in special.items()}
    config |= {"add_bos_token": begins, "tokenizer_class": "PreTrainedTokenizerFast"}
    template = fields.get("tokenizer.chat_template")
    config |= {"chat_template": template} if isinstance(template, str) else {}
    shown = json.dumps(config, ensure_ascii=False, indent=1) + "\n"
    return {"tokenizer.json": text.encode(), "tokenizer_config.json": shown.encode()}, ""


_EXACT = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}


def _of_bytes(fields: Mapping[str, Any], tokens: list[str]) -> dict[str, Any] | str:
    """Byte pairs, as GPT-2's; or why not."""
    pre = str(fields.get("tokenizer.ggml.pre", "default"))
    if pre not in _SPLITS:
        return f"it splits texts as {printable(pre)!r}; known are {', '.join(_SPLITS)}"
    split = _SPLITS[pre]
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": len(split) < 10}
    steps: list[dict[str, Any]] = [level]
    if split == "digits":
        steps = [{"type": "Digits", "individual_digits": True}, level]
    elif split:
        steps = [{"type": "Split", "pattern": {"Regex": split}, "behavior": "Isolated", "invert": False}, level]
    merges = [pair.split(" ", 1) for pair in fields["tokenizer.ggml.merges"]]
    return {
        "version": "1.0",
        "normalizer": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": steps},
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": {
            "type": "BPE",
            "vocab": {t: i for i, t in enumerate(tokens)},
            "merges": merges,
            "ignore_merges": pre in ("llama-bpe", "llama3"),
        },
    }


def _of_pieces(fields: Mapping[str, Any], tokens: list[str]) -> dict[str, Any] | str:
    """Pieces with scores, as SentencePiece's: two pieces become one, the one with the highest score first."""
    scores = fields.get("tokenizer.ggml.scores")
    if not isinstance(scores, list) or len(scores) != len(tokens):
        return "its pieces have no scores"
    places = {t: i for i, t in enumerate(tokens)}
    merges = []
    for token, score in zip(tokens, scores, strict=True):
        parts = [(token[:k], token[k:]) for k in range(1, len(token))]
        known = [p for p in parts if p[0] in places and p[1] in places]
        merges += [(-score, places[a], places[b], a, b) for a, b in known]
    merges.sort()
    unknown = fields.get("tokenizer.ggml.unknown_token_id")
    steps: list[dict[str, Any]] = [{"type": "Replace", "pattern": {"String": " "}, "content": _SPACE}]
    ends: list[dict[str, Any]] = [{"type": "Fuse"}]
    if fields.get("tokenizer.ggml.add_space_prefix", True):
        steps.insert(0, {"type": "Prepend", "prepend": _SPACE})
        ends.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
    first = {"type": "Replace", "pattern": {"String": _SPACE}, "content": " "}
    return {
        "version": "1.0",
        "normalizer": {"type": "Sequence", "normalizers": steps},
        "pre_tokenizer": None,
        "decoder": {"type": "Sequence", "decoders": [first, {"type": "ByteFallback"}, *ends]},
        "model": {
            "type": "BPE",
            "vocab": places,
            "merges": [[a, b] for *_, a, b in merges],
            "unk_token": tokens[unknown] if isinstance(unknown, int) else None,
            "fuse_unk": True,
            "byte_fallback": True,
        },
    }


def _beginning(token: str, number: int) -> dict[str, Any]:
    return {
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": token, "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {token: {"id": token, "ids": [number], "tokens": [token]}},
    }
