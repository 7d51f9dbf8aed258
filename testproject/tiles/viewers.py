"""What people look at, turned into work: the screen first and from its centre, then its margin, nothing else.

Knows nothing of HTTP. A look is cheap to repeat: the queue is a set, and a finished tile is not put into it.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from threading import Lock
from typing import Final

from django_workqueue import Entry, QueueStats

from .grid import TileKey
from .models import Tile
from .queues import tiles, without_those_in_hand

SCREEN: Final = 100
"""The priority of the tile in the centre of a screen."""

RINGS: Final = 20
"""How many priorities a screen uses. A claim looks at each priority in turn, so there had better be few."""

MARGIN: Final = 10
"""The priority of what is just off a screen: the next pan shows it."""

LOOK_AGAIN: Final = timedelta(milliseconds=100)


def look(screen: Sequence[TileKey], margin: Sequence[TileKey] = ()) -> set[TileKey]:
    """Ask for what a screen shows (the centre first) and its margin; which of that is finished already.

    A tile that comes closer to the centre than it was, or out of a margin, overtakes what waits there.
    """
    finished = Tile.objects.finished([*screen, *margin])
    entries = [
        *(Entry(tile, priority=_priority(rank)) for rank, tile in enumerate(screen) if tile not in finished),
        *(Entry(tile, priority=MARGIN) for tile in margin if tile not in finished),
    ]
    if entries:
        tiles.enqueue_many(entries)
        asked.add(len(entries))
    return finished


def leave(gone: Sequence[TileKey]) -> None:
    """Forget what no screen shows any more. Who else looks at one of them asks for it again at their next look.

    What a worker has in hand already is nearly there, and taking it away would not stop the worker.
    """
    if waiting := without_those_in_hand(gone):
        tiles.remove(*waiting)


def wait(wanted: Sequence[TileKey], patience: timedelta) -> set[TileKey]:
    """Which of the tiles are finished: as soon as one is, or when patience runs out."""
    deadline = time.monotonic() + patience.total_seconds()
    while not (finished := Tile.objects.finished(wanted)) and time.monotonic() < deadline:
        time.sleep(LOOK_AGAIN.total_seconds())
    return finished


def picture(tile: TileKey) -> bytes | None:
    """The tile's PNG; or None, and it is asked for."""
    png = Tile.objects.png(tile)
    if png is None:
        look([tile])
    return png


@dataclass(frozen=True, slots=True)
class Status:
    """What goes on. `asked` and `rendered` count since this web server started; `rate` is in tiles a second."""

    queue: QueueStats
    rate: float
    asked: int
    rendered: int


def status(over: timedelta = timedelta(seconds=5)) -> Status:
    """What goes on now, with the rate of the last moments."""
    return Status(
        queue=tiles.stats(exact=False),
        rate=Tile.objects.renders(within=over) / over.total_seconds(),
        asked=asked.count,
        rendered=Tile.objects.renders(within=asked.age),
    )


class Asked:
    """How often this process was asked for a tile that was not finished, and since when it counts."""

    def __init__(self) -> None:
        self.count = 0
        self._started = time.monotonic()
        self._counting = Lock()

    @property
    def age(self) -> timedelta:
        return timedelta(seconds=time.monotonic() - self._started)

    def add(self, times: int) -> None:
        with self._counting:
            self.count += times


asked: Final = Asked()


def _priority(rank: int) -> int:
    return SCREEN - min(rank // 4, RINGS - 1)
