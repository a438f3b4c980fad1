"""`poetc import-gguf`."""

from __future__ import annotations

from pathlib import Path

import click

from poetc.cli import _options
from poetc.cli._console import Console
from poetc.cli._help import command

EPILOG = """\b
Example:
  poetc import-gguf SmolLM2-135M-Instruct.Q4_1.gguf -o smollm2/model.onnx
"""


@command("import-gguf", epilog=EPILOG)
@click.argument("source", metavar="MODEL.gguf", type=_options.FILE)
@click.option("-o", "--output", "out", type=_options.FILE, required=True, metavar="OUT.onnx", help="The ONNX file.")
@_options.force_option
@_options.output_options
def import_gguf(source: Path, out: Path, force: bool, console: Console) -> None:
    """Make an ONNX file of a language model of llama.cpp, with its tokenizer beside it.

    Families: llama, qwen2, qwen3, gemma, gemma3. Weights of Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q4_K, Q5_K and Q6_K stay in 4
    or 8 bits. Floats of 16 and 32 bits stay as they are. The package gguf reads the file (pip install '.[text]'
    in the clone).
    """
    from poetc.cli import _text
    from poetc.commands import gguf

    with console.progress("reading the file") as progress:
        document = gguf.import_gguf(source, out, force=force, progress=progress)
    console.notes(document["notes"])
    console.copies(document["copies"], out.parent)
    console.answer(document, _text.gguf_text(document))
