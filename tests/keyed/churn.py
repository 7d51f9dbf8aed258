"""A process that works a queue as hard as it can: `python -m tests.keyed.churn QUEUE SECONDS THREADS`.

Every verb, by hand, on a few hot keys that other processes work as well. Prints what went wrong, or nothing.
"""

import itertools
import random
import sys
import threading
import time
from datetime import timedelta

from tests.interleave import noting_deadlocks

KEYS = [f"{number:02}" for number in range(24)]


def churn(queue, seconds, seed):
    """Work the queue for so long."""
    dice = random.Random(seed)
    verbs = itertools.cycle(
        ["enqueue", "claim", "complete", "enqueue", "claim", "release", "extend", "remove", "by key"]
    )
    stop = time.monotonic() + seconds
    held = []
    while time.monotonic() < stop:
        verb = next(verbs)
        some = dice.sample(KEYS, dice.randrange(1, 12))
        if verb == "enqueue":
            queue.enqueue(*some, priority=dice.randrange(3))
        elif verb == "claim":
            held += queue.claim(limit=8, lease=timedelta(milliseconds=dice.choice([5, 2000])))
            dice.shuffle(held)
        elif verb == "complete":
            queue.complete(*held[:9])
            del held[:9]
        elif verb == "release":
            queue.release(*held[:9], error=dice.choice([None, "no"]))
            del held[:9]
        elif verb == "extend":
            queue.extend(*held[:3], lease=timedelta(seconds=1))
        elif verb == "remove":
            queue.remove(*some[:2])
        else:
            queue.complete(*some[:4])
            queue.release(*some[4:8])


def run_threads(queue, seconds, threads, seed):
    """Churn in so many threads; the errors, and the deadlocks."""
    from django.db import connections

    errors = []

    def run(number):
        try:
            churn(queue, seconds, seed + number)
        except Exception as error:
            errors.append(f"{type(error).__name__}: {error}")
        finally:
            connections.close_all()

    running = [threading.Thread(target=run, args=(number,), name=f"churn-{number}") for number in range(threads)]
    with noting_deadlocks() as met:
        for thread in running:
            thread.start()
        for thread in running:
            thread.join()
    return errors + met


def main(name, seconds, threads):
    """A process of its own."""
    import django

    django.setup()
    from django_workqueue import Queue

    queue = Queue(name, max_attempts=3, retention=timedelta(0))
    errors = run_threads(queue, float(seconds), int(threads), seed=100)
    queue.close()
    sys.stdout.write("\n".join(errors))


if __name__ == "__main__":
    main(*sys.argv[1:])
