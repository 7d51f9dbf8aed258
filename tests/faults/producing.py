"""A producer process: enqueues so many names from several threads, and notes what was acknowledged.

What was refused, or not answered in time, is asked for again until it is acknowledged, as a careful caller would.
"""

import argparse
import os
import random
import sys
import threading
import time
from collections.abc import Sequence

import django

from tests.faults.history import rest

BATCH = 20  # at most, names of one enqueue
PAUSE = 0.2  # seconds until a refused enqueue is tried again


def produce(queue: str, names: Sequence[str], *, chance: random.Random, rate: float | None, atomic: bool) -> None:
    """Enqueue the names in batches of random sizes, at most `rate` a second."""
    from django.db import connections

    at, begun = 0, time.monotonic()
    while at < len(names):
        size = chance.randint(1, BATCH)
        some = names[at : at + size]
        at += size
        while not ask(queue, some, atomic=atomic and chance.random() < 0.3):
            connections.close_all()
            rest(PAUSE)
        if rate is not None and (ahead := at / rate - (time.monotonic() - begun)) > 0:
            rest(ahead)
    connections.close_all()


def ask(queue: str, names: Sequence[str], *, atomic: bool = False) -> bool:
    """One enqueue; whether it was acknowledged."""
    from contextlib import nullcontext

    from django.db import transaction

    from tests.faults.history import pen
    from tests.faults.works import tasks

    began, ids, kind = time.monotonic(), None, random.choice(("plain", "async"))
    try:
        with transaction.atomic() if atomic else nullcontext():
            if queue == tasks.jobs.name:
                ids = tasks.jobs.enqueue_many(kind, names)
            elif queue == "faults-tasks":
                from tests.faults.works.renamed import current

                ids = [int(current.enqueue(name).id) for name in names]
            else:
                tasks.keyed[queue].enqueue(*names)
    except Exception as error:
        told = f"{type(error).__name__}: {error}".split("\n")[0]
        pen.note("ask", queue=queue, names=names, began=began, acked=None, error=told)
        return False
    pen.note("ask", queue=queue, names=names, began=began, acked=time.monotonic(), jobs=ids)
    return True


def fail(error: threading.ExceptHookArgs) -> None:
    """A thread that dies would leave part of the load out."""
    sys.excepthook(error.exc_type, error.exc_value or error.exc_type(), error.exc_traceback)
    os._exit(1)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("queues", nargs="+")
    parser.add_argument("--count", type=int, default=1000, help="names for each queue")
    parser.add_argument("--names", type=int, help="so many different ones; each is asked for again and again")
    parser.add_argument("--threads", type=int, default=2, help="for each queue")
    parser.add_argument("--rate", type=float, help="names a second for each thread")
    parser.add_argument("--atomic", action="store_true", help="three in ten inside atomic()")
    parser.add_argument("--tag", default="n")
    options = parser.parse_args()
    threading.excepthook = fail
    django.setup()
    threads = []
    for queue in options.queues:
        for thread in range(options.threads):
            numbers = range(thread, options.count, options.threads)
            names = [f"{options.tag}-{number % (options.names or options.count)}" for number in numbers]
            chance = random.Random(f"{queue} {thread}")
            how = {"chance": chance, "rate": options.rate, "atomic": options.atomic}
            threads.append(threading.Thread(target=produce, args=(queue, names), kwargs=how, name=f"producer-{thread}"))
            threads[-1].start()
    for each in threads:
        each.join()


if __name__ == "__main__":
    main()
