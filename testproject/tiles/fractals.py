"""How the layers are painted: for points of the plane, how high the landscape is and which colour it has there.

Knows nothing of tiles, PNG or queues; `renderer` asks it for one sheet of points at a time.
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import numpy as np
from numpy.typing import NDArray

from .palettes import Floats, Palette

Place = tuple[slice | int, slice | int]
Cell = tuple[tuple[Place, ...], Place]
Sampler = Callable[[Floats, Floats, int], tuple[Floats, Floats]]

BLOCK: Final = 8192
"""Points iterated together: their working arrays then stay in a core's own cache."""

SAME: Final = 2.0**-46
"""How near is back: rounding makes orbits tremble, so that few come back to the last bit."""

CELL: Final = 27
"""The grid of a sheet, in samples: a tile's 514 are 19 cells."""

FAR: Final = 2.0**32
"""The squared radius of escape; so far out, the smooth count has no visible steps left."""

STRIDE: Final = 4
"""How often orbits are looked at for escapes: from just under FAR, four more steps do not overflow a float64."""

WATCH: Final = 32
"""How often orbits are looked at for cycles. A power of two, so that every other cycle length comes round to it."""


@dataclass(frozen=True, slots=True)
class Painting:
    """How a layer is painted.

    `sample(re, im, limit)` answers the height, whose slope is lit, and the position in the palette (NaN:
    inside), both as floats in the shape of `re`.
    """

    palette: Palette
    sample: Sampler
    relief: float = 0.5


def mandelbrot(re: Floats, im: Floats, limit: int) -> tuple[Floats, Floats]:
    """z² + c from 0, with the two largest bulbs known by formula and others by their outlines."""
    offset = (re - 0.25) ** 2 + im**2
    cardioid = offset * (offset + re - 0.25) <= im**2 / 4
    disc = (re + 1) ** 2 + im**2 <= 1 / 16
    unknown = ~(cardioid | disc)
    count = np.full(re.shape, np.nan)

    def follow(points: NDArray[np.bool_]) -> None:
        zero = np.zeros(np.count_nonzero(points))
        count[points] = _escape(zero, zero, re[points], im[points], limit)

    lines, cells = _cells(re.shape)
    follow(unknown & lines)
    # The set has no holes: a cell whose outline is inside is inside, and those are the ones that take longest.
    for outline, inner in cells:
        if np.isnan(np.concatenate([count[at].ravel() for at in outline])).all():
            unknown[inner] = False
    follow(unknown & ~lines)
    return count, _pace(count) - 0.42


def julia(re: Floats, im: Floats, limit: int) -> tuple[Floats, Floats]:
    """z² + c for one c, from the point itself."""
    flat = re.ravel(), im.ravel()
    c = complex(-0.7885, 0.1462)
    count = _escape(*flat, np.full(re.size, c.real), np.full(re.size, c.imag), limit).reshape(re.shape)
    return count, _pace(count) - 0.2


def burning_ship(re: Floats, im: Floats, limit: int) -> tuple[Floats, Floats]:
    """(|Re z| + i |Im z|)² + c from 0."""
    zero = np.zeros(re.size)
    count = _escape(zero, zero, re.ravel(), im.ravel(), limit, folded=True).reshape(re.shape)
    return count, _pace(count) - 0.52


def newton(re: Floats, im: Floats, limit: int) -> tuple[Floats, Floats]:
    """Newton's method for z³ = 1: which of the three roots a point falls to, and how soon."""
    z = (re + 1j * im).ravel()
    roots = np.exp(2j * np.pi * np.arange(3) / 3)
    count = np.zeros(z.size)
    root = np.zeros(z.size, dtype=np.intp)
    index = np.arange(z.size)
    for step in range(min(limit, 200)):
        square = z * z
        square[square == 0] = 1e-300
        previous, z = z, z - (z - 1 / square) / 3
        gone = np.abs(z - previous) < 1e-3
        if gone.any():
            nearest = np.abs(z[gone, None] - roots).argmin(axis=1)
            before = np.maximum(np.abs(previous[gone] - roots[nearest]), 1e-300)
            count[index[gone]] = step + np.log2(np.log(1e-3) / np.log(before))
            root[index[gone]] = nearest
            z, index = z[~gone], index[~gone]
            if not z.size:
                break
    shade = 1 - np.exp(-np.maximum(count, 0) / 9)
    return count.reshape(re.shape), ((root + np.clip(shade, 0.001, 0.999)) / 3).reshape(re.shape)


def _cells(shape: tuple[int, ...]) -> tuple[NDArray[np.bool_], list[Cell]]:
    """A grid of lines over a sheet, as a mask; and the cells between them, each with its four sides and its inner."""
    downs, acrosses = ([*range(0, length - 1, CELL), length - 1] for length in shape)
    lines = np.zeros(shape, dtype=bool)
    lines[downs, :] = True
    lines[:, acrosses] = True
    cells: list[Cell] = []
    for top, bottom in pairwise(downs):
        for left, right in pairwise(acrosses):
            rows, columns = slice(top, bottom + 1), slice(left, right + 1)
            outline = (np.s_[top, columns], np.s_[bottom, columns], np.s_[rows, left], np.s_[rows, right])
            cells.append((outline, np.s_[top + 1 : bottom, left + 1 : right]))
    return lines, cells


def _pace(count: Floats) -> Floats:
    """From steps to trips round the palette: quick enough deep down, and not too quick near the boundary."""
    return 0.55 * np.maximum(count + 1, 0) ** 0.25


def _escape(zr: Floats, zi: Floats, cr: Floats, ci: Floats, limit: int, *, folded: bool = False) -> Floats:
    """The smooth number of steps after which each z is far away; NaN where `limit` steps do not tell."""
    count = np.full(zr.size, np.nan)
    for start in range(0, zr.size, BLOCK):
        block = slice(start, start + BLOCK)
        orbits = _Orbits(zr[block], zi[block], cr[block], ci[block])
        for step in range(STRIDE, limit + STRIDE, STRIDE):
            for _ in range(STRIDE):
                orbits.advance(folded=folded)
            orbits.note_escapes(step, count[block])
            if step % WATCH == 0:
                orbits.note_cycles(step)
            if not orbits.index.size:
                break
    return count


class _Orbits:
    """The orbits of one block of points, as arrays that shrink as their fates are known.

    `index` is where each belongs in the block; -1: its fate is known. Taking those out at each step would cost
    more than iterating them, so they stay, parked at 0, until they are a quarter of all.
    """

    def __init__(self, zr: Floats, zi: Floats, cr: Floats, ci: Floats) -> None:
        self.zr, self.zi, self.cr, self.ci = zr.copy(), zi.copy(), cr.copy(), ci.copy()
        self.rr, self.ii = zr * zr, zi * zi
        self.size = np.empty_like(self.rr)
        self.seen_r, self.seen_i = self.zr.copy(), self.zi.copy()
        self.index = np.arange(zr.size)

    def advance(self, *, folded: bool) -> None:
        """One step of z² + c; without temporary arrays, which would be most of the cost."""
        np.multiply(self.zr, self.zi, out=self.zi)
        if folded:
            np.abs(self.zi, out=self.zi)
        np.add(self.zi, self.zi, out=self.zi)
        np.add(self.zi, self.ci, out=self.zi)
        np.subtract(self.rr, self.ii, out=self.zr)
        np.add(self.zr, self.cr, out=self.zr)
        np.multiply(self.zr, self.zr, out=self.rr)
        np.multiply(self.zi, self.zi, out=self.ii)
        np.add(self.rr, self.ii, out=self.size)

    def note_escapes(self, step: int, count: Floats) -> None:
        """Write down which are far away."""
        if self.size.max() <= FAR:
            return
        gone = np.flatnonzero(self.size > FAR)
        count[self.index[gone]] = step + 1 - np.log2(np.log2(self.size[gone]) / 2)
        self._park(gone)

    def note_cycles(self, step: int) -> None:
        """Give up on those that are back where they have been: they never escape."""
        self._park(np.flatnonzero(np.abs(self.zr - self.seen_r) + np.abs(self.zi - self.seen_i) < SAME))
        if step & (step - 1) == 0:
            self.seen_r, self.seen_i = self.zr.copy(), self.zi.copy()

    def _park(self, known: NDArray[np.intp]) -> None:
        self.index[known] = -1
        for values in (self.zr, self.zi, self.cr, self.ci, self.rr, self.ii):
            values[known] = 0
        left = np.flatnonzero(self.index >= 0)
        if left.size * 4 > self.index.size * 3:
            return
        for name, values in vars(self).items():
            setattr(self, name, values[left])


PAINTINGS: Final[dict[str, Painting]] = {
    "mandelbrot": Painting(
        palette=Palette(
            (
                (0.0, "#04061a"),
                (0.2, "#0b1f55"),
                (0.4, "#1d5fb0"),
                (0.56, "#86cdf0"),
                (0.66, "#fdf6dc"),
                (0.76, "#f6b042"),
                (0.88, "#8f3420"),
            ),
            inside="#05060d",
        ),
        sample=mandelbrot,
    ),
    "julia": Painting(
        palette=Palette(
            (
                (0.0, "#16091f"),
                (0.2, "#5b1a5e"),
                (0.4, "#c73e5a"),
                (0.55, "#ffb27a"),
                (0.66, "#fff4d6"),
                (0.8, "#5fb3a8"),
                (0.92, "#123047"),
            ),
            inside="#0c0511",
        ),
        sample=julia,
    ),
    "burning-ship": Painting(
        palette=Palette(
            (
                (0.0, "#0d0a0b"),
                (0.2, "#4a120d"),
                (0.4, "#c8381a"),
                (0.55, "#ffb03a"),
                (0.66, "#fff7d1"),
                (0.82, "#6a7f86"),
                (0.93, "#1a2024"),
            ),
            inside="#060404",
        ),
        sample=burning_ship,
        relief=0.3,
    ),
    "newton": Painting(
        palette=Palette(
            (
                (0.0, "#f3e9d2"),
                (0.12, "#e08e45"),
                (0.3332, "#3a1208"),
                (0.3334, "#dff1ec"),
                (0.45, "#2f9c95"),
                (0.6666, "#06222c"),
                (0.6668, "#e9e4f5"),
                (0.79, "#6f5aa8"),
                (0.9999, "#170b33"),
            ),
            inside="#000000",
            closed=False,
        ),
        sample=newton,
        relief=0.35,
    ),
}
