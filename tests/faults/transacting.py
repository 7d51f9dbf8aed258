"""Threads with transactions that stay open while others touch the same keys, in every order."""

import random
import sys
import threading
import time

import django


def transact(number: int, seconds: float) -> None:
    from django.db import connections, transaction

    from tests.faults.history import pen
    from tests.faults.works.tasks import keys

    chance, until, at = random.Random(number), time.monotonic() + seconds, 0
    while time.monotonic() < until:
        at += 1
        shared = [f"shared-{each}" for each in range(20)]
        chance.shuffle(shared)
        kept, dropped, undone = (f"{what}-{number}-{at}" for what in ("kept", "dropped", "undone"))
        began, worst, fails = time.monotonic(), 0.0, chance.random() < 0.4
        try:
            with transaction.atomic():
                for key in [*shared, undone if fails else kept]:
                    worst = max(worst, enqueue(keys, key))
                    time.sleep(chance.random() * 0.02)
                try:
                    with transaction.atomic():
                        worst = max(worst, enqueue(keys, dropped))
                        raise LookupError
                except LookupError:
                    pass
                time.sleep(chance.random() * chance.choice([0.1, 0.1, 3]))
                if fails:
                    raise LookupError
        except LookupError:
            pass
        else:
            acked = time.monotonic()
            pen.note("ask", queue=keys.name, names=[*shared, kept], began=began, acked=acked)
        sys.stdout.write(f"worst {worst:.3f}\n")
    connections.close_all()


def enqueue(queue: object, key: str) -> float:
    began = time.monotonic()
    queue.enqueue(key)  # type: ignore[attr-defined]
    return time.monotonic() - began


def main() -> None:
    django.setup()
    threads = [
        threading.Thread(target=transact, args=(number, float(sys.argv[1])), name=f"transact-{number}")
        for number in range(12)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    main()
