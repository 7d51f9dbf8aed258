"""When each job started, written where the harness reads it. Runs inside every Python contestant.

The only thing a benchmark handler does is call `started`. Knows nothing of any queue. The file of a process holds
64-bit integers: for each job number the monotonic nanosecond of its last start, and last of all the number of starts.
Node contestants write the same format (`node/meter.mjs`).
"""

from __future__ import annotations

import itertools
import mmap
import os
import threading
import time
from pathlib import Path
from typing import Any

DIRECTORY = "BENCH_METER"
SIZE = "BENCH_METER_SIZE"


class Meter:
    """One process's file, made at the first start."""

    def __init__(self) -> None:
        self.forget()
        os.register_at_fork(after_in_child=self.forget)

    def forget(self) -> None:
        """Begin anew, in a child with a file of its own."""
        self.lock = threading.Lock()  # guards the opening
        self.size = 0
        self.slots: memoryview | None = None
        self.runs = itertools.count(1)

    def started(self, number: int) -> None:
        """Note that job `number` starts now. Numbers past the file's size are counted only."""
        slots = self.slots if self.slots is not None else self.open()
        if number < self.size:
            slots[number] = time.monotonic_ns()
        slots[self.size] = next(self.runs)

    def open(self) -> memoryview:
        """Map this process's file."""
        with self.lock:
            if self.slots is None:
                self.size = int(os.environ[SIZE])
                with (Path(os.environ[DIRECTORY]) / f"{os.getpid()}.starts").open("w+b") as file:
                    file.truncate(8 * (self.size + 1))
                    self.slots = memoryview(mmap.mmap(file.fileno(), 0)).cast("q")
            return self.slots


started = Meter().started


def payload(number: int) -> dict[str, Any]:
    """The payload of every job: about 50 bytes of JSON."""
    return {"number": number, "note": "some words to fill it"}
