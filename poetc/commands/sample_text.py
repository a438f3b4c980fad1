"""The text of a language model behind a prompt, before and after its training: `poetc train --sample`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from poetc.commands.generate import GenerateRequest, generate
from poetc.datasets import Tokenizer, find_tokenizer
from poetc.errors import PoetcError, UsageError
from poetc.events import Progress

TOKENS = 32


class Sample:
    """Texts behind `prompt`: in the chat's template where there is one, the likeliest token each time.

    `model`: the untrained file, beside which the tokenizer lies unless `texts`, the options of texts, name another.
    """

    def __init__(self, prompt: str, model: Path, texts: Mapping[str, Any], progress: Progress, note: Progress) -> None:
        if not prompt.strip():
            raise UsageError("--sample: holds no text")
        template = texts.get("chat_template")
        self.prompt, self.template, self._progress, self._note = prompt, template, progress, note
        self.tokenizer = find_tokenizer(texts.get("tokenizer"), model)
        self.is_chat = Tokenizer(self.tokenizer, Path(template) if template else None).has_template
        self.before = self.of(model)
        note(f"before the training: {' '.join(self.before.split())}")

    def of(self, model: Path) -> str:
        """The text that a file writes. Raises UsageError and UnsupportedModelError."""
        request = GenerateRequest(
            source=model,
            prompt=self.prompt,
            tokens=TOKENS,
            chat=self.is_chat,
            tokenizer=str(self.tokenizer),
            chat_template=self.template,
        )
        return str(generate(request, self._progress)["text"])

    def to_json(self, model: Path) -> dict[str, str]:
        """For the answer of `--json`, with the text of the trained file. A fault there costs that text alone."""
        after = ""
        try:
            after = self.of(model)
        except PoetcError as error:
            self._note(f"--sample: there is no text after the training: {error}")
        return {"prompt": self.prompt, "before": self.before, "after": after}
