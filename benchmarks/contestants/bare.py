"""The floor: the engine's own statements in a bare psycopg loop, and nothing around them.

Claims 500 on one connection from where the last claim ended, calls the meter for each, completes the 500 on another,
again. A producer's thread sends one statement a call on a connection of its own: what enqueuing costs without group
commit. Sessions are set up, and values sent, as the package does it. What the two kinds of queue share stands here; the
statements are in `bare_items` and `bare_jobs`.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import psycopg

from benchmarks import meter
from benchmarks.contestants.given import DSN
from django_workqueue.floors import HIGHEST_RANK, LOWEST_RANK
from django_workqueue.managers import new_token, sent
from django_workqueue.sql import Statement

BATCH = 500
LEASE = 60_000_000  # µs

Connection = psycopg.Connection[Any]
Position = tuple[int, Any]  # available µs, and key or id


@dataclass(frozen=True)
class Claimed:
    """One claim: what the meter is told, the parameters of its completion, and where the next begins."""

    numbers: list[int]
    completion: Mapping[str, Any]
    position: Position


# What to claim with: a connection, and most of the statement's parameters.
Claim = Callable[[Connection, Mapping[str, Any]], Claimed | None]


def work(claim: Claim, complete: bytes, start: Position) -> None:
    """Claim and complete until SIGTERM."""
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    position = start
    with connect() as claims, connect() as completions:
        claims.execute("SET synchronous_commit = off")
        claims.execute("SET enable_sort = off")
        while not stop.is_set():
            claimed = claim(claims, parameters(start, position))
            if claimed is None:
                stop.wait(0.05)
                continue
            for number in claimed.numbers:
                meter.started(number)
            execute(completions, complete, claimed.completion)
            position = claimed.position


def parameters(start: Position, position: Position) -> dict[str, Any]:
    """Claim 500 under a new token: of priority 0 behind a position, of the others from the start."""
    return {
        "limit": BATCH,
        "lease": LEASE,
        "token": new_token(),
        "lo": [LOWEST_RANK, 0, 1],
        "since": [start[0], position[0], start[0]],
        "after": [start[1], position[1], start[1]],
        "hi": [-1, 0, HIGHEST_RANK],
    }


def connect() -> Connection:
    """A connection that commits each statement."""
    connection = psycopg.connect(DSN, autocommit=True)
    connection.execute("SET enable_seqscan = off")
    connection.execute("SET jit = off")
    return connection


def execute(connection: Connection, statement: bytes, parameters: Mapping[str, Any]) -> psycopg.Cursor[Any]:
    """Run a statement, prepared."""
    return connection.execute(statement, {name: sent(value) for name, value in parameters.items()}, prepare=True)


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
