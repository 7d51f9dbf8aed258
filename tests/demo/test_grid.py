"""Which tiles there are, and which of them a screen shows."""

import pytest

from testproject.tiles.grid import MAX_ZOOM, Screen, TileKey


@pytest.mark.parametrize(("zoom", "x", "y"), [(0, 0, 0), (3, 7, 7), (MAX_ZOOM, 2**MAX_ZOOM - 1, 0)])
def test_a_tile_on_the_map_exists(zoom, x, y):
    assert TileKey("julia", zoom, x, y).exists


@pytest.mark.parametrize(
    ("zoom", "x", "y"), [(0, 1, 0), (3, 8, 0), (3, 0, 8), (3, -1, 0), (-1, 0, 0), (MAX_ZOOM + 1, 0, 0), (10**9, 0, 0)]
)
def test_a_tile_off_the_map_does_not_exist(zoom, x, y):
    assert not TileKey("julia", zoom, x, y).exists


def test_the_opening_screen_is_48_tiles():
    tiles = Screen.opening("mandelbrot").tiles()
    assert len(set(tiles)) == len(tiles) == 48
    assert {tile.x for tile in tiles} == set(range(4, 12))
    assert {tile.y for tile in tiles} == set(range(5, 11))


def test_a_screen_names_its_centre_first():
    tiles = Screen("julia", zoom=5, x=0.4, y=0.6, width=1000, height=700).tiles()
    assert (tiles[0].x, tiles[0].y) == (int(0.4 * 32), int(0.6 * 32))
    distances = [(tile.x + 0.5 - 0.4 * 32) ** 2 + (tile.y + 0.5 - 0.6 * 32) ** 2 for tile in tiles]
    assert distances == sorted(distances)


def test_a_screen_at_the_rim_shows_no_tiles_beyond_it():
    tiles = Screen("julia", zoom=2, x=0, y=1, width=600, height=600).tiles()
    assert tiles
    assert all(tile.exists for tile in tiles)
