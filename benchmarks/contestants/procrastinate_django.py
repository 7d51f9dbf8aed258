"""Procrastinate as a Django app: enqueues on Django's own connection, worked by `manage.py procrastinate worker`."""

from __future__ import annotations

from django.core.management import call_command

from benchmarks import meter
from benchmarks.contestants import django_peer
from benchmarks.contestants.given import SETTINGS

django_peer.configure("procrastinate.contrib.django")

from procrastinate.contrib.django import app  # noqa: E402 - needs the settings

prepare = django_peer.migrate


@app.task(name="noop")
async def noop(number: int, note: str) -> None:  # noqa: ARG001 - the payload has it
    """The job."""
    meter.started(number)


def work() -> None:
    """Run the command until SIGTERM, with the setup's `arguments`."""
    call_command("procrastinate", "worker", *SETTINGS.get("arguments", []))


class Producer(django_peer.Producer):
    """Defers on one connection a thread."""

    def one(self, number: int) -> None:
        noop.defer(**meter.payload(number))

    def many(self, numbers: range) -> None:
        noop.batch_defer(*[meter.payload(number) for number in numbers])
