"""Renders one tile: samples its layer, lights the slopes, smooths the edges, encodes a PNG.

The same key always gives the same bytes. Knows nothing of queues or the database.
"""

from io import BytesIO
from typing import Final

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from .fractals import PAINTINGS
from .grid import TILE, TileKey
from .layers import LAYERS, WIDTH, Layer
from .palettes import Floats, Light, encoded

SAMPLES: Final = 2
"""Samples per pixel and axis: four, averaged in linear light, take the stairs out of every edge."""

SUN: Final = np.array([-0.6, -0.8])
"""Where the light comes from, right and down."""

PLAIN: Final = 8.0
"""The height from which on slopes catch most of the light."""


def render(tile: TileKey) -> bytes:
    """The tile as a PNG of 256 by 256 pixels."""
    painting = PAINTINGS[tile.layer]
    re, im = _points(LAYERS[tile.layer], tile)
    height, position = painting.sample(re, im, _limit(tile.zoom))
    light = painting.palette.light(position[1:-1, 1:-1])
    light = _lit(light, _facing(height) * np.float32(painting.relief))
    return _png(encoded(_averaged(light)))


def _points(layer: Layer, tile: TileKey) -> tuple[Floats, Floats]:
    """The samples' places on the plane, with one more on every side: slopes need neighbours, seams forgive none."""
    span = WIDTH / (1 << tile.zoom)
    step = span / (TILE * SAMPLES)
    offsets = np.arange(-1, TILE * SAMPLES + 1) + 0.5
    re = layer.origin.real + tile.x * span + offsets * step
    im = layer.origin.imag + tile.y * span + offsets * step
    across, down = np.meshgrid(re, im)
    return across, down


def _limit(zoom: int) -> int:
    """How many steps to wait for a point to escape. The finer the detail, the longer it takes to show."""
    return 256 + 96 * zoom


def _facing(height: Floats) -> Light:
    """How much each slope faces the sun, from -1 to 1. Plains far from the boundary, and the inside, hardly do."""
    down = height[2:, 1:-1] - height[:-2, 1:-1]
    across = height[1:-1, 2:] - height[1:-1, :-2]
    with np.errstate(invalid="ignore", divide="ignore"):
        facing = (across * SUN[0] + down * SUN[1]) / np.sqrt(across * across + down * down)
    hills = 1 - np.exp(np.maximum(height[1:-1, 1:-1], 0) / -PLAIN)
    faced: Light = np.nan_to_num(facing * hills, nan=0.0).astype(np.float32)
    return faced


def _lit(light: Light, facing: Light) -> Light:
    """Shadows take light away in proportion; the sunny side only nears white, so that no colour burns out."""
    shadow = 1 + np.minimum(facing, 0)[..., None]
    shine = np.maximum(facing, 0)[..., None] * np.float32(0.35)
    brightest = np.maximum(np.maximum(light[..., 0], light[..., 1]), light[..., 2])[..., None]
    lit: Light = light * shadow + (1 - light) * (shine * brightest)
    return lit


def _averaged(light: Light) -> Light:
    """One pixel for each SAMPLES by SAMPLES. Sums of slices: numpy's mean over two axes is eight times as slow."""
    offsets = range(SAMPLES)
    total: Light = sum(
        (light[down::SAMPLES, across::SAMPLES] for down in offsets for across in offsets),
        start=np.zeros((TILE, TILE, 3), dtype=np.float32),
    )
    return total / np.float32(SAMPLES**2)


def _png(pixels: NDArray[np.uint8]) -> bytes:
    file = BytesIO()
    Image.fromarray(pixels).save(file, "PNG", compress_level=6)
    return file.getvalue()
