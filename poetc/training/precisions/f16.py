"""Activations and gradients as IEEE floats of 16 bits; the pass `poetc.passes._narrow` rewrites the step."""

from poetc.declare import Option, Whole
from poetc.training.precisions._precision import Precision, declare

_MOST_LOSS_SCALE = 2**24

declare(
    Precision(
        name="f16",
        help="floats of 16 bits",
        narrow="floats of 16 bits",
        options=(
            Option(
                name="loss_scale",
                values=Whole(1, _MOST_LOSS_SCALE, power_of_two=True),
                metavar="N",
                help="Gradients are stored times N, a power of two.",
            ),
        ),
        defaults={"loss_scale": 1024},
    )
)
