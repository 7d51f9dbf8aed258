"""A lane that writes nowhere: it records what it is given, holds the write, or fails, as a test wants it."""

import threading
from collections.abc import Callable, Sequence
from typing import Any

from django_workqueue.batcher import Batcher, Disposition


class Gone(Exception):
    """The server is away."""


class Conflict(Exception):
    """A deadlock."""


class Locked(Exception):
    """Somebody has locked the table."""


class Refused(Exception):
    """An entry that the server does not like."""


class Recorder:
    """A lane. `batches` holds what was written, in order; `attempts` also what failed.

    `fails` is asked before each write for an error to raise, or None. `tally`, if shared by several lanes, records
    the lane of each write and finds two in flight at once.
    """

    def __init__(
        self,
        name: str = "tiles",
        *,
        fails: Callable[[list[Any]], BaseException | None] = lambda entries: None,
        results: Callable[[list[Any]], Sequence[Any] | None] = lambda entries: None,
        tally: "Tally | None" = None,
    ) -> None:
        self.name = name
        self.fails = fails
        self.results = results
        self.tally = tally or Tally()
        self.attempts: list[list[Any]] = []
        self.batches: list[list[Any]] = []
        self.afters = 0
        self._gate = threading.Event()
        self._gate.set()
        self._in_flight = threading.Event()

    def write(self, entries: list[Any]) -> Sequence[Any] | None:
        with self.tally.write(self.name):
            self.attempts.append(entries)
            self._in_flight.set()
            assert self._gate.wait(30), "nobody let the write go"
            self._in_flight.clear()
            error = self.fails(entries)
            try:
                if error is not None:
                    raise error
            finally:
                del error  # or its traceback would hold it
            self.batches.append(entries)
            return self.results(entries)

    def after(self, entries: list[Any]) -> None:
        self.afters += 1

    def hold(self) -> None:
        """Writes stop half-way from now on."""
        self._gate.clear()

    def let_go(self) -> None:
        """They go on."""
        self._gate.set()

    def wait_for_write(self) -> None:
        """Until one has stopped half-way."""
        assert self._in_flight.wait(10), "no write began"

    @property
    def written(self) -> list[Any]:
        """Every entry, in the order in which they landed."""
        return [entry for batch in self.batches for entry in batch]


class Tally:
    """The writes of several lanes."""

    def __init__(self) -> None:
        self.lanes: list[str] = []
        self.threads: set[str] = set()
        self.at_once = 0
        self.most_at_once = 0

    def write(self, lane: str) -> "Tally":
        self.lanes.append(lane)
        self.threads.add(threading.current_thread().name)
        return self

    def __enter__(self) -> None:
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)

    def __exit__(self, *raised: object) -> None:
        self.at_once -= 1


class Connection:
    """What the batcher is told to do to it."""

    def __init__(self) -> None:
        self.dropped = 0
        self.forgotten = 0

    def drop(self) -> None:
        self.dropped += 1

    def forget(self) -> None:
        self.forgotten += 1


def classify(error: BaseException) -> Disposition:
    return {
        Gone: Disposition.RECONNECT,
        Conflict: Disposition.RETRY,
        Locked: Disposition.WAIT,
        Refused: Disposition.REFUSE,
    }.get(type(error), Disposition.STRANGE)


def new_batcher(
    connection: Connection | None = None, *, batch_max: int | Callable[[], int] = 100, **options: Any
) -> Batcher:
    """A batcher with everything filled in."""
    connection = connection or Connection()
    defaults = {
        "name": "test-batcher",
        "batch_max": batch_max if callable(batch_max) else lambda: batch_max,
        "classify": classify,
        "disconnect": connection.drop,
        "forget": connection.forget,
        "idle_after": lambda: 30.0,
    }
    return Batcher(**(defaults | options))
