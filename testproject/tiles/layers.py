"""The layers of the map: their names, where they lie on the plane, and places worth a visit.

How they are painted is `fractals`' business.
"""

from dataclasses import dataclass
from typing import Final

WIDTH: Final = 9.6
"""The side of the square of the plane that a layer spans: room around the fractals for the tallest phone."""


@dataclass(frozen=True, slots=True)
class Place:
    """A place worth a visit."""

    name: str
    at: complex
    zoom: float


@dataclass(frozen=True, slots=True)
class Layer:
    """A square of the plane around `centre`."""

    title: str
    centre: complex
    places: tuple[Place, ...] = ()

    @property
    def origin(self) -> complex:
        """The top left corner."""
        return self.centre - complex(WIDTH / 2, WIDTH / 2)


LAYERS: Final = {
    "mandelbrot": Layer(
        "Mandelbrot",
        centre=-0.7 + 0j,
        places=(
            Place("Seahorse Valley", -0.7453 + 0.1127j, 12),
            Place("Elephant Valley", 0.2755 + 0.0067j, 11),
            Place("Spiral galaxy", -0.743643887037 + 0.131825904205j, 19),
            Place("Twin islands", -1.7687788 - 0.0017389j, 15),
        ),
    ),
    "julia": Layer(
        "Julia",
        centre=0j,
        places=(Place("The great spiral", -0.185 - 0.24j, 9), Place("The curl", -0.54 - 0.016j, 9)),
    ),
    "burning-ship": Layer(
        "Burning Ship",
        centre=-0.4 - 0.45j,
        places=(Place("The armada", -1.755 - 0.028j, 9), Place("The flagship's mast", -1.862 - 0.003j, 12)),
    ),
    "newton": Layer(
        "Newton",
        centre=0j,
        places=(Place("Three borders", 0j, 7), Place("A string of pearls", -0.794 + 0j, 9)),
    ),
}
