"""`manage.py demo`: serve the map and its other pages; with `--check`, see that it works, and go."""

import signal
import time
from argparse import ArgumentParser, ArgumentTypeError
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from testproject.tiles.demo import show
from testproject.tiles.demo.errors import DemoError


class Command(BaseCommand):
    help = "Serve a map and a mail form that workers work for; with --check, see that it works, and exit."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--port", type=port, default=8000, help="where the map is served (default: 8000)")
        parser.add_argument(
            "--check",
            action="store_true",
            help="request a screenful and three mails on a free port, on a database of its own; exit 1 if a tile is "
            "missing or unsound, or a mail not what it should be",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        _end_on_signals()
        try:
            if options["check"]:
                self.check_it()
            else:
                self.serve(options["port"])
        except DemoError as error:
            raise CommandError(str(error)) from error
        except KeyboardInterrupt:
            if options["check"]:
                raise CommandError("Interrupted.", returncode=130) from None
            self.stdout.write("\nStopped.")

    def check_it(self) -> None:
        result = show.check()
        if result.faults:
            raise CommandError("\n".join([str(result), *result.faults]))
        self.stdout.write(f"{result}. Each tile was asked for twice and rendered once.")

    def serve(self, port: int) -> None:
        with show.running(port=port) as running:
            self.stdout.write("Rendering the opening screenful ...")
            result = running.open(deadline=time.monotonic() + show.TIME_LIMIT)
            for line in (str(result), *result.faults):
                self.stdout.write(line)
            self.stdout.write(f"\n  Map       {running.url('page')}")
            self.stdout.write(f"  Mail      {running.url('mail')}")
            self.stdout.write(f"  Activity  {running.url('activity')}")
            self.stdout.write(f"  Admin     {running.login_url()}  (this link logs in once)\n")
            self.stdout.write("Ctrl-C stops everything.")
            self.stdout.flush()
            running.serve()


def _end_on_signals() -> None:
    """Let what ends a program end this one as Ctrl-C does, also where a shell started it in the background."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:  # nohup's wish
        signal.signal(signal.SIGHUP, signal.default_int_handler)


def port(text: str) -> int:
    """A TCP port, or 0 for any that is free."""
    if not text.isdecimal() or not 0 <= int(text) <= 65535:
        raise ArgumentTypeError(f"{text!r} is not a port: a number from 1 to 65535, or 0 for any that is free")
    return int(text)
