"""A database that our tables were not made on: how to tell, and what to run.

Whether migrations are missing from one that has tables is for `doctor`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from django.db import DEFAULT_DB_ALIAS
from django.utils.text import capfirst

from .database import UNDEFINED_TABLE, sqlstate


def is_cause(error: BaseException) -> bool:
    """Whether a statement of ours failed for want of a table."""
    return sqlstate(error) == UNDEFINED_TABLE


def command(alias: str) -> str:
    """What makes the tables."""
    return "manage.py migrate" if alias == DEFAULT_DB_ALIAS else f"manage.py migrate --database {alias}"


def lack(alias: str) -> str:
    """What is wrong, for the middle of a sentence."""
    return f"database {alias!r} has no tables of django_workqueue yet"


def sentence(alias: str) -> str:
    """For whoever meets it."""
    return f"{capfirst(lack(alias))}. Run `{command(alias)}`."


def hint(error: BaseException, alias: str) -> None:
    """Let the error of a statement of ours say so, if that is its cause."""
    if is_cause(error):
        error.add_note(sentence(alias))


@contextmanager
def hinting(alias: str) -> Iterator[None]:
    """A block of such statements."""
    try:
        yield
    except Exception as error:
        hint(error, alias)
        raise
