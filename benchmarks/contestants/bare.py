"""The floor: the engine's own statements in a bare psycopg loop, and nothing around them.

Claims 500 on one connection, calls the meter for each, completes the 500 on another, again. A producer's thread sends
one statement a call on a connection of its own: what enqueuing costs without group commit. What the two kinds of
queue share stands here; the statements are in `bare_items` and `bare_jobs`.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import psycopg

from benchmarks import meter
from benchmarks.contestants.given import DSN
from django_workqueue.managers import EVERYWHERE, new_token
from django_workqueue.sql import Statement

BATCH = 500
LOOK = dict(zip(("lo", "since", "after", "hi"), map(list, zip(*EVERYWHERE, strict=True)), strict=True))
CLAIM = {"limit": BATCH, "lease": 60_000_000, **LOOK}

Connection = psycopg.Connection[Any]
Rows = Sequence[tuple[Any, ...]]
# Claim under a token: the numbers that the meter is told, and the parameters of their completion.
Claim = Callable[[Connection, int], tuple[list[int], Mapping[str, Any]]]


def work(claim: Claim, complete: bytes) -> None:
    """Claim and complete until SIGTERM."""
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    with connect() as claims, connect() as completions:
        claims.execute("SET synchronous_commit = off")  # as the worker's claims
        while not stop.is_set():
            numbers, done = claim(claims, new_token())
            if not numbers:
                stop.wait(0.05)
                continue
            for number in numbers:
                meter.started(number)
            completions.execute(complete, done, prepare=True)


def connect() -> Connection:
    """A connection that commits each statement."""
    return psycopg.connect(DSN, autocommit=True)


def text(statement: Statement, queue: str) -> bytes:
    """A statement for one queue, as psycopg takes it."""
    return statement.of(queue).encode()


class Producer:
    """One statement a call, on a connection for each thread."""

    def __init__(self, concurrency: int) -> None:
        self.own = threading.local()
        self.connections: list[Connection] = []

    def warm_up(self) -> None:
        self.own.connection = connect()
        self.connections.append(self.own.connection)

    def one(self, number: int) -> None:
        self.send(self.own.connection, [number])

    def many(self, numbers: range) -> None:
        self.send(self.own.connection, numbers)

    def send(self, connection: Connection, numbers: Sequence[int]) -> None:
        """Enqueue so many at once."""
        raise NotImplementedError

    def close(self) -> None:
        for connection in self.connections:
            connection.close()
