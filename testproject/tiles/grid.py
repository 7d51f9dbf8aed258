"""The map's geometry: which tiles there are, and which of them a screen shows.

Knows nothing of fractals, queues or HTTP. The page's own copy of this arithmetic is `static/tiles/geometry.js`.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from math import floor, hypot
from typing import Final, Self

TILE: Final = 256
"""The side of a tile in pixels."""

MAX_ZOOM: Final = 40
"""Further in, float64 tells neighbouring samples apart less and less well, and the finest detail turns to noise."""


@dataclass(frozen=True, slots=True)
class TileKey:
    """One tile of one layer; at `zoom` the layer is 2**zoom tiles wide and high, (0, 0) is top left."""

    layer: str
    zoom: int
    x: int
    y: int

    @property
    def exists(self) -> bool:
        """Whether the coordinates are on the map. Says nothing about the layer."""
        side = 1 << self.zoom if 0 <= self.zoom <= MAX_ZOOM else 0
        return 0 <= self.x < side and 0 <= self.y < side


@dataclass(frozen=True, slots=True)
class Screen:
    """A window of `width` by `height` pixels on a layer, centred on (`x`, `y`), where 0 to 1 spans the layer."""

    layer: str
    zoom: int
    x: float
    y: float
    width: int
    height: int

    def tiles(self) -> list[TileKey]:
        """The tiles on screen, the one nearest to the centre first."""
        scale = 1 << self.zoom
        across, down = self.x * scale, self.y * scale
        half_width, half_height = self.width / TILE / 2, self.height / TILE / 2
        found = [
            TileKey(self.layer, self.zoom, column, row)
            for row in _span(down - half_height, down + half_height, scale)
            for column in _span(across - half_width, across + half_width, scale)
        ]
        return sorted(found, key=lambda tile: hypot(tile.x + 0.5 - across, tile.y + 0.5 - down))

    @classmethod
    def opening(cls, layer: str) -> Self:
        """What a large desktop window shows of a layer when the page opens: 8 by 6 tiles."""
        return cls(layer, zoom=4, x=0.5, y=0.5, width=8 * TILE, height=6 * TILE)


def _span(low: float, high: float, scale: int) -> Iterator[int]:
    first, last = max(floor(low), 0), min(floor(high - 1e-9), scale - 1)
    yield from range(first, last + 1)
