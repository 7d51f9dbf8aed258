"""`manage.py workqueue_reap`: delete what the queues have kept for long enough."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from django_workqueue import inventory, metrics
from django_workqueue.discovery import autodiscover
from django_workqueue.management.asking import add_selection, told


class Command(BaseCommand):
    """Parses, reaps, prints."""

    help = (
        "Deletes what was completed longer ago than each queue's retention, and marks what is out of attempts. "
        "Workers do this by themselves."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        """The options."""
        add_selection(parser)

    def handle(self, *_: Any, **given: Any) -> None:
        """Reap queue by queue."""
        with told():
            autodiscover()
            for queue in inventory.queues(given["queues"], using=given["database"]):
                reaped = queue.reap()
                if reaped is None:
                    self.stdout.write(f"{queue.name}: left alone, since nobody has said how long it keeps what is done")
                else:
                    self.stdout.write(f"{queue.name}: {reaped:,} deleted")
            if not given["queues"]:
                for alias in inventory.aliases(given["database"]):
                    self.stdout.write(f"minute counters on {alias}: {metrics.prune_here(alias):,} deleted")
