"""django-q2 with its ORM broker, worked by `manage.py qcluster`: one cluster, whose `workers` are processes."""

from __future__ import annotations

from django.core.management import call_command

from benchmarks import meter
from benchmarks.contestants import django_peer
from benchmarks.contestants.given import SETTINGS

django_peer.configure("django_q", Q_CLUSTER={"name": "bench", "orm": "default", **SETTINGS.get("cluster", {})})

from django_q.tasks import async_task  # noqa: E402 - needs the settings

prepare = django_peer.migrate


def noop(number: int, note: str) -> None:  # noqa: ARG001 - the payload has it
    """The job."""
    meter.started(number)


def work() -> None:
    """Run a cluster until SIGTERM."""
    call_command("qcluster", verbosity=0)


class Producer(django_peer.Producer):
    """Enqueues one by one: there is no bulk enqueue."""

    def one(self, number: int) -> None:
        async_task(f"{__name__}.noop", **meter.payload(number))
