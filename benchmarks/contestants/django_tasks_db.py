"""django-tasks-db: the database backend of `django.tasks`, worked by `manage.py db_worker`."""

from __future__ import annotations

from django.core.management import call_command

from benchmarks import meter
from benchmarks.contestants import django_peer
from benchmarks.contestants.given import SETTINGS

django_peer.configure("django_tasks_db", TASKS={"default": {"BACKEND": "django_tasks_db.DatabaseBackend"}})

from django.tasks import task  # noqa: E402 - needs the settings

prepare = django_peer.migrate


@task()
def noop(number: int, note: str) -> None:  # noqa: ARG001 - the payload has it
    """The job."""
    meter.started(number)


def work() -> None:
    """Run `db_worker` until SIGTERM, with the setup's `worker` options."""
    call_command("db_worker", **SETTINGS.get("worker", {}))


class Producer(django_peer.Producer):
    """Enqueues one by one: the backend has no bulk enqueue."""

    def one(self, number: int) -> None:
        noop.enqueue(**meter.payload(number))
