"""Asking the server, each time with an end to it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

from django.db import DatabaseError
from django.utils.translation import gettext as _

from django_workqueue import database, reading
from django_workqueue.database import Rows
from django_workqueue.sql import Statement

from .findings import Finding, Limits, Severity
from .wording import ago

PATIENCE = timedelta(seconds=1)  # for one statement
DENIED = "42501"

Check = Callable[["Server", Limits], Iterator[Finding]]


class Server:
    """The database of an alias, as the checks ask it."""

    def __init__(self, alias: str) -> None:
        self.alias = alias

    def ask(self, statement: Statement, queue: str = "", **params: Any) -> Rows:
        """The rows of one statement."""
        return reading.rows(self.alias, statement.of(queue), params, patience=PATIENCE)


def findings(check: Check, server: Server, limits: Limits) -> Iterator[Finding]:
    """What a check finds. That it may not look, or that the server takes too long to answer, is a finding as well."""
    try:
        yield from check(server, limits)
    except DatabaseError as error:
        state, what = database.sqlstate(error), check.__name__.replace("_", " ")
        if state == database.CANCELLED:
            yield Finding(
                "slow",
                Severity.WARNING,
                _("The server took too long to answer (%(about)s)") % {"about": what},
                _("A question that is answered in milliseconds was given up after %(age)s.")
                % {"age": ago(PATIENCE.total_seconds())},
                _("See what the server is busy with, and whether something holds a lock: pg_stat_activity, pg_locks."),
            )
        elif state == DENIED:
            yield Finding(
                "denied",
                Severity.NOTE,
                _("The database's role may not look (%(about)s)") % {"about": what},
                str(error).strip(),
                _("Nothing is wrong with that. For the whole picture: GRANT pg_read_all_stats to the role."),
            )
        else:
            raise
