"""What of a backend's setup cannot work, as system checks say it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress

from django.apps import apps
from django.core.checks import CheckMessage, Error
from django.db import connections

from django_workqueue import database, discovery
from django_workqueue.exceptions import UnsupportedDatabase
from django_workqueue.keys import check_name

from .aliases import Alias
from .options import Imported, are_names, problems


def check(alias: Alias, others: Sequence[Alias]) -> Iterator[CheckMessage]:
    """The findings for one alias."""
    if not apps.is_installed("django_workqueue"):
        yield _error(alias, "django_workqueue is not installed.", hint="Add it to INSTALLED_APPS.", number=101)
    wrong = problems(alias.given.get("OPTIONS", {}))
    for problem in wrong:
        yield _error(alias, f"OPTIONS: {problem}", number=102)
    if wrong:
        return
    if nameless := list(_check_names(alias)):
        yield from nameless
        return
    yield from _check_backoff(alias)
    if unreachable := list(_check_database(alias)):
        yield from unreachable
        return
    yield from _check_queues(alias)
    yield from _check_sharing(alias, others)


def _check_backoff(alias: Alias) -> Iterator[CheckMessage]:
    backoff = alias.options.backoff
    if isinstance(backoff, Imported):
        try:
            backoff.load()
        except Exception as error:  # noqa: BLE001 - somebody's module
            yield _error(alias, f"OPTIONS: the backoff {backoff.path} cannot be imported: {error!r}", number=103)


def _check_database(alias: Alias) -> Iterator[CheckMessage]:
    name = alias.database
    if name not in connections.settings:
        known = ", ".join(sorted(connections.settings))
        yield _error(alias, f"{name!r} is not in DATABASES.", hint=f"Known: {known}.", number=104)
        return
    try:
        database.require_postgresql(connections[name])
    except UnsupportedDatabase as error:
        yield _error(alias, str(error), hint="Set OPTIONS['database'] to an alias that is.", number=105)


def _check_names(alias: Alias) -> Iterator[CheckMessage]:
    named = alias.given.get("QUEUES", [])
    if not are_names(named):
        yield _error(alias, f"QUEUES is a list of names, not {named!r}.", number=106)
    for name in sorted(alias.names, key=str):
        try:
            check_name(name)
        except (TypeError, ValueError) as error:
            yield _error(alias, f"QUEUES: {error}.", number=106)


def _check_queues(alias: Alias) -> Iterator[CheckMessage]:
    # The queues of the project are made first: it is ours that is to be found fault with. Whoever works them tells
    # what is wrong with a module that cannot be imported.
    with suppress(Exception):
        discovery.import_modules()
    for name in sorted(alias.names):
        try:
            alias.queue(name)
        except ValueError as error:
            hint = "Set them up alike, or give one another name."
            yield _error(alias, f"QUEUES: {error}.", hint=hint, number=107)


def _check_sharing(alias: Alias, others: Sequence[Alias]) -> Iterator[CheckMessage]:
    """A queue has one handler for each task, whichever alias it was enqueued with."""
    for other in others:
        if other.name <= alias.name or problems(other.given.get("OPTIONS", {})) or other.database != alias.database:
            continue
        for name in sorted(alias.names & other.names):
            for option in ("timeout", "lease", "backoff"):
                if alias.given.get("OPTIONS", {}).get(option) != other.given.get("OPTIONS", {}).get(option):
                    yield _error(
                        alias,
                        f"QUEUES: {name!r} is a queue of TASKS[{other.name!r}] too, whose {option} is another.",
                        hint="Give each alias queues of its own.",
                        number=108,
                    )


def _error(alias: Alias, message: str, *, number: int, hint: str | None = None) -> CheckMessage:
    return Error(f"TASKS[{alias.name!r}]: {message}", hint=hint, id=f"workqueue.E{number}")
