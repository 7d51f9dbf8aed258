"""Django's own tasks, or those of the backport: whichever this Django has, under one set of names."""

import django

if django.VERSION >= (6, 0):
    from django.tasks import (
        DEFAULT_TASK_QUEUE_NAME,
        Task,
        TaskContext,
        TaskResult,
        TaskResultStatus,
        default_task_backend,
        task,
        task_backends,
    )
    from django.tasks.base import TASK_MAX_PRIORITY, TASK_MIN_PRIORITY, TaskError
    from django.tasks.exceptions import InvalidTask, InvalidTaskBackend, TaskResultDoesNotExist, TaskResultMismatch
    from django.tasks.signals import task_enqueued, task_finished, task_started

    NAME = "django.tasks"
else:
    from django_tasks import (
        DEFAULT_TASK_QUEUE_NAME,
        TaskContext,
        TaskResult,
        TaskResultStatus,
        default_task_backend,
        task,
        task_backends,
    )
    from django_tasks.base import TASK_MAX_PRIORITY, TASK_MIN_PRIORITY, Task, TaskError
    from django_tasks.exceptions import InvalidTaskBackendError as InvalidTaskBackend
    from django_tasks.exceptions import InvalidTaskError as InvalidTask
    from django_tasks.exceptions import TaskResultDoesNotExist, TaskResultMismatch
    from django_tasks.signals import task_enqueued, task_finished, task_started

    NAME = "django_tasks"

READY, RUNNING = TaskResultStatus.READY, TaskResultStatus.RUNNING
FAILED, SUCCESSFUL = TaskResultStatus.FAILED, TaskResultStatus.SUCCESSFUL
IMMEDIATE = f"{NAME}.backends.immediate.ImmediateBackend"
TAKES_KEYWORDS = django.VERSION[:2] != (6, 0)  # @task(max_attempts=...): Django 6.1 and the backport
PICKLES = django.VERSION >= (6, 1)

__all__ = [
    "DEFAULT_TASK_QUEUE_NAME",
    "FAILED",
    "IMMEDIATE",
    "NAME",
    "PICKLES",
    "READY",
    "RUNNING",
    "SUCCESSFUL",
    "TAKES_KEYWORDS",
    "TASK_MAX_PRIORITY",
    "TASK_MIN_PRIORITY",
    "InvalidTask",
    "InvalidTaskBackend",
    "Task",
    "TaskContext",
    "TaskError",
    "TaskResult",
    "TaskResultDoesNotExist",
    "TaskResultMismatch",
    "TaskResultStatus",
    "default_task_backend",
    "task",
    "task_backends",
    "task_enqueued",
    "task_finished",
    "task_started",
]
