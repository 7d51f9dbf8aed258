"""What `workqueue_work` does: find the handlers, then work under a supervisor.

Signals are received before anything slow begins.
"""

from __future__ import annotations

from collections.abc import Sequence

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
