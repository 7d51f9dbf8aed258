"""What `OPTIONS` of a backend, and the keyword arguments of a task, may say: read, checked, and with their defaults.

Knows nothing of tasks or queues.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Collection, Hashable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.utils.module_loading import import_string

from django_workqueue import arguments
from django_workqueue.backoff import Backoff, exponential


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The `OPTIONS` of one alias. Durations may be given as a `timedelta` or in seconds."""

    max_attempts: int = 1
    backoff: Backoff = exponential()
    timeout: timedelta | None = None
    retention: timedelta | None = None  # None: the queue's own
    lease: timedelta = timedelta(seconds=60)
    database: str | None = None  # None: WORKQUEUE_DATABASE

    @classmethod
    def read(cls, alias: str, setting: Mapping[str, Any]) -> Options:
        """The options of what `TASKS` says of an alias. Raises `ImproperlyConfigured` for the first that is wrong."""
        given = setting.get("OPTIONS", {})
        for problem in problems(given):
            raise ImproperlyConfigured(f"TASKS[{alias!r}]['OPTIONS']: {problem}")
        if not are_names(setting.get("QUEUES", [])):
            raise ImproperlyConfigured(f"TASKS[{alias!r}]['QUEUES'] is a list of names, not {setting['QUEUES']!r}.")
        return cls(**{name: READERS[name](name, value) for name, value in given.items()})


def are_names(given: object) -> bool:
    """Whether `QUEUES` may be that. Which names a queue can have is another question."""
    if not isinstance(given, Collection) or isinstance(given, (str, bytes, Mapping)):
        return False
    return all(isinstance(name, Hashable) for name in given)


def problems(given: object) -> list[str]:
    """What is wrong with options, each in a sentence."""
    if not isinstance(given, Mapping):
        return [f"it is a dict, not {given!r}."]
    found = []
    for name, value in given.items():
        if name not in READERS:
            near = difflib.get_close_matches(str(name), READERS, n=1, cutoff=0)[0]
            found.append(f"there is no option {name!r}; the nearest is {near!r}. All: {', '.join(sorted(READERS))}.")
            continue
        try:
            READERS[name](name, value)
        except (TypeError, ValueError) as error:
            found.append(f"{error}.")
    return found


def attempts(name: str, value: object) -> int:
    """How often a task is tried at most."""
    return arguments.whole(name, value, least=1)


def backoff(name: str, value: object) -> Backoff:
    """A backoff, or the dotted path of one, which is imported when it is first needed."""
    if isinstance(value, str) and all(part.isidentifier() for part in value.split(".")) and "." in value:
        return Imported(value)
    if not callable(value):
        raise TypeError(f"{name} is a callable that takes the number of attempts, or its dotted path, not {value!r}")
    return value


def positive(name: str, value: object) -> timedelta:
    """A duration of more than zero."""
    length = _duration(name, value)
    if length <= timedelta(0):
        raise ValueError(f"{name} is positive; got {value!r}")
    return length


def positive_or_none(name: str, value: object) -> timedelta | None:
    """A duration of more than zero, or none."""
    return None if value is None else positive(name, value)


def not_negative(name: str, value: object) -> timedelta:
    """A duration of zero or more."""
    length = _duration(name, value)
    if length < timedelta(0):
        raise ValueError(f"{name} is not negative; got {value!r}")
    return length


def text(name: str, value: object) -> str:
    """A name."""
    if not isinstance(value, str):
        raise TypeError(f"{name} is a str, not {value!r}")
    return value


def _duration(name: str, value: object) -> timedelta:
    length = value
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        try:
            length = timedelta(seconds=value)
        except (ValueError, OverflowError):  # NaN, or a number beyond all bounds
            raise ValueError(f"{name} is a timedelta or number of seconds, not {value!r}") from None
    if not isinstance(length, timedelta):
        raise TypeError(f"{name} is a timedelta or number of seconds, not {value!r}")
    return arguments.duration(name, length)


@dataclass(frozen=True, slots=True)
class Imported:
    """A backoff by its dotted path: the module that it is in may not be ready when the options are read."""

    path: str

    def __call__(self, attempts: int) -> timedelta:
        delay: timedelta = self.load()(attempts)
        return delay

    def load(self) -> Callable[[int], Any]:
        """The callable. Raises `ImportError`, or `TypeError` if it is none."""
        found = import_string(self.path)
        if not callable(found):
            raise TypeError(f"{self.path} is not callable: {found!r}")
        return found  # type: ignore[no-any-return]


READERS: dict[str, Callable[[str, object], Any]] = {
    "max_attempts": attempts,
    "backoff": backoff,
    "timeout": positive_or_none,
    "retention": not_negative,
    "lease": positive,
    "database": text,
}
