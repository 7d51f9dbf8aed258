"""`WorkqueueBackend`: enqueues tasks as jobs, and reads jobs as results.

What the aliases share is in `aliases`, what runs a task in `running`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any, ParamSpec, TypeVar

from asgiref.sync import sync_to_async
from django.core.checks import CheckMessage
from django.core.exceptions import ImproperlyConfigured
from django.db import Error
from django.utils import timezone

from django_workqueue import payloads
from django_workqueue.insertion import Waiting, job_table
from django_workqueue.jobs import JobQueue
from django_workqueue.keys import check_name

from . import aliases, checking, options, results, tasks
from .native import (
    BaseTaskBackend,
    InvalidTask,
    Task,
    TaskResult,
    TaskResultDoesNotExist,
    task_backends,
    task_enqueued,
)
from .results import AnyResult, change
from .tasks import AnyTask, WorkqueueTask

P = ParamSpec("P")
R = TypeVar("R")


class WorkqueueBackend(BaseTaskBackend):
    """A backend of Django's tasks whose tasks are jobs of `JobQueue`s, and are run by `workqueue_work`.

    `OPTIONS`: `max_attempts` (1), `backoff` (a callable or its dotted path), `timeout`, `retention` and `lease`
    (`timedelta`s or seconds) and `database` (an alias; None: `WORKQUEUE_DATABASE`).

    Inside `atomic()` on that database an enqueue is part of the transaction. Besides what Django's tasks raise,
    enqueueing raises `InvalidPayload` for arguments such as NaN, and `EnqueueTimeout`.
    """

    task_class = WorkqueueTask
    supports_defer = True
    supports_async_task = True
    supports_get_result = True
    supports_priority = True

    def __init__(self, alias: str, params: dict[str, Any]) -> None:
        named = params.get("QUEUES", [])  # a str would come out as its letters
        super().__init__(alias, params if options.are_names(named) else {**params, "QUEUES": []})
        self._params = params

    @property
    def _setup(self) -> aliases.Alias:
        """Looked up at each use: contexts that are over may hold on to this object, and must not to queues."""
        return aliases.alias(type(self), self.alias, self._params, self.queues)

    def validate_task(self, task: AnyTask) -> None:
        """Raises `InvalidTask` for a task that cannot be enqueued. One that can is made known to workers here."""
        super().validate_task(task)
        tasks.check_options(task)
        try:
            check_name(task.queue_name)
        except (TypeError, ValueError) as error:
            raise InvalidTask(f"{error}.") from error
        aliases.see(task)

    def enqueue(self, task: Task[P, R], args: Any, kwargs: Any) -> TaskResult[P, R]:
        """Add a job for the task; its result so far."""
        result, queue, waiting = self._prepare(task, args, kwargs)
        queue._enqueue([waiting], None)
        self._complete(result, waiting)
        task_enqueued.send(type(self), task_result=result)
        return result

    async def aenqueue(self, task: Task[P, R], args: Any, kwargs: Any) -> TaskResult[P, R]:
        """`enqueue` for coroutines."""
        result, queue, waiting = self._prepare(task, args, kwargs)
        await queue._aenqueue([waiting], None)
        if waiting.enqueued_at is None:
            await sync_to_async(self._complete)(result, waiting)
        else:
            self._complete(result, waiting)
        await task_enqueued.asend(type(self), task_result=result)
        return result

    def get_result(self, result_id: str) -> AnyResult:
        """The result of that id, whoever enqueued it. Raises `TaskResultDoesNotExist`."""
        row = job_table(self._setup.database).filter(id=int(result_id)).first() if results.is_id(result_id) else None
        said = None if row is None else results.noted(row.metadata)
        if row is None or said is None:
            raise TaskResultDoesNotExist(result_id)
        return results.stored_result(row, alias=self._asked_for(said.get("backend")))

    def queue(self, name: str) -> JobQueue:
        """The queue of that name, to cancel tasks, to retry them, to pause it. A result's id is its job's as text."""
        return self._setup.queue(name)

    def check(self, **kwargs: Any) -> list[CheckMessage]:
        """What cannot work."""
        return list(checking.check(self._setup, own_aliases()))

    def bring(self, names: Sequence[str]) -> None:
        """Make the queues that a worker of `names` (none: of all) may be about to work."""
        self._setup.bring(names)

    def _prepare(self, task: Task[P, R], args: Any, kwargs: Any) -> tuple[TaskResult[P, R], JobQueue, Waiting]:
        self.validate_task(task)
        result = results.new_result(task, args, kwargs, alias=self.alias)
        queue = self._setup.queue(task.queue_name)
        most = tasks.option(task, "max_attempts", self._setup.options.max_attempts)
        given = queue._options(task.run_after, None, int(task.priority), most)
        (waiting,) = queue._waiting(task.module_path, [{"args": result.args, "kwargs": result.kwargs}], given)
        waiting.metadata = json.dumps(json.loads(waiting.metadata) | results.note(self.alias, task.run_after))
        waiting.timed = True
        return result, queue, waiting

    def _complete(self, result: AnyResult, waiting: Waiting) -> None:
        """Let the result say what is known now: as a worker, and `get_result`, will see it."""
        sent = payloads.loads(waiting.payload)
        at = waiting.enqueued_at or self._asked_when(waiting)
        change(result, id=str(waiting.id), enqueued_at=at, **sent)

    def _asked_when(self, waiting: Waiting) -> datetime:
        """When a job was enqueued whose answer was lost: about now, if it is gone already, or nobody answers."""
        with suppress(Error):
            rows = job_table(self._setup.database).filter(id=waiting.id)
            at: datetime | None = rows.values_list("enqueued_at", flat=True).first()
            if at is not None:
                return at
        return timezone.now()

    def _asked_for(self, name: Any) -> str:
        """The alias under which a result is to be refreshed: the one it was enqueued with, if that is still there."""
        if name == self.alias or name not in task_backends.settings:
            return self.alias
        return str(name) if isinstance(_backend(name), WorkqueueBackend) else self.alias


def own_aliases() -> list[aliases.Alias]:
    """The aliases in `TASKS` whose backend is one of ours."""
    backends = [_backend(name) for name in task_backends.settings]
    return [backend._setup for backend in backends if isinstance(backend, WorkqueueBackend)]


def _backend(name: str) -> Any:
    """The backend of an alias; None where there is none, which Django says to whoever uses it."""
    try:
        return task_backends[name]
    except ImproperlyConfigured:
        return None


def bring(names: Sequence[str]) -> None:
    """Make the queues of every alias that a worker of `names` (none: of all) may be about to work."""
    for each in own_aliases():
        each.bring(names)
