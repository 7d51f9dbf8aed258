"""What a process does to its batchers: it forks, it ends, or it has no threads for them."""

from __future__ import annotations

import atexit
import os
import time
import weakref
from typing import Protocol

EXIT_PATIENCE = 5.0  # seconds for which a database that does not answer can hold up the exit

_exiting = False


class Resident(Protocol):
    """What lives in a process and must hear of its forks and its end."""

    def forked(self) -> None:
        """This is a child. What was inherited is the parent's: drop it, without touching the parent's socket."""

    def finish(self, timeout: float) -> None:
        """The interpreter exits: answer everybody within `timeout` seconds."""


_residents: weakref.WeakSet[Resident] = weakref.WeakSet()


def watch(resident: Resident) -> None:
    """Tell this resident when the process turns out to be a forked child."""
    _residents.add(resident)


def watch_exit() -> None:
    """Finish all residents at exit, once the non-daemon threads (of executors, too) have ended.

    Called when a thread starts, not at import: multiprocessing clears a forked child's exit functions.
    """
    atexit.unregister(_finish)
    atexit.register(_finish)


def exiting() -> bool:
    """Whether the interpreter is past the point from which a thread can count on being run."""
    return _exiting


def threads_available() -> bool:
    """Whether threads run here beside the one that serves: not in uWSGI without `enable-threads`."""
    try:
        import uwsgi  # type: ignore[import-untyped]  # noqa: PLC0415 - exists only inside uWSGI
    except ImportError:
        return True
    return "threads" in uwsgi.opt or _enabled(uwsgi.opt.get("enable-threads"))


def _enabled(value: object) -> bool:
    text = value.decode() if isinstance(value, bytes) else str(value or "")
    return text.lower() not in ("", "0", "false", "no", "off")


def _forked() -> None:
    for resident in list(_residents):
        resident.forked()


def _finish() -> None:
    global _exiting  # noqa: PLW0603 - there is one process
    _exiting = True
    deadline = time.monotonic() + EXIT_PATIENCE
    for resident in list(_residents):
        resident.finish(max(deadline - time.monotonic(), 0.01))


os.register_at_fork(after_in_child=_forked)
