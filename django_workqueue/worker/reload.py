"""`workqueue_work --reload`: begin again when code changes, and outlive code that cannot be imported.

Django's own reloader watches the code that is imported, from inside the process that works.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from django.apps import apps
from django.utils import autoreload

from django_workqueue.discovery import autodiscover

from .counts import Counts
from .shift import Options
from .signals import ASKS, Signals
from .worker import ENOUGH, Worker

CHANGED, FAILED = 3, 1  # exit codes of a process that is reloaded: by its reloader; before that could begin
LOOK_EVERY = 1.0  # seconds
STOP_WITHIN = 2.0  # seconds that running handlers have when the process is to end


def reloading(
    names: Sequence[str], options: Options, *, using: str | None = None, check: Callable[[], None] = lambda: None
) -> Counts:
    """What `serve` does, for development: in one process, on a thread beside Django's reloader.

    `check` is called first, there: what it raises is shown, and ends nothing.
    """
    total: list[Counts] = []

    def work() -> None:
        autoreload.raise_last_exception()
        check()
        autodiscover(names)
        worker = Worker(list(names) or None, using=using)
        atexit.register(_give_back, worker)
        with Signals() as signals:  # none of its own: this is not the main thread
            total.append(worker.work(replace(options, processes=1), signals))

    if os.environ.get(autoreload.DJANGO_AUTORELOAD_ENV) != "true":
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
        sys.exit(_restarting())
    autoreload.run_with_reloader(work)
    return sum(total, Counts())


def _restarting() -> int:
    """Have a process like this one work, anew as long as code changes; its exit code.

    Where Django itself cannot be set up, nobody watches in there; so it is watched from here, until it may be mended.
    """
    environment = os.environ | {autoreload.DJANGO_AUTORELOAD_ENV: "true"}
    arguments = autoreload.get_child_arguments()
    try:
        while True:
            before = _seen()
            code = _run(arguments, environment)
            while code == FAILED and _seen() == before:
                time.sleep(LOOK_EVERY)
            if code not in (CHANGED, FAILED):
                return code
    except KeyboardInterrupt:
        return 0


def _run(arguments: Sequence[str], environment: Mapping[str, str]) -> int:
    """Have one such process work; its exit code. What ends this process ends that one first, in order if it can be."""
    process = subprocess.Popen(arguments, env=environment, close_fds=False)  # noqa: S603
    try:
        return process.wait()
    finally:
        if process.poll() is None:
            process.terminate()  # after Ctrl-C on a terminal it is ending already, and takes no notice
            try:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(STOP_WITHIN + ENOUGH + 1)
            finally:  # at once, when told again
                process.kill()
                process.wait()


def _give_back(worker: Worker) -> None:
    """At the exit that the reloader or a signal asks for: give back what is in hand, undisturbed by another signal."""
    for signum in ASKS:
        signal.signal(signum, signal.SIG_IGN)
    worker.stop(STOP_WITHIN)


def _seen() -> dict[Path, float]:
    """The code that is imported here, and all that the apps have, with when it was changed."""
    reloader = autoreload.StatReloader()
    for app in apps.get_app_configs():
        reloader.watch_dir(app.path, "**/*.py")
    return dict(reloader.snapshot_files())
