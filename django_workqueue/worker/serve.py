"""What `workqueue_work` does: find the handlers, then work under a supervisor.

Signals are received before anything slow begins.
"""

from __future__ import annotations

from collections.abc import Sequence

from django.utils.module_loading import autodiscover_modules

from django_workqueue import conf

from .counts import Counts
from .shift import Options
from .signals import Signals
from .worker import Worker


def serve(names: Sequence[str], options: Options, *, using: str | None = None) -> Counts:
    """Work the named queues (none: every one with a handler) until stopped or finished; what was done.

    Raises `Unworkable` for an unknown name, or if there is no handler.
    """
    with Signals() as signals:
        discover()
        worker = Worker(list(names) or None, using=using)
        if signals.received:
            return Counts()
        return worker.work(options, signals, supervised=True)


def discover() -> None:
    """Import the module of each installed app that holds its handlers."""
    module = conf.autodiscover()
    if module:
        autodiscover_modules(module)
