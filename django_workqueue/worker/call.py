"""A handler as the worker calls it: middleware around it, and what its exceptions mean.

Threads, tasks and timers are for others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from inspect import iscoroutine
from typing import Any

from django_workqueue import payloads, tracing
from django_workqueue.arguments import LONGEST
from django_workqueue.backoff import exponential
from django_workqueue.engine import Handler, Outcome, Verb
from django_workqueue.exceptions import HandlerTimeout, PartialFailure, Retry, is_permanent

from . import journal, middleware

ZERO = timedelta(0)


class Call:
    """One handler, ready to be called: `fn` takes an item, a job, or for a batch handler a list of items."""

    __slots__ = ("fn", "handler", "timeout")

    def __init__(self, handler: Handler) -> None:
        self.handler = handler
        self.fn: Callable[[Any], Any] = tracing.around(handler, middleware.around(handler))
        self.timeout = handler.timeout.total_seconds() if handler.timeout is not None else None

    def returned(self, work: Any, result: Any, ran: float = 0.0) -> Outcome:
        """What a return after so many seconds means for one piece of work. A job's result must be JSON."""
        if result is None:
            return Outcome(work, Verb.COMPLETE, ZERO, None, None, ran)
        if iscoroutine(result):
            result.close()
            mistake = TypeError(f"{self.handler.name} returned a coroutine; declare it with async def")
            return self.raised(work, mistake, ran)
        if self.handler.kind is None:
            return Outcome(work, Verb.COMPLETE, ZERO, None, None, ran)
        try:
            text = payloads.dumps(result, name="result")
        except Exception as error:  # noqa: BLE001 - the user's objects, and the job must have its outcome
            return self.raised(work, error, ran)
        return Outcome(work, Verb.COMPLETE, ZERO, None, text, ran)

    def raised(self, work: Any, error: BaseException, ran: float = 0.0) -> Outcome:
        """What an exception after so many seconds means for one piece of work."""
        if isinstance(error, PartialFailure):
            named = _error_of(error, work)
            return self.returned(work, None, ran) if named is None else self.raised(work, named, ran)
        if isinstance(error, Retry):
            return Outcome(work, Verb.SNOOZE, min(error.delay, LONGEST), error, None, ran)
        if isinstance(error, HandlerTimeout) and self.timeout is not None:
            error = HandlerTimeout(f"{self.handler.name} ran past its timeout of {self.timeout:g} s")
        if is_permanent(error):
            journal.failed(self.handler, what(work), error, attempt=work.attempts, of=self._most(work), again_in=None)
            return Outcome(work, Verb.FINISH, ZERO, error, None, ran)
        delay, most = self._delay(work.attempts), self._most(work)
        again_in = None if 0 < most <= work.attempts else delay
        journal.failed(self.handler, what(work), error, attempt=work.attempts, of=most, again_in=again_in)
        return Outcome(work, Verb.FAIL, delay, error, None, ran)

    def all_returned(self, works: Sequence[Any], result: Any, ran: float = 0.0) -> list[Outcome]:
        """What a batch handler's return means for its batch."""
        return [self.returned(work, result if iscoroutine(result) else None, ran) for work in works]

    def all_raised(self, works: Sequence[Any], error: BaseException, ran: float = 0.0) -> list[Outcome]:
        """What a batch handler's exception means for its batch."""
        return [self.raised(work, error, ran) for work in works]

    def _most(self, work: Any) -> int:
        """How many attempts a piece of work has; 0 is without end."""
        return int(getattr(work, "max_attempts", self.handler.source.max_attempts))

    def _delay(self, attempts: int) -> timedelta:
        try:
            delay = self.handler.backoff(attempts)
            if not isinstance(delay, timedelta):
                raise TypeError(f"a backoff must return a timedelta, not {delay!r}")  # noqa: TRY301
            return min(max(delay, ZERO), LONGEST)
        except Exception as error:  # noqa: BLE001 - the user's code, and the item must go back whatever it does
            journal.bad_backoff(self.handler, error)
            return _DEFAULT(attempts)


_DEFAULT = exponential()


def what(work: Any) -> str:
    """One piece of work, for people."""
    key = getattr(work, "key", None)
    return f"{work.queue} {key!r}" if key is not None else f"{work.queue} job {getattr(work, 'id', work)}"


def _error_of(failure: PartialFailure, work: Any) -> BaseException | None:
    for item, error in failure.errors.items():
        if item is work or item == work:
            return error if isinstance(error, BaseException) else RuntimeError(str(error))
    return None
