"""`manage.py workqueue_doctor`: what is wrong with the queues, or soon will be, and what to do about it."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from typing import Any

from django.core.management.base import BaseCommand, CommandParser
from django.utils.translation import gettext as _

from django_workqueue import doctor
from django_workqueue.discovery import autodiscover
from django_workqueue.doctor import Finding, Severity
from django_workqueue.management.asking import told


class Command(BaseCommand):
    """Parses, examines, prints."""

    help = "Examines the queues and their database, and says what to do. Exits 1 if something is serious."

    def add_arguments(self, parser: CommandParser) -> None:
        """The options."""
        parser.add_argument("--database", metavar="ALIAS", help="only this database alias")
        parser.add_argument("--json", action="store_true", help="print a JSON object with a list of findings")

    def handle(self, *_: Any, **given: Any) -> None:
        """Examine."""
        with told():
            autodiscover()
            found = doctor.examine(given["database"])
        if given["json"]:
            self.stdout.write(json.dumps({"findings": [finding.as_dict() for finding in found]}))
        else:
            self._print(found)
        if any(finding.severity is Severity.SERIOUS for finding in found):
            sys.exit(1)

    def _print(self, found: Sequence[Finding]) -> None:
        styles: dict[Severity, Callable[[str], str]] = {
            Severity.SERIOUS: self.style.ERROR,
            Severity.WARNING: self.style.WARNING,
            Severity.NOTE: str,
        }
        for finding in found:
            heading = f"{finding.severity.label.upper()}: {finding.title} [{finding.code}, {finding.database}]"
            self.stdout.write(styles[finding.severity](heading))
            for line in (*finding.detail.splitlines(), f"→ {finding.advice}"):
                self.stdout.write(f"    {line}")
        if not found:
            self.stdout.write(self.style.SUCCESS(_("All is well.")))
