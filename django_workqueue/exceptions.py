"""Every exception the package raises on its own account, in one small tree.

Wrong arguments are `ValueError` and `TypeError`, as in the standard library.
"""

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

SHOWN = 5  # errors of a batch in one message


class WorkqueueError(Exception):
    """The root: catch it to catch whatever this package raises by itself."""


class InvalidKey(WorkqueueError, ValueError):
    """A key cannot be stored. Nothing of the call it came with was enqueued."""


def of_queue(error: WorkqueueError, queue: str) -> None:
    """Have the error say which queue it is about."""
    error.args = (f"queue {queue!r}: {error}",)


class EmptyKey(InvalidKey):
    """The encoded key is the empty string. Give the item a name."""


class KeyTooLong(InvalidKey):
    """The encoded key is over 512 bytes. Truncating would merge two items; enqueue a reference instead."""


class KeyHasControlCharacter(InvalidKey):
    """The encoded key holds NUL, LF, CR or a lone surrogate. Strip it, or encode the key with a codec."""


class KeyDecodeError(WorkqueueError):
    """A stored key does not decode with this queue's codec. It was released with a backoff and its error."""


class InvalidPayload(WorkqueueError, ValueError):
    """A payload or result is not JSON. The message names the path to the offending value."""


class PayloadTooLarge(WorkqueueError, ValueError):
    """A notification is over 7,999 bytes. Publish a reference and read the rest from a table."""


class QueueClosed(WorkqueueError):
    """The queue was closed in this process. Make a new `Queue` to go on."""


class EnqueueTimeout(WorkqueueError, TimeoutError):
    """The enqueue did not become durable in time. The message says whether it is still likely to land."""


class UnsupportedDatabase(WorkqueueError):
    """The database is not PostgreSQL 14 or newer. Point `WORKQUEUE_DATABASE` or `using` at one that is."""


class HandlerTimeout(WorkqueueError, TimeoutError):
    """Raised inside a handler that ran past its `timeout`."""


class LeaseLapsed(WorkqueueError):
    """Never raised: the error of a run that nobody told the end of, its worker being dead or cut off."""


class PermanentError(WorkqueueError):
    """Raise it in a handler (or chain from it) when trying again cannot help.

    A job goes straight to the dead letters; a keyed item is finished with its error kept.
    """


def is_permanent(error: BaseException) -> bool:
    """Whether a `PermanentError` is raised, or what is raised comes from one."""
    seen: set[int] = set()
    cause: BaseException | None = error
    while cause is not None and id(cause) not in seen:
        if isinstance(cause, PermanentError):
            return True
        seen.add(id(cause))
        cause = cause.__cause__
    return False


class Retry(WorkqueueError):
    """Raise it in a handler to be run again after `delay` (a `timedelta`), with no attempt counted."""

    def __init__(self, delay: timedelta = timedelta(0)) -> None:
        if not isinstance(delay, timedelta):
            raise TypeError(f"Retry() takes a timedelta, not {delay!r}")
        self.delay = max(delay, timedelta(0))
        super().__init__(f"again in {self.delay}")


class PartialFailure(WorkqueueError):
    """Raise it in a batch handler to fail only the items named: `PartialFailure({item: error, ...})`.

    An item's key names it as well. The other items of the batch are complete, unless something is named that is not
    in the batch: then these fail, too. An error may itself be `Retry` or `PermanentError`. Raised by any other
    handler, it is an exception like any other.
    """

    def __init__(self, errors: Mapping[Any, BaseException]) -> None:
        self.errors = dict(errors)
        super().__init__(f"{len(self.errors)} items of the batch failed")

    def __str__(self) -> str:
        return f"{super().__str__()}: {listed(self.errors)}" if self.errors else super().__str__()


def listed(errors: Mapping[Any, BaseException]) -> str:
    """The errors, each with the key that it is of; of many, the first."""
    some = [f"{getattr(name, 'key', name)!r}: {error!r}" for name, error in list(errors.items())[:SHOWN]]
    return ", ".join(some) + (", …" if len(errors) > SHOWN else "")
