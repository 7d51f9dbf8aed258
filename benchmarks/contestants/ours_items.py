"""Our `Queue`: items are keys."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from typing import Any

import django
from django.core.management import call_command

django.setup()

from benchmarks.contestants import ours  # noqa: E402 - needs the apps
from benchmarks.project.tasks import items, key  # noqa: E402
from django_workqueue.floors import Look  # noqa: E402

prepare = ours.prepare


def work() -> None:
    """Run `workqueue_work items` until SIGTERM."""
    ours.work(items.name)


class Producer:
    """Enqueues from any number of threads, which share the process's group commit."""

    def __init__(self, concurrency: int) -> None:
        """Nothing to open."""

    def one(self, number: int) -> None:
        items.enqueue(key(number))

    def many(self, numbers: range) -> None:
        items.enqueue_many(map(key, numbers))

    def close(self) -> None:
        items.close()


# Verbs of our own, for what only concerns us


def claim_cost(seconds: float, churn: int) -> dict[str, Any]:
    """Milliseconds of claims of 100 in steady cycles, after `churn` items were worked at full speed."""
    numbers = itertools.count()
    for _ in range(churn // 500):
        turn(numbers, 500)
    looks = Looks()
    claims: list[tuple[float, bool]] = []
    began = time.monotonic()
    while (now := time.monotonic()) < began + seconds:
        items.enqueue_many(map(key, itertools.islice(numbers, 100)))
        looks.rescanned = False
        before = time.perf_counter()
        claimed = items.claim(100)
        claims.append((1000 * (time.perf_counter() - before), looks.rescanned))
        assert len(claimed) == 100
        items.complete(*claimed)
        time.sleep(max(0.0, now + PACE - time.monotonic()))
    costs = sorted(cost for cost, _ in claims)
    rescans = [cost for cost, rescanned in claims if rescanned]
    return {
        "p50": costs[len(costs) // 2],
        "p99": costs[int(len(costs) * 0.99)],
        "rescan": max(rescans, default=None),
        "rescans, % of time": 100 * sum(rescans) / (1000 * (time.monotonic() - began)),
    }


PACE = 0.015  # seconds from one claim to the next


class Looks:
    """Notes whether a claim looked from the beginning although that is dear."""

    def __init__(self) -> None:
        self.rescanned = False
        self.floors = items.source.floors
        self.learn = self.floors.learn
        self.floors.learn = self.note  # type: ignore[method-assign]

    def note(self, look: Look, *arguments: Any, **options: Any) -> None:
        self.learn(look, *arguments, **options)
        self.rescanned |= look.beginning and self.floors.dear


def turn(numbers: Iterator[int], size: int) -> None:
    """One full cycle."""
    items.enqueue_many(map(key, itertools.islice(numbers, size)))
    items.complete(*items.claim(size))


def cycle(seconds: float) -> dict[str, float]:
    """Items a second of full cycles of 500."""
    numbers = itertools.count()
    for _ in range(10):
        turn(numbers, 500)
    began, cycles = time.monotonic(), 0
    while time.monotonic() < began + seconds:
        turn(numbers, 500)
        cycles += 1
    return {"rate": 500 * cycles / (time.monotonic() - began)}


def partition(count: int) -> dict[str, int]:
    """Give our queue and others a partition each."""
    for index in range(count):
        name = items.name if index == 0 else f"other-{index}"
        call_command("workqueue_partition", "create", name, face="items", verbosity=0)
    return {"count": count}


def stats_cost(calls: int) -> dict[str, float]:
    """Milliseconds of `stats(exact=False)`."""
    costs = []
    for _ in range(calls):
        before = time.perf_counter()
        items.stats(exact=False)
        costs.append(1000 * (time.perf_counter() - before))
    costs.sort()
    return {"p50": costs[len(costs) // 2], "highest": costs[-1]}
