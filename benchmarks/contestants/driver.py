"""What a contestant's process does: one verb of one adapter, told on the command line, answered in JSON.

    python -m benchmarks.contestants.driver ADAPTER VERB '{"setting": …}'

Owns the loops that are the same for everybody (whom to time, how to share the work among threads), so that only the
calls differ. An adapter is a module beside this one that has `prepare`, `work` and a class `Producer` with `one` and
`many`, sync or async. Node contestants have the same verbs in `node/driver.mjs`.
"""

from __future__ import annotations

import asyncio
import importlib
import inspect
import itertools
import json
import os
import random
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

CHUNK = 1000
WARM_UP = 0.5  # seconds


def main(adapter_name: str, verb: str, options: dict[str, Any]) -> None:
    """Do the verb and print its answer as the last line."""
    adapter = importlib.import_module(f"benchmarks.contestants.{adapter_name}")
    if verb == "prepare":
        adapter.prepare()
    elif verb == "work":
        wait_for_go()
        adapter.work()
    elif verb in PRODUCING:
        print(json.dumps(PRODUCING[verb](adapter, options)), flush=True)
    else:  # a verb of this adapter's own
        print(json.dumps(getattr(adapter, verb)(**options)), flush=True)


def wait_for_go() -> None:
    """Everything is imported: say so, and start when all processes of this run have said so."""
    directory = Path(os.environ["BENCH_METER"])
    (directory / f"{os.getpid()}.ready").touch()
    while not (directory / "go").exists():
        time.sleep(0.005)


def fill(adapter: Any, options: dict[str, Any]) -> dict[str, Any]:
    """Enqueue `count` jobs, numbered from 0, as fast as the contestant can."""
    if hasattr(adapter.Producer, "many"):
        chunks = iter([range(at, min(at + CHUNK, options["count"])) for at in range(0, options["count"], CHUNK)])
        return produce(adapter, "many", chunks, concurrency=1)
    return produce(adapter, "one", iter(range(options["count"])), concurrency=8)


def enqueue(adapter: Any, options: dict[str, Any]) -> dict[str, Any]:
    """Single enqueues for `seconds` from `concurrency` threads (or coroutines, where the API is async)."""
    return produce(adapter, "one", itertools.count(), options["concurrency"], options["seconds"])


def enqueue_many(adapter: Any, options: dict[str, Any]) -> dict[str, Any]:
    """Enqueues of a thousand jobs for `seconds` from one thread; `count` is jobs."""
    chunks = (range(at, at + CHUNK) for at in itertools.count(0, CHUNK))
    return produce(adapter, "many", chunks, 1, options["seconds"])


def pulse(adapter: Any, options: dict[str, Any]) -> dict[str, Any]:
    """`count` single enqueues, one each `interval` seconds or a little more; `sent` is when each call began."""
    sent: list[int] = []

    def beat() -> Iterator[int]:
        for number in range(options["count"]):
            # Jittered, or a poll of a multiple of the interval would always or never be hit.
            time.sleep(options["interval"] * random.uniform(0.75, 1.25))
            sent.append(time.monotonic_ns())
            yield number

    return {**produce(adapter, "one", beat(), concurrency=1), "sent": sent}


PRODUCING = {"fill": fill, "enqueue": enqueue, "enqueue_many": enqueue_many, "pulse": pulse}


def produce(
    adapter: Any, verb: str, arguments: Iterator[Any], concurrency: int, seconds: float | None = None
) -> dict[str, Any]:
    """Call the producer's `verb` with each argument from `concurrency` threads or coroutines.

    Given `seconds`, as long as that after a warm-up of `WARM_UP`; `rate` is of the time after it, in jobs a second.
    """
    shared = Shared(arguments, seconds)
    if inspect.iscoroutinefunction(getattr(adapter.Producer, verb)):
        asyncio.run(produce_in_coroutines(adapter, verb, shared, concurrency))
    else:
        produce_in_threads(adapter, verb, shared, concurrency)
    return {"count": shared.jobs, "rate": (shared.jobs - shared.jobs_before) / (shared.ended - shared.began)}


class Shared:
    """An iterator that many threads take from, with a clock: how many jobs it gave, and how fast."""

    def __init__(self, arguments: Iterator[Any], seconds: float | None) -> None:
        self.arguments = arguments
        self.lock = threading.Lock()  # guards all below
        self.jobs = 0
        self.jobs_before = 0  # given out when the warm-up ended
        self.began = self.ended = time.monotonic()
        self.warm_until = self.began + (WARM_UP if seconds else 0.0)
        self.ends = self.warm_until + seconds if seconds else float("inf")

    def __iter__(self) -> Shared:
        return self

    def __next__(self) -> Any:
        with self.lock:
            now = time.monotonic()
            if now > self.ends:
                raise StopIteration
            argument = next(self.arguments)
            if now < self.warm_until:
                self.jobs_before, self.began = self.jobs, now
            self.jobs += 1 if isinstance(argument, int) else len(argument)
            return argument

    def end(self) -> None:
        """Stop the clock: the last call has returned."""
        self.ended = time.monotonic()


def produce_in_threads(adapter: Any, verb: str, shared: Shared, concurrency: int) -> None:
    producer = adapter.Producer(concurrency)
    errors: list[Exception] = []

    def run() -> None:
        call = getattr(producer, verb)
        try:
            warm_up(producer)
            for argument in shared:
                call(argument)
        except Exception as error:  # noqa: BLE001 - raised below, where it is seen
            errors.append(error)

    threads = [threading.Thread(target=run, name=f"producer-{index}") for index in range(concurrency)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    shared.end()
    if errors:
        raise errors[0]
    producer.close()


def warm_up(producer: Any) -> None:
    """Open this thread's connection, where the producer has one for each."""
    if hasattr(producer, "warm_up"):
        producer.warm_up()


async def produce_in_coroutines(adapter: Any, verb: str, shared: Shared, concurrency: int) -> None:
    producer = adapter.Producer(concurrency)
    await producer.open()
    call = getattr(producer, verb)

    async def run() -> None:
        for argument in shared:
            await call(argument)

    await asyncio.gather(*(run() for _ in range(concurrency)))
    shared.end()
    await producer.close()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], json.loads(sys.argv[3]))
