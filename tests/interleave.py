"""What tests of interleavings need: to wait for something to become true, to see who waits for a lock, to run aside.

The fixtures of the same names in conftest.py hand these out.
"""

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any

import psycopg
from django.db import connections
from psycopg.errors import DeadlockDetected


def wait_until(predicate: Callable[[], object], deadline: float = 10.0, *, message: str = "") -> Any:
    """Return the predicate's first true value; fail when it has none within `deadline` seconds."""
    end = time.monotonic() + deadline
    pause = 0.001
    while not (value := predicate()):
        if time.monotonic() > end:
            raise AssertionError(f"not within {deadline:g} s: {message or predicate}")
        time.sleep(pause)
        pause = min(pause * 2, 0.05)
    return value


def waits_for_lock(observer: psycopg.Connection[Any], pid: int) -> bool:
    """Whether the server process `pid` is held up by another's lock."""
    row = observer.execute("SELECT cardinality(pg_blocking_pids(%s)) > 0", [pid]).fetchone()
    return bool(row and row[0])


def blocked_pids(observer: psycopg.Connection[Any]) -> list[int]:
    """The server processes of this database that are held up by another's lock."""
    rows = observer.execute(
        "SELECT pid FROM pg_stat_activity"
        " WHERE datname = current_database() AND cardinality(pg_blocking_pids(pid)) > 0 ORDER BY pid"
    )
    return [pid for (pid,) in rows]


def aside(work: Callable[..., Any], *args: Any, **kwargs: Any) -> Future[Any]:
    """Run `work` in a thread of its own; its Django connections are closed when it is done."""
    future: Future[Any] = Future()

    def run() -> None:
        try:
            result = work(*args, **kwargs)
        except BaseException as error:
            future.set_exception(error)
        else:
            future.set_result(result)
        finally:
            connections.close_all()

    threading.Thread(target=run, name=f"aside-{getattr(work, '__name__', 'work')}", daemon=True).start()
    return future


@contextmanager
def noting_deadlocks() -> Iterator[list[str]]:
    """What the server says of each deadlock that a session of this process loses, also of those that are tried again.

    (The server counts them, too, but tells of it up to ten seconds later.)
    """
    met: list[str] = []
    original = DeadlockDetected.__init__

    def note(error: DeadlockDetected, *args: Any, **kwargs: Any) -> None:
        original(error, *args, **kwargs)
        met.append(f"{error}")

    DeadlockDetected.__init__ = note  # type: ignore[method-assign]
    try:
        yield met
    finally:
        DeadlockDetected.__init__ = original  # type: ignore[method-assign]
