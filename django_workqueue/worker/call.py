"""A handler as the worker calls it: middleware around it, and what its exceptions mean.

Threads, tasks and timers are for others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from inspect import isasyncgen, isawaitable, iscoroutine, isgenerator
from typing import Any

from django_workqueue import payloads, tracing
from django_workqueue.arguments import LONGEST
from django_workqueue.backoff import exponential
from django_workqueue.engine import Handler, Outcome, Verb
from django_workqueue.exceptions import HandlerTimeout, PartialFailure, Retry, is_permanent, listed
from django_workqueue.text import error_text, traceback_of

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
        try:
            self._check(result)
            text = None if self.handler.kind is None else payloads.dumps(result, name="result")
        except BaseException as error:  # noqa: BLE001 - the user's objects, and the job must have its outcome
            return self.raised(work, error, ran)
        return Outcome(work, Verb.COMPLETE, ZERO, None, text, ran)

    def raised(self, work: Any, error: BaseException, ran: float = 0.0) -> Outcome:
        """What an exception after so many seconds means for one piece of work.

        If that cannot be told, it is a failure: work that has run is never given back with no attempt counted.
        """
        try:
            return self._judged(work, error, ran)
        except BaseException as fault:  # noqa: BLE001 - the user's exceptions, which may raise whatever is asked of them
            return self._judged(work, _beyond_judging(error, fault), ran)

    def all_returned(self, works: Sequence[Any], result: Any, ran: float = 0.0) -> list[Outcome]:
        """What a batch handler's return means for its batch."""
        try:
            self._check(result)
        except BaseException as error:  # noqa: BLE001 - as above
            return self.all_raised(works, error, ran)
        return [self.returned(work, None, ran) for work in works]

    def all_raised(self, works: Sequence[Any], error: BaseException, ran: float = 0.0) -> list[Outcome]:
        """What a batch handler's exception means for its batch."""
        named: dict[int, BaseException] = {}
        of_others: BaseException | None = error
        try:
            if self.handler.size is not None and isinstance(error, PartialFailure):
                named, of_others = _parted(error, works)
        except BaseException as fault:  # noqa: BLE001 - as above
            of_others = _beyond_judging(error, fault)
        errors = [(work, named.get(id(work), of_others)) for work in works]
        return [self.returned(work, None, ran) if of is None else self.raised(work, of, ran) for work, of in errors]

    def _judged(self, work: Any, error: BaseException, ran: float) -> Outcome:
        if isinstance(error, Retry):
            return Outcome(work, Verb.SNOOZE, max(ZERO, min(error.delay, LONGEST)), error, None, ran)
        if isinstance(error, HandlerTimeout) and self.timeout is not None:
            error.args = (f"{self.handler.name} ran past its timeout of {self.timeout:g} s",)
        if is_permanent(error):
            journal.failed(self.handler, what(work), error, attempt=work.attempts, of=self._most(work), again_in=None)
            return Outcome(work, Verb.FINISH, ZERO, error, None, ran)
        delay, most = self._delay(work.attempts), self._most(work)
        again_in = None if 0 < most <= work.attempts else delay
        journal.failed(self.handler, what(work), error, attempt=work.attempts, of=most, again_in=again_in)
        return Outcome(work, Verb.FAIL, delay, error, None, ran)

    def _check(self, result: Any) -> None:
        """Raise `TypeError` for what stands for work that has not been done."""
        if isgenerator(result) or isasyncgen(result):
            raise TypeError(f"{self.handler.name} returned a generator, of which nothing has run")
        if isawaitable(result):
            if iscoroutine(result):
                result.close()
            returned = f"{self.handler.name} returned a {type(result).__name__}, which nobody awaits"
            raise TypeError(f"{returned}: declare the handler with async def, and await it there")

    def _most(self, work: Any) -> int:
        """How many attempts a piece of work has; 0 is without end."""
        return int(getattr(work, "max_attempts", self.handler.source.max_attempts))

    def _delay(self, attempts: int) -> timedelta:
        try:
            delay = self.handler.backoff(attempts)
            if not isinstance(delay, timedelta):
                raise TypeError(f"a backoff must return a timedelta, not {delay!r}")  # noqa: TRY301
            return min(max(delay, ZERO), LONGEST)
        except BaseException as error:  # noqa: BLE001 - the user's code, and the item must go back whatever it does
            journal.bad_backoff(self.handler, error)
            return _DEFAULT(attempts)


_DEFAULT = exponential()


def what(work: Any) -> str:
    """One piece of work, for people."""
    key = getattr(work, "key", None)
    return f"{work.queue} {key!r}" if key is not None else f"{work.queue} job {getattr(work, 'id', work)}"


def late(error: BaseException | None) -> BaseException | None:
    """What a handler has raised that was told of its timeout: that, whatever the code it struck made of it.

    What it returns, and `Retry` and its like, are the handler's own answer to it and stand.
    """
    if error is None or isinstance(error, (HandlerTimeout, Retry, PartialFailure)) or is_permanent(error):
        return error
    timeout = HandlerTimeout().with_traceback(traceback_of(error))
    timeout.__context__ = error
    return timeout


def _parted(failure: PartialFailure, works: Sequence[Any]) -> tuple[dict[int, BaseException], BaseException | None]:
    """The errors, by the `id` of the item that they are of, named by itself or its key; and what goes for the others.

    That is an error, too, where something is named that is not in the batch: it may be any of these that failed.
    """
    left, named = dict(failure.errors), dict[int, BaseException]()
    for work in works:
        for name in (work, work.key):
            if left and name in left:
                error = left.pop(name)
                named.setdefault(id(work), error if isinstance(error, BaseException) else RuntimeError(str(error)))
    if not left:
        return named, None
    mistake = ValueError(f"PartialFailure names what is not in the batch: {listed(left)}")
    mistake.__cause__ = failure
    return named, mistake


def _beyond_judging(error: BaseException, fault: BaseException) -> BaseException:
    """What to take an exception for that cannot be looked at; it is not chained, or it would be looked at again."""
    said = f"{error_text(error)}; looking at it raised {error_text(fault)}"
    return RuntimeError(said).with_traceback(traceback_of(error))
