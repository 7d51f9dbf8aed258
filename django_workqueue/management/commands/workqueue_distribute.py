"""`manage.py workqueue_distribute`: on Citus, distribute the tables by queue."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from django_workqueue import distribution
from django_workqueue.management.asking import told


class Command(BaseCommand):
    """Parses, distributes, prints."""

    help = "On Citus: distributes and colocates the tables by queue. Elsewhere it is refused."

    def add_arguments(self, parser: CommandParser) -> None:
        """The options."""
        parser.add_argument("--database", metavar="ALIAS", help="the database alias; WORKQUEUE_DATABASE if not given")

    def handle(self, *_: Any, **given: Any) -> None:
        """Distribute."""
        with told():
            done = distribution.distribute(given["database"])
        self.stdout.write("\n".join(f"{table}: distributed" for table in done) or "All tables are distributed already.")
