"""`poetc export`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from poetc.cli import _options
from poetc.cli._console import Console
from poetc.cli._help import command

EPILOG = """\b
Examples:
  poetc export model.poetc --state trained.bin -o trained.onnx
  poetc export model.poetc --state trained.bin --npz weights.npz
  poetc export model.poetc --state trained.bin --adapter adapter.safetensors
"""


@command(epilog=EPILOG)
@click.argument("directory", metavar="DIR", type=_options.DIRECTORY)
@click.option(
    "--state",
    type=_options.FILE,
    metavar="FILE",
    help="The trained weights: trained.bin, a checkpoint (also in store.bin), .npz or .safetensors. Default: those that"
    " training starts from.",
)
@click.option(
    "-o",
    "--output",
    "--merged",
    "out",
    type=_options.FILE,
    metavar="OUT.onnx",
    help="The ONNX file to write; adapters of --lora are added to its weights.",
)
@click.option("--npz", type=_options.FILE, metavar="FILE", help="Write the weights to an .npz file too, or alone.")
@click.option(
    "--safetensors",
    type=_options.FILE,
    metavar="FILE",
    help="Write them to a .safetensors file.",
)
@click.option(
    "--adapter",
    type=_options.FILE,
    metavar="FILE",
    help="Write the adapters of --lora to a .safetensors file that peft reads, and adapter_config.json beside it.",
)
@click.option("--gguf-adapter", type=_options.FILE, metavar="FILE", help="Write them as a GGUF file of llama.cpp.")
@click.option("--onnx-adapter", type=_options.FILE, metavar="FILE", help="Write them as onnxruntime's .onnx_adapter.")
@click.option(
    "--adapter-base",
    type=_options.FILE,
    metavar="BASE.onnx",
    help="Write the untrained ONNX file with inputs for the factors, the model of --onnx-adapter.",
)
@click.option(
    "--model",
    type=_options.FILE,
    metavar="MODEL.onnx",
    help="The ONNX file that was solved. Default: the file at its old place, if it has not changed.",
)
@click.option(
    "--round",
    "rounding",
    is_flag=True,
    help="Round weights to the bits that the file has for them, 4-bit codes too, and state the error. By default codes"
    " become floats, and narrower floats end the command.",
)
@click.option("--force", is_flag=True, help="Replace files that exist.")
@_options.output_options
def export(
    directory: Path,
    state: Path | None,
    console: Console,
    **files: Any,
) -> None:
    """Write the model that was solved, with trained weights, as an ONNX file.

    DIR is a directory that `poetc solve` made. OUT.onnx is the file that was solved, with the same nodes, names,
    operator set and metadata. Only the numbers of weights and running statistics are others. External data go to one
    file beside it, OUT.onnx.data. A weight that the file cannot hold is named, and nothing is written.

    The names in .npz and .safetensors files are those of the initializers. Those of --adapter are peft's.
    """
    from poetc.cli import _text
    from poetc.commands import export as command

    with console.progress("exporting") as progress:
        document = command.export(directory, command.ExportRequest(**files), state=state, progress=progress)
    console.notes(document["notes"])
    console.answer(document, _text.export_text(document))
