"""What `workqueue_work` does: find the handlers, then work under a supervisor.

Signals are received before anything slow begins.
"""

from __future__ import annotations

import atexit
from collections.abc import Sequence
from dataclasses import replace

from django.utils import autoreload

from django_workqueue.discovery import autodiscover

from .counts import Counts
from .shift import Options
from .signals import Signals
from .supervise import Beside
from .worker import Worker


def serve(names: Sequence[str], options: Options, *, using: str | None = None, beside: Sequence[Beside] = ()) -> Counts:
    """Work the named queues (none: every one with a handler) until stopped or finished; what was done.

    What is `beside` runs in the supervisor as long as that does.

    Raises `Unworkable` for an unknown name, or if there is no handler.
    """
    with Signals() as signals:
        autodiscover(names)
        worker = Worker(list(names) or None, using=using)
        if signals.received:
            return Counts()
        return worker.work(options, signals, supervised=True, beside=beside)


def reloading(names: Sequence[str], options: Options, *, using: str | None = None) -> Counts:
    """The same for development: begins again when code changes. One process, on a thread beside Django's reloader."""
    total: list[Counts] = []

    def work() -> None:
        autoreload.raise_last_exception()
        autodiscover(names)
        worker = Worker(list(names) or None, using=using)
        atexit.register(worker.stop, 2.0)  # the reloader ends the process with sys.exit: give back what is in hand
        with Signals() as signals:  # none of its own: this is not the main thread
            total.append(worker.work(replace(options, processes=1), signals))

    autoreload.run_with_reloader(work)
    return sum(total, Counts())
