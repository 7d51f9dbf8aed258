"""Threads with transactions that stay open while others touch the same keys, in every order.

What is enqueued in one is acknowledged by its commit; it was asked for just before that, as nobody can see it sooner.
Names that start with `undone-` are of what was rolled back.
"""

import argparse
import contextlib
import os
import random
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import django

from tests.faults.history import pen

SHARED = [f"shared-{each}" for each in range(20)]
ENTRY = "INSERT INTO faults_ledger (name) VALUES (%s)"

Names = dict[str, list[str]]  # by queue


class Undo(Exception):
    """Rolls back the transaction it is raised in."""


@contextlib.contextmanager
def transacted(alias: str, *, undone: bool) -> Iterator[Names]:
    """A transaction; the names that the block gives are acknowledged by its commit."""
    from django.db import transaction

    names: Names = {}
    began = 0.0
    try:
        with transaction.atomic(using=alias):
            yield names
            if undone:
                raise Undo
            began = time.monotonic()
    except Undo:
        return
    acked = time.monotonic()
    for queue, some in names.items():
        pen.note("ask", queue=queue, names=some, began=began, acked=acked)


def timed(call: Callable[..., Any], *arguments: Any) -> Any:
    """What the call returns; how long it took is told."""
    began = time.monotonic()
    answer = call(*arguments)
    sys.stdout.write(f"enqueued within {time.monotonic() - began:.3f}\n")
    return answer


def of_all_lengths(number: int, seconds: float) -> None:
    """Transactions one after the other; four in ten are rolled back."""
    chance, until, at = random.Random(number), time.monotonic() + seconds, 0
    while time.monotonic() < until:
        at += 1
        shared = chance.sample(SHARED, len(SHARED))
        pauses = [chance.random() * 0.02 for _ in shared]
        last = chance.random() * chance.choice([0.1, 0.1, seconds / 4])
        one(f"{number}-{at}", shared, [*pauses, last], undone=chance.random() < 0.4)


def lasting(number: int, seconds: float) -> None:
    """One for the whole time; half of the threads go through the keys upwards, half downwards."""
    shared = SHARED if number % 2 else SHARED[::-1]
    one(f"{number}-lasting", shared, [seconds / (len(shared) + 1)] * (len(shared) + 1), undone=False)


def one(name: str, shared: Sequence[str], pauses: Sequence[float], *, undone: bool) -> None:
    """The shared keys, with pauses; then a key, a job and an entry of its own, a savepoint that is undone."""
    from django.db import connection, transaction

    from tests.faults.works.tasks import jobs, keys, ledger

    mine = f"{'undone' if undone else 'kept'}-{name}"
    with transacted("default", undone=undone) as names:
        for key, pause in zip(shared, pauses, strict=False):
            timed(keys.enqueue, key)
            time.sleep(pause)
        timed(keys.enqueue, mine)
        timed(jobs.enqueue, "plain", mine)
        with contextlib.suppress(Undo), transaction.atomic():
            timed(keys.enqueue, f"undone-in-{name}")
            timed(jobs.enqueue, "plain", f"undone-in-{name}")
            raise Undo
        timed(ledger.enqueue, mine)
        with transaction.atomic(), connection.cursor() as cursor:
            cursor.execute(ENTRY, [mine])
        transaction.on_commit(lambda: afterwards(f"{'undone' if undone else 'after'}-{name}"))
        time.sleep(pauses[-1])
        names.update({keys.name: [*shared, mine], jobs.name: [mine], ledger.name: [mine]})


def afterwards(name: str) -> None:
    """From `on_commit`: the transaction is over, and this is none of it, though its entry is there."""
    from django.db import connection

    from tests.faults.producing import ask

    with connection.cursor() as cursor:
        cursor.execute(ENTRY, [name])
    assert ask("faults-ledger", [name])


def two_databases(number: int, seconds: float) -> None:
    """A transaction of one inside one of the other, in both orders; each database's queue goes with its own."""
    from tests.faults.works.tasks import keys, second

    chance, until, at = random.Random(number), time.monotonic() + seconds, 0
    queues = [("default", keys), ("second", second)]
    while time.monotonic() < until:
        at += 1
        (outer, of_outer), (inner, of_inner) = chance.sample(queues, 2)
        outer_undone, inner_undone = chance.random() < 0.4, chance.random() < 0.4
        with transacted(outer, undone=outer_undone) as names:
            names[of_outer.name] = mine = [*chance.sample(SHARED, 20), name_of(number, at, undone=outer_undone)]
            timed(of_outer.enqueue, *mine)
            began, beside = time.monotonic(), f"beside-{number}-{at}"
            timed(of_inner.enqueue, beside)  # which is in no transaction of its database
            pen.note("ask", queue=of_inner.name, names=[beside], began=began, acked=time.monotonic())
            with transacted(inner, undone=inner_undone) as inner_names:
                theirs = [*chance.sample(SHARED, 20), name_of(number, at, undone=inner_undone)]
                inner_names[of_inner.name] = theirs
                timed(of_inner.enqueue, *theirs)
                time.sleep(chance.random() * 0.2)
            time.sleep(chance.random() * 0.2)


def name_of(number: int, at: int, *, undone: bool) -> str:
    return f"{'undone' if undone else 'kept'}-{number}-{at}"


def alone(work: Callable[[int, float], None], number: int, seconds: float) -> None:
    """A thread's whole life; one that fails takes the process with it."""
    from django.db import connections

    try:
        work(number, seconds)
    except BaseException:
        sys.excepthook(*sys.exc_info())  # type: ignore[arg-type]
        sys.stderr.flush()
        os._exit(1)
    connections.close_all()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("seconds", type=float)
    for work in (of_all_lengths, lasting, two_databases):
        parser.add_argument(f"--{work.__name__}", type=int, default=0, help="threads")
    options = parser.parse_args()
    django.setup()
    base, threads = os.getpid() * 100, []
    for work in (of_all_lengths, lasting, two_databases):
        for _ in range(getattr(options, work.__name__)):
            number = base + len(threads)
            threads.append(threading.Thread(target=alone, args=(work, number, options.seconds), name=f"{number}"))
            threads[-1].start()
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    main()
