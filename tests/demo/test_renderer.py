"""What a tile looks like."""

from io import BytesIO

import numpy as np
import pytest
from PIL import Image

from testproject.tiles import fractals
from testproject.tiles.demo.visitor import flaw
from testproject.tiles.fractals import PAINTINGS
from testproject.tiles.grid import MAX_ZOOM, TileKey
from testproject.tiles.layers import LAYERS, WIDTH
from testproject.tiles.renderer import render


def pixels(tile):
    return np.asarray(Image.open(BytesIO(render(tile)))).astype(int)


def tile_at(layer, at, zoom):
    """The tile that shows a point of the plane."""
    place = (at - LAYERS[layer].origin) / WIDTH * 2**zoom
    return TileKey(layer, zoom, int(place.real), int(place.imag))


def test_every_layer_has_a_painting():
    assert PAINTINGS.keys() == LAYERS.keys()


@pytest.mark.parametrize("layer", LAYERS)
def test_a_tile_is_a_png_of_256_pixels(layer):
    assert flaw(render(TileKey(layer, 1, 0, 1))) is None


@pytest.mark.parametrize("layer", LAYERS)
def test_the_same_key_gives_the_same_bytes(layer):
    assert render(TileKey(layer, 3, 4, 3)) == render(TileKey(layer, 3, 4, 3))


def test_tiles_differ():
    assert render(TileKey("mandelbrot", 3, 4, 3)) != render(TileKey("mandelbrot", 3, 3, 3))


@pytest.mark.parametrize("layer", LAYERS)
def test_neighbours_meet_without_a_seam(layer):
    left, right = pixels(TileKey(layer, 4, 7, 5)), pixels(TileKey(layer, 4, 8, 5))
    across_the_border = np.abs(left[:, -1] - right[:, 0]).mean()
    within = max(np.abs(left[:, -2] - left[:, -1]).mean(), np.abs(right[:, 0] - right[:, 1]).mean())
    assert across_the_border <= 2 * within + 1


def test_a_tile_shows_what_its_parent_shows_there():
    parent, child = pixels(TileKey("julia", 4, 8, 7)), pixels(TileKey("julia", 5, 17, 14))
    quarter = parent[:128, 128:]
    reduced = child.reshape(128, 2, 128, 2, 3).mean(axis=(1, 3))
    assert np.abs(quarter - reduced).mean() < 12


def test_the_inside_is_dark_and_the_outside_is_not():
    inside = pixels(tile_at("mandelbrot", -0.1 + 0.01j, 8))
    outside = pixels(tile_at("mandelbrot", 0.6 + 0.6j, 8))
    assert inside.max() < 20
    assert outside.mean() > 40


def test_the_deepest_zoom_still_has_detail_in_both_directions():
    deepest = pixels(tile_at("mandelbrot", -0.743643887037151 + 0.131825904205330j, MAX_ZOOM))
    rows = len({row.tobytes() for row in deepest})
    columns = len({column.tobytes() for column in deepest.swapaxes(0, 1)})
    assert (rows, columns) == (256, 256)


@pytest.mark.parametrize(
    ("png", "says"),
    [
        (b"", "not a PNG"),
        (b"<html>an error page</html>", "not a PNG"),
        (render(TileKey("newton", 0, 0, 0))[:-400], "not a PNG"),
    ],
    ids=["nothing", "a page", "cut short"],
)
def test_what_is_no_tile_is_told_from_one(png, says):
    assert says in flaw(png)


def test_a_picture_of_another_size_is_no_tile():
    file = BytesIO()
    Image.new("RGB", (16, 16)).save(file, "PNG")
    assert "16 by 16" in flaw(file.getvalue())


def test_filling_cells_by_their_outline_changes_no_point(monkeypatch):
    re, im = np.meshgrid(np.linspace(-0.2, 0, 100), np.linspace(0.6, 0.9, 130))
    quick, _ = fractals.mandelbrot(re, im, 300)
    monkeypatch.setattr(fractals, "_cells", lambda shape: (np.zeros(shape, dtype=bool), []))
    thorough, _ = fractals.mandelbrot(re, im, 300)
    assert 0.2 < np.isnan(thorough).mean() < 0.9
    assert np.array_equal(quick, thorough, equal_nan=True)
