"""This package: what its two faces' adapters share."""

from __future__ import annotations

import django
from django.core.management import call_command

from benchmarks.contestants.given import SETTINGS


def prepare() -> None:
    """Create the tables."""
    django.setup()
    call_command("migrate", verbosity=0)


def work(queue: str) -> None:
    """Run the command as a project would, until SIGTERM."""
    django.setup()
    call_command("workqueue_work", queue, **SETTINGS.get("worker", {}))
