"""Reads on the calling thread's connection that the server gives up where they take too long.

An error for want of our tables says what to run. What is asked, and what is made of no answer, is for the caller.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from django.db import connections

from . import database, unmigrated
from .database import Rows


def rows(alias: str, text: str, params: Mapping[str, Any], *, patience: timedelta, **settings: str) -> Rows:
    """The rows of one statement. On `patience`, `settings` and what is raised see `database.brief`."""
    with (
        unmigrated.hinting(alias),
        database.brief(alias, patience, **settings),
        connections[alias].cursor() as cursor,
    ):
        cursor.execute(text, params)
        found: Rows = cursor.fetchall()
        return found
