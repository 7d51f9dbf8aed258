"""Colour gradients: a few anchors, blended evenly to the eye, as tables of linear light.

Knows nothing of fractals.
"""

from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Light = NDArray[np.float32]  # RGB in linear light, as the last axis

STEPS: Final = 4096

# Björn Ottosson's OKLab: halfway between two colours also looks halfway.
_TO_LMS: Final = np.array(
    [
        [0.4122214708, 0.5363325363, 0.0514459929],
        [0.2119034982, 0.6806995451, 0.1073969566],
        [0.0883024619, 0.2817188376, 0.6299787005],
    ]
)
_TO_LAB: Final = np.array(
    [
        [0.2104542553, 0.7936177850, -0.0040720468],
        [1.9779984951, -2.4285922050, 0.4505937099],
        [0.0259040371, 0.7827717662, -0.8086757660],
    ]
)


@dataclass(frozen=True, slots=True)
class Palette:
    """A gradient over positions from 0 to 1, which repeats beyond. `inside` is the colour of what has no position.

    Anchors are `(position, "#rrggbb")`, ascending from 0; a closed palette runs back into its first colour.
    """

    anchors: tuple[tuple[float, str], ...]
    inside: str
    closed: bool = True
    _table: Light = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        anchors = (*self.anchors, (1.0, self.anchors[0][1])) if self.closed else self.anchors
        places = np.array([place for place, _ in anchors])
        labs = np.array([_oklab(linear(colour)) for _, colour in anchors])
        at = np.arange(STEPS) / STEPS
        blended = np.stack([np.interp(at, places, labs[:, channel]) for channel in range(3)], axis=1)
        table = np.concatenate([_from_oklab(blended), [linear(self.inside)]])
        object.__setattr__(self, "_table", np.clip(table, 0, 1).astype(np.float32))

    def light(self, position: Floats) -> Light:
        """The colours at these positions; NaN is inside."""
        inside = np.isnan(position)
        step = (np.where(inside, 0, position) * STEPS).astype(np.intp) % STEPS
        step[inside] = STEPS
        return self._table[step]


def linear(colour: str) -> Floats:
    """`#rrggbb` as linear light."""
    encoded = np.array([int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)])
    return np.where(encoded <= 0.04045, encoded / 12.92, ((encoded + 0.055) / 1.055) ** 2.4)


def encoded(light: Light) -> NDArray[np.uint8]:
    """Linear light as the bytes that a screen expects (sRGB)."""
    return _BYTES[(np.clip(light, 0, 1) * (_BYTES.size - 1)).astype(np.intp)]


def _oklab(light: Floats) -> Floats:
    lab: Floats = np.cbrt(light @ _TO_LMS.T) @ _TO_LAB.T
    return lab


def _from_oklab(lab: Floats) -> Floats:
    light: Floats = (lab @ np.linalg.inv(_TO_LAB).T) ** 3 @ np.linalg.inv(_TO_LMS).T
    return light


def _encoding() -> NDArray[np.uint8]:
    light = np.linspace(0, 1, 1 << 14)
    curve = np.where(light <= 0.0031308, light * 12.92, 1.055 * light ** (1 / 2.4) - 0.055)
    return np.round(curve * 255).astype(np.uint8)


_BYTES: Final = _encoding()
