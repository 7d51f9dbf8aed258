"""What the commands about queues have in common: which are meant, and in which words it is said what went wrong."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import CommandError, CommandParser
from django.db import DatabaseError, InterfaceError, connections
from django.utils.connection import ConnectionDoesNotExist

from django_workqueue import unmigrated
from django_workqueue.exceptions import WorkqueueError


def add_selection(parser: CommandParser) -> None:
    """`[NAME ...] [--database ALIAS]`."""
    parser.add_argument("queues", nargs="*", metavar="NAME", help="a queue (default: every queue there is)")
    parser.add_argument("--database", metavar="ALIAS", help="only queues of this database alias")


@contextmanager
def told() -> Iterator[None]:
    """Tell what goes wrong in a sentence, not by a traceback."""
    try:
        yield
    except (ImproperlyConfigured, WorkqueueError) as error:
        raise CommandError(str(error)) from error
    except ConnectionDoesNotExist as error:
        raise CommandError(f"{error} Those there are: {', '.join(connections.settings)}.") from error
    except (DatabaseError, InterfaceError) as error:
        raise CommandError(_sentence(error)) from error


def _sentence(error: Exception) -> str:
    if unmigrated.is_cause(error) and (hints := getattr(error, "__notes__", [])):
        return str(hints[-1])
    return f"The database did not answer: {error}"
