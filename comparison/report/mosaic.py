"""Many small square pictures as one image: a picture each would take matplotlib longer than all else of a report."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

GAP = 0.08  # of a picture's side


def mosaic(pictures: Mapping[tuple[int, int], np.ndarray], rows: int, columns: int) -> tuple[np.ndarray, int, int]:
    """Return all pictures in one image, what is between them transparent.

    Args:
        pictures: (row, column) → colours (height, width, 4) between 0 and 1, of any size.
        rows: how many there are.
        columns: how many there are.

    Returns:
        The image (height, width, 4), the side of each picture and the distance from one to the next, in pixels.
    """
    side = max((max(picture.shape[:2]) for picture in pictures.values()), default=1)
    step = side + max(1, round(GAP * side))
    image = np.zeros((rows * step, columns * step, 4))
    for (row, column), picture in pictures.items():
        y, x = (np.arange(side) * size // side for size in picture.shape[:2])  # the nearest of its own pixels
        image[row * step : row * step + side, column * step : column * step + side] = picture[y][:, x]
    return image, side, step
