"""The queue of tiles to render. A key that is asked for twice is in it once."""

from typing import Final

from django_workqueue import Queue

from .grid import TileKey

tiles: Final = Queue("tiles", key=TileKey)
