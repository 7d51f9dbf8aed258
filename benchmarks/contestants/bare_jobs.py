"""The bare loop on the job queue's statements."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import django

django.setup()

from benchmarks import meter  # noqa: E402 - needs the apps
from benchmarks.contestants import bare, ours  # noqa: E402
from benchmarks.project.tasks import KIND  # noqa: E402
from benchmarks.project.tasks import jobs as queue  # noqa: E402
from django_workqueue.sql import jobs  # noqa: E402

prepare = ours.prepare

CLAIM = bare.text(jobs.CLAIM, queue.name)
COMPLETE = bare.text(jobs.COMPLETE_KEEP, queue.name)
ENQUEUE = bare.text(jobs.ENQUEUE_INSIDE, queue.name)
WORKER = "bare"


def work() -> None:
    """Claim and complete until SIGTERM."""
    bare.work(claim, COMPLETE)


def claim(connection: bare.Connection, token: int) -> tuple[list[int], Mapping[str, Any]]:
    """One claim, with its payloads read."""
    given = {"token": token, "kinds": [KIND], "mark": False, "worker": WORKER, "lapsed": 10}
    rows = connection.execute(CLAIM, {**bare.CLAIM, "after": [0], **given}, prepare=False).fetchall()
    rows = sorted((row[3:] for row in rows if row[3] is not None), key=lambda row: row[0])
    ids = [row[0] for row in rows]
    numbers = [json.loads(row[6])["number"] for row in rows]
    count = len(ids)
    return numbers, {
        "ids": ids,
        "tokens": [token] * count,
        "ran": [0] * count,
        "worker": WORKER,
        "results": [None] * count,
    }


class Producer(bare.Producer):
    """One statement a call."""

    def send(self, connection: bare.Connection, numbers: Sequence[int]) -> None:
        count = len(numbers)
        connection.execute(
            ENQUEUE,
            {
                "kinds": [KIND] * count,
                "payloads": [json.dumps(meter.payload(number)) for number in numbers],
                "priorities": [0] * count,
                "maxima": [5] * count,
                "delays": [0] * count,
                "run_ats": [0] * count,
                "metadata": ["{}"] * count,
            },
            prepare=True,
        ).fetchall()
