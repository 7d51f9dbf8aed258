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
COMPLETE = bare.text(jobs.COMPLETE_KEEP_CLAIM, queue.name)
ENQUEUE = bare.text(jobs.ENQUEUE_INSIDE, queue.name)
WORKER = "bare"


def work() -> None:
    """Claim and complete until SIGTERM."""
    bare.work(claim, COMPLETE, (0, 0))


def claim(connection: bare.Connection, parameters: Mapping[str, Any]) -> bare.Claimed | None:
    """One claim, with its payloads read."""
    given = {"kinds": [KIND], "mark": False, "worker": WORKER, "lapsed": 10}
    *rows, _own = bare.execute(connection, CLAIM, {**parameters, **given}).fetchall()
    rows.sort(key=lambda row: row[0])
    if not rows:
        return None
    completion = {
        "ids": [row[0] for row in rows],
        "token": parameters["token"],
        "ran": [0] * len(rows),
        "worker": WORKER,
    }
    numbers = [json.loads(row[6])["number"] for row in rows]
    return bare.Claimed(numbers, completion, max((row[3], row[0]) for row in rows))


class Producer(bare.Producer):
    """One statement a call."""

    def send(self, connection: bare.Connection, numbers: Sequence[int]) -> None:
        count = len(numbers)
        bare.execute(
            connection,
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
        ).fetchall()
