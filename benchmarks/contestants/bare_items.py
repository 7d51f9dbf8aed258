"""The bare loop on the keyed queue's statements."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import django

django.setup()

from benchmarks.contestants import bare, ours  # noqa: E402 - needs the apps
from benchmarks.project.tasks import items as queue  # noqa: E402
from benchmarks.project.tasks import key  # noqa: E402
from django_workqueue.sql import items  # noqa: E402

prepare = ours.prepare

CLAIM = bare.text(items.CLAIM, queue.name)
COMPLETE = bare.text(items.COMPLETE_KEEP, queue.name)
ENQUEUE = bare.text(items.ENQUEUE, queue.name)


def work() -> None:
    """Claim and complete until SIGTERM."""
    bare.work(claim, COMPLETE, (0, ""))


def claim(connection: bare.Connection, parameters: Mapping[str, Any]) -> bare.Claimed | None:
    """One claim."""
    *rows, _own = bare.execute(connection, CLAIM, {**parameters, "max": 0, "ask": True}).fetchall()
    if not rows:
        return None
    keys = [row[0] for row in rows]
    completion = {"keys": keys, "token": parameters["token"]}
    return bare.Claimed(list(map(int, keys)), completion, max((row[3], row[0]) for row in rows))


class Producer(bare.Producer):
    """One statement a call."""

    def send(self, connection: bare.Connection, numbers: Sequence[int]) -> None:
        zeros = [0] * len(numbers)
        keys = list(map(key, numbers))
        bare.execute(connection, ENQUEUE, {"keys": keys, "priorities": zeros, "delays": zeros})
