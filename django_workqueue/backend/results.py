"""A job as the `TaskResult` that Django's users know.

Reads rows and claimed jobs, and changes neither.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from django.conf import settings
from django.utils import timezone

from django_workqueue.listed import TASK
from django_workqueue.status import JobStatus

from . import tasks
from .native import Task, TaskError, TaskResult, TaskResultStatus
from .tasks import AnyTask

if TYPE_CHECKING:
    from django_workqueue.models import WorkJob

    AnyResult = TaskResult[..., Any]
else:
    AnyResult = TaskResult

P = ParamSpec("P")
R = TypeVar("R")

MAX_DIGITS = len(str(2**63))
CANCELLED = "asyncio.CancelledError"  # Django has no word for it: it is a failure, and this is why


def note(alias: str, run_after: datetime | None) -> dict[str, Any]:
    """What a job's metadata says of its task, for whoever reads the result."""
    said = {"backend": alias} if run_after is None else {"backend": alias, "run_after": run_after.isoformat()}
    return {TASK: said}


def noted(metadata: Mapping[str, Any]) -> dict[str, Any] | None:
    """What a job's metadata says of its task; None for a job that is no task's."""
    said = metadata.get(TASK)
    return said if isinstance(said, dict) else None


def is_id(result_id: object) -> bool:
    """Whether it may be the id of a result at all."""
    text = str(result_id)
    return len(text) <= MAX_DIGITS and text.isascii() and text.isdigit() and 0 < int(text) < 2**63 and text[0] != "0"


def new_result(task: Task[P, R], args: Any, kwargs: Any, *, alias: str) -> TaskResult[P, R]:
    """The result of a task that is not enqueued yet. Raises `TypeError` for arguments that Django does not take."""
    return TaskResult(
        task=task,
        id="",
        status=TaskResultStatus.READY,
        enqueued_at=None,
        started_at=None,
        finished_at=None,
        last_attempted_at=None,
        args=args,
        kwargs=kwargs,
        backend=alias,
        errors=[],
        worker_ids=[],
    )


def stored_result(row: WorkJob, *, alias: str, task: AnyTask | None = None) -> AnyResult:
    """The result that a job's row tells of; `alias` is the backend that it is to be asked for again."""
    payload = row.payload if isinstance(row.payload, dict) else {}
    status = _status(row)
    result: AnyResult = TaskResult(
        task=variant(task or tasks.find_or_stand_in(row.kind), row, alias),
        id=str(row.id),
        status=status,
        enqueued_at=row.enqueued_at,
        started_at=first_start(row),
        finished_at=row.finished_at,
        last_attempted_at=row.started_at or _last_known_start(row),
        args=payload.get("args", []),
        kwargs=payload.get("kwargs", {}),
        backend=alias,
        errors=list(_errors(row)),
        worker_ids=row.worker_ids,
    )
    if status == TaskResultStatus.SUCCESSFUL:
        change(result, _return_value=row.result)
    return result


def change(result: AnyResult, **attributes: Any) -> None:
    """Set attributes of a result, which is frozen for everybody else."""
    for name, value in attributes.items():
        object.__setattr__(result, name, value)


def variant(task: AnyTask, job: Any, alias: str) -> AnyTask:
    """The task as it was enqueued for a job (or its row)."""
    said = noted(job.metadata) or {}
    run_after = None if "run_after" not in said else datetime.fromisoformat(said["run_after"])
    return tasks.variant(task, priority=job.priority, queue_name=job.queue, backend=alias, run_after=run_after)


def error_of(entry: Mapping[str, Any]) -> TaskError:
    """An entry of a job's history."""
    message = str(entry.get("message", ""))
    return TaskError(
        exception_class_path=str(entry.get("type", "")), traceback=str(entry.get("traceback") or f"{message}\n")
    )


def moment(text: str) -> datetime:
    """A time that the server wrote into JSON, as the ORM would give it."""
    aware = datetime.fromisoformat(text)
    return aware if settings.USE_TZ else timezone.make_naive(aware)


def _status(row: WorkJob) -> TaskResultStatus:
    if row.status is JobStatus.COMPLETED:
        return TaskResultStatus.SUCCESSFUL
    if row.outcome is not None:
        return TaskResultStatus.FAILED
    # Of tasks every start is marked: what a worker has in hand without is not running yet.
    running = row.status is JobStatus.RUNNING and row.started_at is not None
    return TaskResultStatus.RUNNING if running else TaskResultStatus.READY


def first_start(row: WorkJob) -> datetime | None:
    """When the first attempt that counts began."""
    if not row.worker_ids:
        return None
    attempts = _attempts(row)
    marked = (noted(row.metadata) or {}).get("started_at") or (attempts[0].get("started") if attempts else None)
    return row.started_at if marked is None else moment(marked)


def _last_known_start(row: WorkJob) -> datetime | None:
    """Of what waits for another attempt in a worker's hand."""
    attempts = _attempts(row)
    marked = attempts[-1].get("started") if attempts else None
    return None if marked is None else moment(marked)


def _attempts(row: WorkJob) -> list[dict[str, Any]]:
    """What is known of the attempts that failed; an entry that is no object is another program's."""
    return [entry for entry in row.errors if isinstance(entry, dict)]


def _errors(row: WorkJob) -> Iterable[TaskError]:
    yield from map(error_of, _attempts(row))
    if row.outcome == JobStatus.CANCELLED:
        yield TaskError(exception_class_path=CANCELLED, traceback="The task was cancelled.\n")
