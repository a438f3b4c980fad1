"""Make digits_new_writer.npz, handwritten digits as a new writer would draw them, and digits_first_writers.npz.

    python demo/make_data.py DIGITS_NPZ

DIGITS_NPZ holds `x` [1797, 8, 8] (0 .. 16) and `y` [1797], as `sklearn.datasets.load_digits()` gives them (`images`,
`target`). The first 1000 digits train the model that is shipped (make_model.py) and go to digits_first_writers.npz.
The other 797 are redrawn here: slanted, drawn with a broader pen, paler, on a grey page and off centre. Two of three
are for training on the device (532), every third for measuring (265). Nothing is random.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import numpy.typing as npt

FIRST_NEW = 1000  # digits before this one train the shipped model
SLANT = -0.25  # columns a row
SHIFT = (0.0, -1.0)  # rows, columns: off centre
PEN = 0.2  # share of the stroke's neighbourhood maximum in the ink
CONTRAST = 0.8
PAGE = 2.0  # grey level of the page, of 16

Images = npt.NDArray[np.float64]


def redraw(images: Images) -> Images:
    """[n, 8, 8] (0 .. 16) -> the same digits by the new writer."""
    height, width = images.shape[1:]
    broad = images.copy()
    padded = np.pad(images, ((0, 0), (1, 1), (1, 1)))
    for row in range(3):
        for column in range(3):
            np.maximum(broad, padded[:, row : row + height, column : column + width], out=broad)
    inked = (1 - PEN) * images + PEN * broad

    rows, columns = np.meshgrid(np.arange(height), np.arange(width), indexing="ij")
    source_rows = rows - SHIFT[0]
    source_columns = columns - SHIFT[1] + SLANT * (rows - (height - 1) / 2)
    out = np.zeros_like(inked)
    top, left = np.floor(source_rows).astype(int), np.floor(source_columns).astype(int)
    for down in (0, 1):
        for right in (0, 1):
            weight = (1 - abs(source_rows - top - down)) * (1 - abs(source_columns - left - right))
            r, c = top + down, left + right
            inside = (r >= 0) & (r < height) & (c >= 0) & (c < width)
            out += np.where(inside, weight, 0.0) * inked[:, r.clip(0, height - 1), c.clip(0, width - 1)]
    return PAGE + CONTRAST * out


def main() -> None:
    digits = np.load(sys.argv[1])
    images = redraw(digits["x"][FIRST_NEW:].astype(np.float64))
    pixels = np.round(images * (255 / 16)).clip(0, 255).astype(np.uint8)
    labels = digits["y"][FIRST_NEW:].astype(np.uint8)
    measure = np.arange(len(labels)) % 3 == 2
    np.savez_compressed(
        Path(__file__).with_name("digits_first_writers.npz"),
        train_x=np.round(digits["x"][:FIRST_NEW] * (255 / 16)).astype(np.uint8),
        train_y=digits["y"][:FIRST_NEW].astype(np.uint8),
    )
    np.savez_compressed(
        Path(__file__).with_name("digits_new_writer.npz"),
        train_x=pixels[~measure],
        train_y=labels[~measure],
        test_x=pixels[measure],
        test_y=labels[measure],
    )


if __name__ == "__main__":
    main()
