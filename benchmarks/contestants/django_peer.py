"""What the Django apps among the peers share: settings, migration, management commands, a producer's threads."""

from __future__ import annotations

from typing import Any

import django
from django.conf import settings
from django.core.management import call_command
from django.db import connection, connections

from benchmarks.contestants.given import SETTINGS, django_database


def configure(*apps: str, **options: Any) -> None:
    """Set Django up with these apps. The setup's own `database` options and `django` settings come on top."""
    settings.configure(
        DATABASES={"default": django_database(**SETTINGS.get("database", {}))},
        INSTALLED_APPS=apps,
        SECRET_KEY="not a secret",
        USE_TZ=True,
        **{**options, **SETTINGS.get("django", {})},
    )
    django.setup()


def migrate() -> None:
    """Create the app's tables."""
    call_command("migrate", verbosity=0)


class Producer:
    """Each thread has a connection of its own, opened before the clock starts."""

    def __init__(self, concurrency: int) -> None:
        """Nothing to share: Django keeps the connections."""

    def warm_up(self) -> None:
        connection.ensure_connection()

    def close(self) -> None:
        connections.close_all()
