"""The floor: the engine's own statements in a bare psycopg loop, one connection, nothing around them.

Claims 500, calls the meter for each, completes the 500, again. A producer's thread sends one statement a call on a
connection of its own: what enqueuing costs without group commit.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from typing import Any

import django
import psycopg

django.setup()

from benchmarks import meter  # noqa: E402 - needs the apps
from benchmarks.contestants import ours  # noqa: E402
from benchmarks.contestants.given import DSN  # noqa: E402
from benchmarks.project.tasks import key  # noqa: E402
from django_workqueue.managers import EVERYWHERE, new_token  # noqa: E402
from django_workqueue.sql import items  # noqa: E402

QUEUE = "items"
BATCH = 500
LEASE = 60_000_000  # µs

prepare = ours.prepare


def work() -> None:
    """Claim and complete until SIGTERM."""
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    with connect() as claims, connect() as completions:
        claims.execute("SET synchronous_commit = off")  # as the worker's claims
        while not stop.is_set():
            token = new_token()
            keys = list(claim(claims, token))
            if not keys:
                stop.wait(0.05)
                continue
            for text in keys:
                meter.started(int(text))
            completions.execute(COMPLETE, {"keys": keys, "token": token}, prepare=True)


def claim(connection: psycopg.Connection[Any], token: int) -> Iterator[str]:
    """The keys of one claim."""
    rows = connection.execute(CLAIM, {**LOOK, "limit": BATCH, "lease": LEASE, "token": token, "max": 0}, prepare=False)
    return (row[2] for row in rows if row[2] is not None)


def connect() -> psycopg.Connection[Any]:
    """A connection that commits each statement."""
    return psycopg.connect(DSN, autocommit=True)


CLAIM = items.CLAIM.of(QUEUE).encode()
COMPLETE = items.COMPLETE_KEEP.of(QUEUE).encode()
ENQUEUE = items.ENQUEUE.of(QUEUE).encode()
LOOK = dict(zip(("lo", "since", "after", "hi"), map(list, zip(*EVERYWHERE, strict=True)), strict=True))


class Producer:
    """One statement a call."""

    def __init__(self, concurrency: int) -> None:
        self.own = threading.local()
        self.connections: list[psycopg.Connection[Any]] = []

    def warm_up(self) -> None:
        self.own.connection = connect()
        self.connections.append(self.own.connection)

    def one(self, number: int) -> None:
        self.send([key(number)])

    def many(self, numbers: range) -> None:
        self.send([key(number) for number in numbers])

    def send(self, keys: list[str]) -> None:
        zeros = [0] * len(keys)
        self.own.connection.execute(ENQUEUE, {"keys": keys, "priorities": zeros, "delays": zeros}, prepare=True)

    def close(self) -> None:
        for connection in self.connections:
            connection.close()
