"""One run of a task: its context, its signals, its value or error. Called by the worker as the job's handler.

What an exception means for the job is decided by the worker, as for any handler.
"""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Callable
from datetime import timedelta
from inspect import iscoroutinefunction
from time import monotonic
from typing import TYPE_CHECKING, Any

from asgiref.sync import sync_to_async
from django.dispatch import Signal

from django_workqueue import payloads
from django_workqueue.delivery import Job
from django_workqueue.exceptions import HandlerTimeout, PermanentError, Retry, is_permanent
from django_workqueue.listed import ListedSource
from django_workqueue.text import exception_path

from . import results
from .native import TaskContext, TaskError, TaskResultStatus, normalize_json, task_finished, task_started
from .results import AnyResult, change
from .tasks import AnyTask

if TYPE_CHECKING:
    from .aliases import Alias

JITTER = 0.05  # seconds before its timeout at which a cancelled task may find itself, the loop's clock being another


def handler(task: AnyTask, alias: Alias, source: ListedSource, timeout: timedelta | None) -> Callable[[Job], Any]:
    """What the worker calls with each job of this task, sync or async as the task is."""

    def run(job: Job) -> Any:
        return Run(task, alias, source, job, timeout).result_of_call()

    async def arun(job: Job) -> Any:
        return await Run(task, alias, source, job, timeout).result_of_await()

    chosen: Callable[[Job], Any] = arun if iscoroutinefunction(task.func) else run
    chosen.__module__, chosen.__qualname__ = task.func.__module__, task.func.__qualname__
    return chosen


class Run:
    """One job, and the function that it is for."""

    def __init__(self, task: AnyTask, alias: Alias, source: ListedSource, job: Job, timeout: timedelta | None) -> None:
        self.began = monotonic()
        self.task = task
        self.source = source
        self.job = job
        self.timeout = timeout
        self.alias = alias.of_job(job)
        self.sender = self.alias.backend_class
        self.result: AnyResult

    def result_of_call(self) -> Any:
        """Call the task's function."""
        self.result = self._first_result() or self._stored_result()
        self._send(task_started)
        try:
            args, kwargs = self._arguments()
            value = self._checked(self.task.func(*args, **kwargs))
        except BaseException as error:
            if self._failed(error):
                self._send(task_finished)
            raise
        if self._succeeded(value):
            self._send(task_finished)
        return value

    async def result_of_await(self) -> Any:
        """Await the task's coroutine function."""
        self.result = self._first_result() or await sync_to_async(self._stored_result)()
        await self._asend(task_started)
        try:
            args, kwargs = self._arguments()
            value = self._checked(await self.task.func(*args, **kwargs))
        except BaseException as error:
            if self._failed(error):
                await self._asend(task_finished)
            raise
        if self._succeeded(value):
            await self._asend(task_finished)
        return value

    def _send(self, signal: Signal) -> None:
        """Send a signal; what a receiver raises is logged by Django, and is not the task's."""
        signal.send_robust(self.sender, task_result=self.result)

    async def _asend(self, signal: Signal) -> None:
        """The same in a thread, which Django's own receiver wants to see the exception from (`asend` has tasks)."""
        await sync_to_async(self._send)(signal)

    def _first_result(self) -> AnyResult | None:
        """The result so far, if it is the first attempt and nothing else is to be known of it."""
        job, start = self.job, self.job._start
        if start is None or len(start.worker_ids) != 1 or job.last_error is not None:
            return None
        args, kwargs = self._payload()
        task = results.variant(self.task, job, self.alias.name)
        result = results.new_result(task, args, kwargs, alias=self.alias.name)
        change(
            result,
            id=str(job.id),
            status=TaskResultStatus.RUNNING,
            enqueued_at=job.enqueued_at,
            started_at=start.at,
            last_attempted_at=start.at,
            worker_ids=start.worker_ids,
        )
        return result

    def _stored_result(self) -> AnyResult:
        """The result so far, with what became of earlier attempts."""
        job = self.job
        row = self.source.table().get(queue=job.queue, id=job.id)
        result = results.stored_result(row, alias=self.alias.name, task=self.task)
        change(result, status=TaskResultStatus.RUNNING, finished_at=None)
        return result

    def _payload(self) -> tuple[list[Any], dict[str, Any]]:
        payload = {} if self.job.payload is None else self.job.payload
        args, kwargs = (payload.get("args", []), payload.get("kwargs", {})) if isinstance(payload, dict) else (0, 0)
        if not isinstance(args, list) or not isinstance(kwargs, dict):
            raise PermanentError(f"a task's payload is {{'args': [...], 'kwargs': {{...}}}}, not {payload!r:.200}")
        return args, kwargs

    def _arguments(self) -> tuple[list[Any], dict[str, Any]]:
        args, kwargs = self._payload()
        return ([TaskContext(task_result=self.result), *args] if self.task.takes_context else args), kwargs

    def _checked(self, value: Any) -> Any:
        """The value as it is kept. Raises `TypeError` or `InvalidPayload` for what is not JSON."""
        normal = normalize_json(value)
        payloads.dumps(normal, name="result")
        return normal

    def _succeeded(self, value: Any) -> bool:
        """Note the value; whether it counts."""
        change(self.result, status=TaskResultStatus.SUCCESSFUL, finished_at=self._now(), _return_value=value)
        return not self.job.cancelled

    def _failed(self, error: BaseException) -> bool:
        """Note the error; whether the task is finished with it."""
        if self.job.cancelled or isinstance(error, Retry):
            return False
        if isinstance(error, asyncio.CancelledError) and _was_cancelled():
            if self.timeout is None or monotonic() - self.began < self.timeout.total_seconds() - JITTER:
                return False  # a stop of the worker's, which gives the job back
            error = HandlerTimeout(f"{self.task.module_path} ran past its timeout of {self.timeout}")
        final = is_permanent(error) or self.job.attempts >= self.job.max_attempts
        shown = "".join(traceback.format_exception(error))
        entry = TaskError(exception_class_path=exception_path(error), traceback=shown)
        change(
            self.result,
            errors=[*self.result.errors, entry],
            status=TaskResultStatus.FAILED if final else TaskResultStatus.READY,
            finished_at=self._now() if final else None,
        )
        return final

    def _now(self) -> Any:
        """By the server's clock, as far as it is known."""
        start = self.result.last_attempted_at
        return None if start is None else start + timedelta(seconds=monotonic() - self.began)


def _was_cancelled() -> bool:
    """Whether the cancellation comes from outside, and is not the function's own."""
    try:
        current = asyncio.current_task()
    except RuntimeError:  # no event loop: a sync task
        return False
    return current is not None and current.cancelling() > 0
