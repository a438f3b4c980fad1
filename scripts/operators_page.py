"""Write docs/reference/operators.md from the registry of operator kinds."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from itertools import groupby
from pathlib import Path

import poetc.frontend  # noqa: F401  its translations register themselves
from poetc.frontend._control_flow import CONTROL_FLOW
from poetc.frontend._quantized_forms import FLOAT_TOO, FORMS
from poetc.frontend._translations import TRANSLATIONS
from poetc.ops import OpSpec, registry

PAGE = Path(__file__).resolve().parents[1] / "docs" / "reference" / "operators.md"


MADE_LATER = {"Attention"}  # kinds of an ONNX operator's name that a pass makes, not the importer


def family(spec: OpSpec) -> str:
    return type(spec).__module__.removeprefix("poetc.ops.").partition(".")[0]


def kinds_named(translation: Callable[..., object]) -> list[str]:
    """Operator kinds that the source of a translation emits by name, or of a function of the importer that it calls."""
    module = inspect.getmodule(translation)
    source = inspect.getsource(translation)
    for name in sorted(set(re.findall(r"(?<![.\w])([_a-z]\w*)\(", source))):
        helper = getattr(module, name, None)
        if inspect.isfunction(helper) and re.fullmatch(r"poetc\.frontend\.onnx_\w+", helper.__module__):
            source += inspect.getsource(helper)
    body = "\n".join(line for line in source.splitlines() if not line.startswith("@"))
    return sorted(set(re.findall(r'"([A-Z]\w+)"', body)) & set(registry()))


QUANTIZED = """
## Quantized models

A quantized model (QDQ, QOperator, dynamic) trains as the float model that it stands for. Weights become f32
parameters. Activations are no longer rounded to integers. A `QuantizeLinear` whose integers stand for no negative
number becomes the ReLU that the exporter left out, and one up to 6 a ReLU6. An exported model is a float model too.
With `--precision qas` a QDQ model [trains as it is](../how-to/train-quantised-models.md).

`_quantized_forms` has the float form of these operators, of the default domain or of `com.microsoft`:

{forms}
"""

BLOCKED = """
## Blocked channels

`ORT_ENABLE_ALL` of onnxruntime writes convolutions for one processor (`com.microsoft.nchwc`): weights and channels in
blocks of 8 or 16. They become plain convolutions, pools and upsamplings, without the zeros that fill up a block. Where
the file fits both widths, the width is that of onnxruntime on this machine; a note of `analyze` says which.
"""

REFUSED = """
## Refused models

In one message that names every node, with exit code 3:

- `If`, `Loop` and `Scan` whose branch or number of steps depends on the inputs, which `--constant` may bind;
- `SequenceMap`;
- operators of other domains, such as `ai.onnx.preview.training`;
- operators that are not in the table above, unless their inputs are constants;
- four or more spatial axes, and three of a transposed convolution;
- sequences as inputs or outputs, sparse weights, strings and complex numbers;
- arithmetic on integers that 32 bits would change: division, subtraction of unsigned ones, reductions, padding;
- inputs of 8 and 16 bits, casts to them, and casts to floats of less than 16 bits;
- shapes, axes, pads, scales and bounds of `Clip` that are computed from the inputs: they must be constant;
- recurrent layers with sequence lengths, `input_forget` or activations with parameters, or unrolled into more than
  5,000 operators;
- quantized models whose scales are inputs, or whose integers an operator reads that has no float form;
- `Resize` of axes of more than 4096 elements in modes that are products with matrices (cubic, antialias, regions);
- operator sets before 7.

A reduction over an axis without elements is an error of the model (exit code 2). A `Dropout` whose mask is read never
drops anything. The node tests of the `onnx` package run for every operator of the table
(`tests/frontend/test_node_cases.py` counts those refused, by reason).
"""


def onnx_section() -> list[str]:
    lines = ["", "## ONNX operators", "", "The importer reads operator sets 7 to 24. The table has the file of"]
    lines += [
        "`poetc/frontend/` that translates an operator, and the kinds it may become. Operators on constants alone are"
    ]
    lines += [
        "evaluated at import, whatever they are.",
        "",
        "| ONNX | file | becomes |",
        "|---|---|---|",
    ]
    for name in ("Constant", "ConstantOfShape", "Shape", "Size"):
        lines.append(f"| `{name}` | _values | a value |")
    lines += [
        f"| `{name}` | _control_flow | the operators of its body, step by step |" for name in sorted(CONTROL_FLOW)
    ]
    for name, translation in sorted(TRANSLATIONS.items()):
        own = [name] if name in registry().keys() - MADE_LATER else []
        kinds = sorted(
            {*own, *(k for k in kinds_named(translation) if k not in TRANSLATIONS or own == [] or k == name)}
        )
        becomes = ", ".join(f"`{k}`" for k in kinds) or "views, slices, or another name for the same tensor"
        lines.append(f"| `{name}` | {translation.__module__.rsplit('.', 1)[-1]} | {becomes} |")
    forms = "\n".join(f"- `{name}`" for name in sorted(FORMS.keys() - FLOAT_TOO))
    return [*lines, *QUANTIZED.format(forms=forms).rstrip().splitlines(), *(BLOCKED + REFUSED).rstrip().splitlines()]


def page() -> str:
    """The whole page."""
    kinds = sorted(registry().values(), key=lambda s: (family(s), s.kind))
    lines = ["# Operator kinds", "", "Made by `scripts/operators_page.py`: one section a file of `poetc/ops/`."]
    for name, members in groupby(kinds, family):
        lines += ["", f"## {name}", "", "| kind | meaning |", "|---|---|"]
        for spec in members:
            summary = spec.summary.replace("|", "\\|")
            notes = [] if spec.recomputable else ["runs once a step"]
            notes += ["a view: no kernel, no cost"] if spec.is_view else []
            note = f" ({', '.join(notes)})" if notes else ""
            lines.append(f"| `{spec.kind}` | {summary}{note} |")
    return "\n".join([*lines, *onnx_section()]) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
