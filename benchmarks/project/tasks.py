"""The queues and their handlers, found by the worker as in any project."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from benchmarks import meter
from benchmarks.contestants.given import SETTINGS
from django_workqueue import Item, Job, JobQueue, Queue

OPTIONS: dict[str, Any] = {"retention": timedelta(0)} if SETTINGS.get("delete") else {}

items = Queue("items", **OPTIONS)


@items.handler
def work_item(item: Item[str]) -> None:
    """The keyed queue's no-op."""
    meter.started(int(item.key))


def key(number: int) -> str:
    """The key of a numbered item."""
    return f"{number:08d}"


KIND = "noop"
jobs = JobQueue("jobs", **OPTIONS)


@jobs.handler(KIND)
def work_job(job: Job) -> None:
    """The job queue's no-op."""
    meter.started(job.payload["number"])
