"""The two queues: of tiles to render, where a key that is asked for twice is once, and of mails to send."""

import json
from collections.abc import Iterable
from dataclasses import astuple
from datetime import UTC, datetime
from typing import Final

from django_workqueue import JobQueue, Queue
from django_workqueue.models import WorkItem

from .grid import TileKey

tiles: Final = Queue("tiles", key=TileKey)
letters: Final = JobQueue("letters", max_attempts=4)

WELCOME: Final = "welcome"
"""The kind of job that sends a welcome mail; its payload: `{"to": address}`."""


def without_those_in_hand(keys: Iterable[TileKey]) -> list[TileKey]:
    """The keys, but for those that a worker has leased at the moment."""
    by_text = {json.dumps(astuple(key), separators=(",", ":"), ensure_ascii=False): key for key in keys}
    items = WorkItem.objects.filter(queue=tiles.name, key__in=by_text, lease_until__gt=datetime.fromtimestamp(0, UTC))
    in_hand = set(items.values_list("key", flat=True))
    return [key for text, key in by_text.items() if text not in in_hand]
