"""Tasks by their module path: those that this process has seen, or can import, or a stand-in for one that is gone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from datetime import timedelta
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NoReturn

from django.utils.module_loading import import_string

from django_workqueue.backoff import Backoff

from . import options
from .native import InvalidTask, Task

if TYPE_CHECKING:
    AnyTask = Task[..., Any]
else:
    AnyTask = Task


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkqueueTask(AnyTask):
    """A task with options of its own, which go before those of its backend; None leaves them to it.

    `@task(max_attempts=5, backoff=..., timeout=...)` sets them, where `@task` takes keyword arguments: from Django
    6.1 on, and with the backport.
    """

    max_attempts: int | None = None
    backoff: Backoff | str | None = None
    timeout: timedelta | float | None = None

    def option(self, name: str) -> Any:
        """One of the options, read; None if it is not set."""
        value = getattr(self, name)
        return None if value is None else options.READERS[name](name, value)


OWN_OPTIONS = ("max_attempts", "backoff", "timeout")


def option(task: AnyTask, name: str, default: Any) -> Any:
    """An option of a task, of whatever class; `default` if it has none."""
    value = task.option(name) if isinstance(task, WorkqueueTask) else None
    return default if value is None else value


def check_options(task: AnyTask) -> None:
    """Raises `InvalidTask` for options that are not what they should be."""
    for name in OWN_OPTIONS:
        try:
            option(task, name, None)
        except (TypeError, ValueError) as error:
            raise InvalidTask(f"{error}.") from error


def variant(task: AnyTask, **changes: Any) -> AnyTask:
    """A task with other attributes. Not validated again: what was enqueued once may no longer be valid."""
    made = object.__new__(type(task))
    for each in fields(task):
        object.__setattr__(made, each.name, changes[each.name] if each.name in changes else getattr(task, each.name))
    return made


def find(path: str) -> AnyTask:
    """The task of that module path. Raises whatever its module raises, `ImportError` if there is no such task."""
    try:
        found = import_string(path)
    except ImportError:
        if path in seen:
            return seen[path]
        raise
    if isinstance(found, Task) and found.module_path == path:
        return found
    if path in seen:
        return seen[path]
    raise ImportError(f"{path} is no task, but {found!r:.100}")


def find_or_stand_in(path: str) -> AnyTask:
    """The task of that module path, or one that says that it is gone."""
    try:
        return find(path)
    except Exception:  # noqa: BLE001 - a module that cannot be imported may raise anything; the result is still there
        return _stand_in(path)


@lru_cache(maxsize=1000)
def _stand_in(path: str) -> AnyTask:
    module, _, name = path.rpartition(".")
    made = object.__new__(WorkqueueTask)
    for each in fields(WorkqueueTask):
        object.__setattr__(made, each.name, None)
    object.__setattr__(made, "func", _gone(module, name))
    object.__setattr__(made, "takes_context", False)
    return made


def _gone(module: str, name: str) -> Callable[..., NoReturn]:
    def gone(*_: Any, **__: Any) -> NoReturn:
        raise ImportError(f"the task {module}.{name} is gone: only the results of its runs are left")

    gone.__module__, gone.__qualname__, gone.__name__ = module, name, name
    return gone


seen: dict[str, AnyTask] = {}  # by module path: the tasks that were made, or enqueued, in this process
