"""What the workers do: render the tile that a key names, send the mail that a job asks for."""

from datetime import timedelta
from time import perf_counter

from django_workqueue import Item, Job, PermanentError, exponential

from . import activity, postman
from .activity import Event, What
from .grid import TileKey
from .layers import LAYERS
from .models import Tile
from .queues import WELCOME, letters, tiles
from .renderer import render


@tiles.handler(concurrency=1)  # a tile keeps a core busy; more at once would only delay the ones in the centre
def render_tile(item: Item[TileKey]) -> None:
    """Render the tile, unless that has been done: it may have been asked for again while it was being rendered."""
    if not item.key.exists or item.key.layer not in LAYERS:
        raise PermanentError(f"there is no such tile: {item.key}")
    if Tile.objects.finished([item.key]):
        return
    started = perf_counter()
    png = render(item.key)
    Tile.objects.store(item.key, png, took=timedelta(seconds=perf_counter() - started))
    activity.tell(Event(What.RENDERED, f"{item.key.layer} {item.key.zoom}/{item.key.x}/{item.key.y}"))


@letters.handler(
    WELCOME,
    timeout=timedelta(seconds=30),
    backoff=exponential(timedelta(seconds=1), ceiling=timedelta(seconds=4)),  # short enough to watch
)
def send_welcome(job: Job) -> None:
    """Send the mail, and let whoever looks at the activity page see how it goes."""
    with activity.reported(job):
        postman.welcome(job.payload["to"], attempt=job.attempts)
