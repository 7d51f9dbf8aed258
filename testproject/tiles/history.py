"""What has happened lately, and how often, from the tables of jobs and tiles.

What happens from now on is `activity`'s to tell.
"""

from collections.abc import Iterator
from datetime import datetime
from typing import Final

from django.db.models import Count, Q

from django_workqueue import JobStatus
from django_workqueue.models import WorkJob

from .activity import Event, What, described
from .models import Tile
from .queues import letters

JOBS: Final = 20
EVENTS: Final = 50


def recent() -> list[Event]:
    """What happened to the last jobs, the newest first."""
    jobs = WorkJob.objects.filter(queue=letters.name).order_by("-id")[:JOBS]
    events = [event for job in jobs for event in _of(job)]
    return sorted(events, key=lambda event: event.at, reverse=True)[:EVENTS]


def counts() -> dict[What, int]:
    """How often it happened. Of what is told and not counted here, each page sees only what comes."""
    jobs = WorkJob.objects.filter(queue=letters.name).aggregate(
        enqueued=Count("id"), sent=Count("id", Q(outcome="completed")), dead=Count("id", Q(outcome="dead"))
    )
    return {
        What.ENQUEUED: jobs["enqueued"],
        What.SENT: jobs["sent"],
        What.DEAD: jobs["dead"],
        What.RENDERED: Tile.objects.renders(),
    }


def _of(job: WorkJob) -> Iterator[Event]:
    to = job.payload["to"] if isinstance(job.payload, dict) else ""
    yield Event(What.ENQUEUED, to, job.id, at=job.enqueued_at)
    dead = job.status == JobStatus.DEAD
    for error in job.errors:
        attempt, told = error["attempt"], described(error["type"], error["message"])
        if error["started"]:
            yield Event(What.STARTED, to, job.id, attempt, at=datetime.fromisoformat(error["started"]))
        last = dead and error is job.errors[-1]
        yield Event(What.DEAD if last else What.FAILED, to, job.id, attempt, told, datetime.fromisoformat(error["at"]))
    if job.status == JobStatus.COMPLETED and job.finished_at:
        if job.started_at:
            yield Event(What.STARTED, to, job.id, job.attempts, at=job.started_at)
        yield Event(What.SENT, to, job.id, job.attempts, at=job.finished_at)
