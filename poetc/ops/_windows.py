"""Sliding windows over the last two axes, for convolution and pooling."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from poetc.ops._bound import Bound


@dataclass(frozen=True, slots=True)
class Windows:
    """A window of `kernel` taps that slides over an image; pairs are (h, w), pads = (top, left, bottom, right)."""

    kernel: tuple[int, int]
    strides: tuple[int, int]
    pads: tuple[int, int, int, int]
    dilations: tuple[int, int]
    ceil_mode: bool = False

    @classmethod
    def of(cls, op: Bound, kernel: tuple[int, ...]) -> Windows:
        """From the operator's attributes; strides, dilations default to 1, pads to 0."""

        def pair(name: str) -> tuple[int, int]:
            values = op.get_ints(name) if name in op.attributes else (1, 1)
            if len(values) != 2 or min(values) < 1:
                raise ValueError(f"{name} must be two positive numbers, not {values}")
            return values[0], values[1]

        pads = op.get_ints("pads") if "pads" in op.attributes else (0, 0, 0, 0)
        if len(pads) != 4 or min(pads) < 0:
            raise ValueError(f"pads must be four numbers (top, left, bottom, right), none negative, not {pads}")
        if len(kernel) != 2 or min(kernel) < 1:
            raise ValueError(f"kernel must be two positive numbers, not {kernel}")
        return cls(
            (kernel[0], kernel[1]),
            pair("strides"),
            (pads[0], pads[1], pads[2], pads[3]),
            pair("dilations"),
            bool(op.get_int("ceil_mode")),
        )

    @property
    def taps(self) -> int:
        return self.kernel[0] * self.kernel[1]

    @property
    def extent(self) -> tuple[int, int]:
        """Pixels from the first to the last tap, both included."""
        return tuple((k - 1) * d + 1 for k, d in zip(self.kernel, self.dilations, strict=True))  # type: ignore[return-value]

    def output_size(self, size: tuple[int, ...]) -> tuple[int, int]:
        """Number of window positions over an image of `size`.

        With ceil_mode a last partial window counts, unless it would start beyond the image and its leading pad (the
        rule of ONNX and PyTorch).
        """
        result = []
        for axis in (0, 1):
            before, after = self.pads[axis], self.pads[axis + 2]
            stride = self.strides[axis]
            room = size[axis] + before + after - self.extent[axis]
            if room < 0:
                padded = size[axis] + before + after
                raise ValueError(f"the window of {self.extent[axis]} is larger than the padded input of {padded}")
            count = (-(-room // stride) if self.ceil_mode else room // stride) + 1
            if self.ceil_mode and (count - 1) * stride >= size[axis] + before:
                count -= 1
            result.append(count)
        return result[0], result[1]

    def transposed_size(self, size: tuple[int, ...], output_padding: tuple[int, ...]) -> tuple[int, int]:
        """Image size that a transposed convolution makes from `size` positions."""
        result = [
            self.strides[i] * (size[i] - 1) + output_padding[i] + self.extent[i] - self.pads[i] - self.pads[i + 2]
            for i in (0, 1)
        ]
        return result[0], result[1]

    def view(self, x: Any, output: tuple[int, int], fill: float = 0.0) -> Any:
        """x[..., H, W] padded with `fill` → read-only view [..., kernel_h, kernel_w, output_h, output_w]."""
        padded = self._padded(x.shape[:-2], x.shape[-2:], output, x.dtype, fill)
        top, left = self.pads[:2]
        padded[..., top : top + x.shape[-2], left : left + x.shape[-1]] = x
        *outer, row, column = padded.strides
        steps = (row * self.dilations[0], column * self.dilations[1], row * self.strides[0], column * self.strides[1])
        shape = (*x.shape[:-2], *self.kernel, *output)
        return np.lib.stride_tricks.as_strided(padded, shape, (*outer, *steps), writeable=False)

    def fold(self, windows: Any, size: tuple[int, ...]) -> Any:
        """Adjoint of `view`: [..., kernel_h, kernel_w, output_h, output_w] summed into [..., H, W]."""
        outer, output = windows.shape[:-4], windows.shape[-2:]
        padded = self._padded(outer, size, output, windows.dtype, 0.0)
        (sh, sw), (dh, dw) = self.strides, self.dilations
        for i in range(self.kernel[0]):
            for j in range(self.kernel[1]):
                rows = slice(i * dh, i * dh + (output[0] - 1) * sh + 1, sh)
                columns = slice(j * dw, j * dw + (output[1] - 1) * sw + 1, sw)
                padded[..., rows, columns] += windows[..., i, j, :, :]
        top, left = self.pads[:2]
        return padded[..., top : top + size[0], left : left + size[1]]

    def _padded(self, outer: Any, size: Any, output: Any, dtype: Any, fill: float) -> Any:
        reach = [
            max(self.pads[i] + size[i] + self.pads[i + 2], (output[i] - 1) * self.strides[i] + self.extent[i])
            for i in (0, 1)
        ]
        return np.full((*outer, *reach), fill, dtype)
