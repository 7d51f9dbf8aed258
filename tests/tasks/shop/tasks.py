"""Tasks that these tests enqueue, in this process and for worker processes. What the latter do is noted in a file."""

import asyncio
import os
import signal
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

from django.db import connection

from django_workqueue import PermanentError, Retry
from tests.tasks.native import TaskContext, task


def note(*words: object) -> None:
    """Write a line, in a worker process; in the tests' own nobody reads it."""
    with Path(os.environ.get("SHOP_LOG", os.devnull)).open("a") as log:
        log.write(" ".join(map(str, words)) + "\n")


@task()
def noop(*args: Any, **kwargs: Any) -> None:
    return None


@task
def noop_bare(*args: Any, **kwargs: Any) -> None:
    return None


@task()
async def noop_async(*args: Any, **kwargs: Any) -> None:
    return None


@task()
def meaning_of_life() -> int:
    return 42


@task()
async def meaning_of_life_async() -> int:
    await asyncio.sleep(0)
    return 42


@task()
def echo(*args: Any, **kwargs: Any) -> Any:
    return [args, kwargs]


@task()
def fail_with_value_error() -> None:
    raise ValueError("This Task failed due to ValueError")


@task()
def fail_with_system_exit() -> None:
    raise SystemExit("This Task failed due to SystemExit")


@task()
def fail_with_keyboard_interrupt() -> None:
    raise KeyboardInterrupt("This Task failed due to KeyboardInterrupt")


@task()
def fail_with_an_error_that_cannot_be_pickled() -> None:
    raise ValueError(ValueError("This task failed"))


@task()
async def fail_async() -> None:
    raise ValueError("This async Task failed")


@task()
def fail_for_good() -> None:
    raise PermanentError("no use")


@task()
def return_what_is_not_json() -> Any:
    return lambda: True


@task()
def return_nan() -> float:
    return float("nan")


@task()
def return_bytes_and_tuples() -> Any:
    return {"bytes": b"text", "tuple": (1, 2)}


@task(takes_context=True)
def result_id(context: TaskContext) -> str:
    return context.task_result.id


@task(takes_context=True)
def alias(context: TaskContext) -> str:
    assert context.task_result.task.backend == context.task_result.backend
    return context.task_result.backend


@task(takes_context=True)
async def result_id_async(context: TaskContext) -> str:
    return context.task_result.id


@task(takes_context=True)
def told(context: TaskContext) -> Any:
    """What the context says, and what the store says meanwhile."""
    result = context.task_result
    result.refresh()
    return [context.attempt, result.status, len(result.errors), result.started_at is not None]


@task(takes_context=True)
def succeed_at(context: TaskContext, attempt: int) -> int:
    if context.attempt < attempt:
        raise ValueError(f"not at attempt {context.attempt}")
    return context.attempt


@task(takes_context=True)
async def succeed_at_async(context: TaskContext, attempt: int) -> int:
    if context.attempt < attempt:
        raise ValueError(f"not at attempt {context.attempt}")
    return context.attempt


@task(takes_context=True)
def snooze_once(context: TaskContext, path: str) -> int:
    if not Path(path).exists():
        Path(path).touch()
        raise Retry
    return context.attempt


@task()
def sleep(seconds: float) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        time.sleep(0.01)


@task()
async def sleep_async(seconds: float) -> None:
    await asyncio.sleep(seconds)


@task()
def write(text: str) -> None:
    note("wrote", text)


@task(takes_context=True)
def die_at_first(context: TaskContext, text: str) -> int:
    note("began", text, context.attempt, os.getpid())
    if context.attempt == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return context.attempt


@task()
def wait_for(path: str) -> str:
    note("waits", path, os.getpid())
    until = time.monotonic() + 60
    while not Path(path).exists() and time.monotonic() < until:
        time.sleep(0.01)
    return "seen"


@task()
def wait_and_fail(path: str) -> None:
    wait_for.func(path)
    raise ValueError("after all that waiting")


@task()
async def wait_async(path: str) -> str:
    return await asyncio.to_thread(wait_for.func, path)


@task()
def server_version() -> int:
    with connection.cursor() as cursor:
        cursor.execute("SELECT 7")
        return int(cursor.fetchone()[0])


@task()
def enqueue_another(text: str) -> str:
    from tests.tasks.shop import unlisted

    return unlisted.whisper.enqueue(text).id


def at_once(attempts: int) -> timedelta:
    """A backoff that does not wait."""
    return timedelta(0)
