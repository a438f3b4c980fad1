"""Notes where parameters of the PyTorch model and the file differ."""

from __future__ import annotations

from collections.abc import Iterable

from poetc.frontend._exported import Exported, is_module_name, some


def names_notes(exported: Exported, trained: Iterable[str], constants: Iterable[str]) -> list[str]:
    """Notes where parameters of the PyTorch model and the file differ.

    They name parameters that are not in the file or have other names there, and trained tensors that are no parameters.

    `trained`, `constants`: the file's float tensors that are one or the other.
    """
    notes = []
    if exported.missing:
        missing = some(exported.missing)
        notes.append(
            f"not in the file, so not trained: {missing} of the PyTorch model, which the exporter folded into others"
            " (torch.onnx.export(..., optimize=False) keeps them)"
        )
    if exported.gone:
        notes.append(
            f"not in the file: {some(exported.gone)} of the PyTorch model, tied to others, left out or made"
            " into others (torch.onnx.export(..., optimize=False) keeps them)"
        )
    if exported.merged_norms:
        merged = some(exported.merged_norms, "convolution")
        notes.append(
            f"not in the file, so not trained: the batch norms that the exporter folded into {merged}"
            " (training=TrainingMode.PRESERVE keeps them)"
        )
    there = list(trained)
    renamed = [f"{n} = {exported.aliases[n]}" for n in there if exported.aliases.get(n, n) != n]
    if renamed:
        notes.append(f"under another name in the file: {some(renamed)}")
    strange = [n for n in there if not is_module_name(n) and n not in exported.parameters and n in exported.places]
    if strange:
        shown = some([f"{n} of {exported.places[n] or 'the model'}" for n in sorted(strange)], "tensor")
        notes.append(f"trained, with numbers that the exporter computed or moved: {shown}")
    frozen = {*exported.numbers, *(n for n in constants if is_module_name(n) and not exported.parameters)} - set(there)
    if frozen:
        notes.append(f"taken for constants, not trained: {some(sorted(frozen), 'tensor')}")
    return notes
