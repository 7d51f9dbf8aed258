"""`manage.py workqueue_work`: work the queues until told to stop."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from argparse import ArgumentTypeError
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import BaseCommand, CommandError, CommandParser

from django_workqueue.worker import Counts, Options, Unavailable, Unworkable, reloading, serve

if TYPE_CHECKING:
    from django_workqueue.prometheus import MetricsServer

logger = logging.getLogger("django_workqueue")


class Command(BaseCommand):
    """Parses, serves, prints."""

    help = (
        "Works queues with the handlers found in each installed app's tasks module, until SIGTERM or SIGINT. "
        "A second signal ends it at once."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        """The options."""
        usual = Options()
        parser.add_argument("queues", nargs="*", metavar="NAME", help="a queue to work (default: all with a handler)")
        parser.add_argument("--database", metavar="ALIAS", help="work only queues of this database alias")
        parser.add_argument(
            "--processes", type=_positive, default=usual.processes, metavar="N", help="worker processes (default: 1)"
        )
        parser.add_argument(
            "--concurrency",
            type=_positive,
            default=usual.concurrency,
            metavar="N",
            help="handler threads, and async handlers at once, in each process (default: %(default)s)",
        )
        parser.add_argument(
            "--poll",
            type=_seconds,
            metavar="SECONDS",
            help="how often an idle worker looks without having been woken (default: WORKQUEUE_POLL_INTERVAL)",
        )
        parser.add_argument("--drain", action="store_true", help="work until nothing is due; exit 1 if anything failed")
        parser.add_argument("--max-items", type=_positive, metavar="N", help="end after so many items")
        parser.add_argument("--max-seconds", type=_seconds, metavar="S", help="end after so many seconds")
        parser.add_argument(
            "--shutdown-timeout",
            type=_seconds_or_none,
            default=usual.shutdown_timeout,
            metavar="S",
            help=f"seconds that running handlers have when asked to stop (default: {usual.shutdown_timeout.seconds})",
        )
        parser.add_argument(
            "--metrics-port",
            type=_address,
            metavar="[ADDRESS:]PORT",
            help="serve metrics for Prometheus there, of all queues (needs the extra: django-workqueue[prometheus])",
        )
        parser.add_argument(
            "--reload", action="store_true", help="start again when code changes; one process, for development"
        )

    def execute(self, *args: Any, **options: Any) -> str | None:
        """As any command; with --reload the checks are made where the reloader outlives what they import."""
        if options.get("reload"):
            self.requires_system_checks = []
        return super().execute(*args, **options)

    def handle(self, *_: Any, **given: Any) -> None:
        """Serve."""
        self._log(verbosity=given["verbosity"])
        options = Options(
            concurrency=given["concurrency"],
            processes=given["processes"],
            poll=given["poll"],
            shutdown_timeout=given["shutdown_timeout"],
            drain=given["drain"],
            max_items=given["max_items"],
            max_seconds=given["max_seconds"].total_seconds() if given["max_seconds"] else None,
        )
        if given["reload"] and options.processes > 1:
            raise CommandError("--processes does not go with --reload, which works in one process.")
        for end in ("drain", "max_items", "max_seconds"):
            if given["reload"] and given[end]:
                flag = f"--{end.replace('_', '-')}"
                raise CommandError(f"{flag} does not go with --reload, which goes on until it is told to end.")
        server = _metrics_server(given["metrics_port"]) if given["metrics_port"] else None
        if server and given["reload"]:
            raise CommandError("--metrics-port does not go with --reload, which has no supervisor to serve them.")
        if server:
            logger.info("metrics are served at %s", server.url)
        beside = [server] if server else []
        check = (lambda: None) if given["skip_checks"] else self.check
        try:
            counts: Counts = (
                reloading(given["queues"], options, using=given["database"], check=check)
                if given["reload"]
                else serve(given["queues"], options, using=given["database"], beside=beside)
            )
        except (ImproperlyConfigured, Unavailable, Unworkable) as error:
            raise CommandError(str(error)) from error
        finally:
            for each in beside:
                each.close()
        if given["verbosity"] > 0 and not given["reload"]:
            self._say(f"{counts}\n")
        _let_go_of_unwritable()
        if options.drain and counts.failed:
            sys.exit(1)

    def _say(self, text: str) -> None:
        """Print, if that can be done: how the work ended does not hang on who listens."""
        with contextlib.suppress(OSError, ValueError, AttributeError):  # full or unread; closed; never there
            self.stdout.write(text)
            self.stdout.flush()

    def _log(self, *, verbosity: int) -> None:
        """Let the worker be heard where the project has not said what to do with logs."""
        if verbosity < 1 or logger.hasHandlers():
            return
        handler = logging.StreamHandler(self.stderr)
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
        logger.addHandler(handler)
        logger.setLevel(logging.INFO)


def _let_go_of_unwritable() -> None:
    """Drop what can no longer be written to stdout and stderr: Python would exit with 120 for it."""
    for stream in (sys.stdout, sys.stderr):
        if stream is None or stream.closed:
            continue
        try:
            stream.flush()
        except OSError:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, stream.fileno())
            os.close(nowhere)


def _metrics_server(where: tuple[str, int]) -> MetricsServer:
    try:
        from django_workqueue.prometheus import MetricsServer  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise CommandError("--metrics-port needs an extra: pip install 'django-workqueue[prometheus]'") from error
    address, port = where
    try:
        return MetricsServer(port, address=address)
    except OSError as error:
        raise CommandError(f"Metrics cannot be served on port {port}: {error}") from error


def _address(text: str) -> tuple[str, int]:
    address, _, port = text.rpartition(":")
    if not port.isdecimal() or int(port) > 65535:
        raise ArgumentTypeError(f"expected PORT or ADDRESS:PORT, not {text!r}")
    return address.strip("[]"), int(port)


def _positive(text: str) -> int:
    try:
        value = int(text)
    except ValueError:
        value = 0
    if value < 1:
        raise ArgumentTypeError(f"expected a positive whole number, not {text!r}")
    return value


def _seconds(text: str) -> timedelta:
    value = _seconds_or_none(text)
    if not value:
        raise ArgumentTypeError(f"expected a positive number of seconds, not {text!r}")
    return value


def _seconds_or_none(text: str) -> timedelta:
    try:
        value = timedelta(seconds=float(text))
    except (ValueError, OverflowError):
        value = timedelta(-1)
    if value < timedelta(0):
        raise ArgumentTypeError(f"expected a number of seconds, not {text!r}")
    return value
