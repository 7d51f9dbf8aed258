"""`manage.py workqueue_stats`: what the queues hold, for people, programs and health probes."""

from __future__ import annotations

import json
import math
import time
from argparse import ArgumentTypeError
from collections.abc import Sequence
from dataclasses import asdict
from datetime import timedelta
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import InterfaceError, OperationalError, connections

from django_workqueue import inventory
from django_workqueue.discovery import autodiscover
from django_workqueue.inventory import KnownQueue
from django_workqueue.management.asking import add_selection, told
from django_workqueue.management.columns import aligned, duration, number
from django_workqueue.stats import EXACT_TO, QueueStats

HEAD = ("pending", "ready", "scheduled", "leased", "stalled", "completed", "oldest ready age")
CLEAR, HOME, TO_LINE_END, TO_END = "\x1b[2J", "\x1b[H", "\x1b[K", "\x1b[J"

Holdings = Sequence[tuple[KnownQueue, QueueStats]]


class Command(BaseCommand):
    """Parses, asks, prints."""

    help = f"Shows what each queue holds. Counts over {EXACT_TO:,} are estimates unless --exact is given."

    def add_arguments(self, parser: CommandParser) -> None:
        """The options."""
        add_selection(parser)
        parser.add_argument("--exact", action="store_true", help="count, however long it takes")
        parser.add_argument("--json", action="store_true", help="print a JSON list with an object for each queue")
        either = parser.add_mutually_exclusive_group()
        either.add_argument(
            "--watch",
            action="store_true",
            help="show it again and again, until Ctrl-C; as JSON, a list on each line",
        )
        either.add_argument(
            "--max-oldest-ready-age",
            type=_age,
            metavar="S",
            help="exit 1, saying where, if anything has been ready for longer than so many seconds",
        )

        parser.add_argument(
            "--interval", type=_interval, default=2.0, metavar="SECONDS", help="with --watch: how often (2)"
        )

    def handle(self, *_: Any, **given: Any) -> None:
        """Show it once, or again and again."""
        with told():
            autodiscover()
            if given["watch"]:
                self._watch(given)
            else:
                self._show(given)

    def _show(self, given: dict[str, Any]) -> None:
        held = _holdings(given)
        self.stdout.write(_as_json(held, given, indent=2) if given["json"] else "\n".join(_as_table(held, given)))
        limit = given["max_oldest_ready_age"]
        late = [(queue, stats) for queue, stats in held if limit is not None and stats.oldest_ready_age > limit]
        if late:
            where = ", ".join(f"{queue.name!r} ({duration(stats.oldest_ready_age)})" for queue, stats in late)
            raise CommandError(f"Ready for longer than {duration(limit) if limit else '0 s'}: {where}")

    def _watch(self, given: dict[str, Any]) -> None:
        drawn = self.stdout.isatty() and not given["json"]
        if drawn:
            self.stdout.write(CLEAR, ending="")
        try:
            while True:
                lines = self._frame(given)
                if drawn:
                    lines = [HOME + lines[0], *lines[1:], TO_END]
                self.stdout.write(f"{TO_LINE_END if drawn else ''}\n".join(lines), ending="" if drawn else "\n")
                self.stdout.flush()
                time.sleep(given["interval"])
        except KeyboardInterrupt:
            self.stdout.write("")

    def _frame(self, given: dict[str, Any]) -> list[str]:
        try:
            held = _holdings(given)
        except (OperationalError, InterfaceError) as error:
            connections.close_all()
            return [f"The database does not answer; asking again. {str(error).strip().splitlines()[0]}"]
        return [_as_json(held, given)] if given["json"] else [*_as_table(held, given), ""]


def _holdings(given: dict[str, Any]) -> Holdings:
    queues = inventory.queues(given["queues"], using=given["database"])
    return [(queue, queue.stats(exact=given["exact"])) for queue in queues]


def _as_json(held: Holdings, given: dict[str, Any], *, indent: int | None = None) -> str:
    found = [
        {"queue": queue.name, "database": queue.alias, "face": queue.face, "paused": queue.paused}
        | asdict(stats)
        | {"oldest_ready_age": stats.oldest_ready_age.total_seconds(), "exact": given["exact"]}
        for queue, stats in held
    ]
    return json.dumps(found, indent=indent, ensure_ascii=False)


def _as_table(held: Holdings, given: dict[str, Any]) -> list[str]:
    if not held:
        return ["There is no queue yet."]
    exact_to = None if given["exact"] else EXACT_TO
    several = len({queue.alias for queue, _ in held}) > 1
    rows = []
    for queue, stats in held:
        counts = (stats.pending, stats.ready, stats.scheduled, stats.leased, stats.stalled, stats.completed)
        rows.append(
            [
                f"{queue.name} (paused)" if queue.paused else queue.name,
                *([queue.alias] if several else []),
                *(number(count, exact_to=exact_to) for count in counts),
                duration(stats.oldest_ready_age),
            ]
        )
    head = ["queue", *(["database"] if several else []), *HEAD]
    return aligned(head, rows, left=len(head) - len(HEAD))


def _interval(text: str) -> float:
    seconds = _number_of_seconds(text)
    if seconds <= 0:
        raise ArgumentTypeError(f"expected a positive number of seconds, not {text!r}")
    return seconds


def _age(text: str) -> timedelta:
    seconds = _number_of_seconds(text)
    if seconds < 0:
        raise ArgumentTypeError(f"expected a number of seconds, not {text!r}")
    return timedelta(seconds=seconds)


def _number_of_seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not abs(seconds) < 1e9:
        raise ArgumentTypeError(f"expected a number of seconds, not {text!r}")
    return seconds
