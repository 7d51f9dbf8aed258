"""What the harness gives a contestant's process: the database, and the settings to be measured with."""

from __future__ import annotations

import json
import os
from typing import Any
from urllib.parse import urlsplit

DSN = os.environ["BENCH_DSN"]
SETTINGS: dict[str, Any] = json.loads(os.environ["BENCH_SETTINGS"])


def django_database(**options: Any) -> dict[str, Any]:
    """The database as an entry of Django's `DATABASES`."""
    parts = urlsplit(DSN)
    return {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": parts.path.lstrip("/"),
        "USER": parts.username,
        "HOST": parts.hostname,
        "PORT": parts.port,
        **options,
    }
