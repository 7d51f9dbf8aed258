"""Our `JobQueue`: jobs with a payload."""

from __future__ import annotations

import django

django.setup()

from benchmarks import meter  # noqa: E402 - needs the apps
from benchmarks.contestants import ours  # noqa: E402
from benchmarks.project.tasks import KIND, jobs  # noqa: E402

prepare = ours.prepare


def work() -> None:
    """Run `workqueue_work jobs` until SIGTERM."""
    ours.work(jobs.name)


class Producer:
    """Enqueues from any number of threads, which share the process's group commit."""

    def __init__(self, concurrency: int) -> None:
        """Nothing to open."""

    def one(self, number: int) -> None:
        jobs.enqueue(KIND, meter.payload(number))

    def many(self, numbers: range) -> None:
        jobs.enqueue_many(KIND, map(meter.payload, numbers))

    def close(self) -> None:
        jobs.close()
