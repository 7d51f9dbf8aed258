"""The settings, judged once and again whenever Django says that one has changed, as `override_settings` has it do."""

from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import cache
from typing import Any, TypeVar

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.core.signals import setting_changed

T = TypeVar("T")

DEFAULTS: dict[str, Any] = {
    "WORKQUEUE_DATABASE": "default",
    "WORKQUEUE_NOTIFY": True,
    "WORKQUEUE_LISTEN_DATABASE": None,
    "WORKQUEUE_POLL_INTERVAL": timedelta(seconds=5),
    "WORKQUEUE_ENQUEUE_TIMEOUT": timedelta(seconds=10),
    "WORKQUEUE_BATCH_MAX": 1000,
    "WORKQUEUE_MIDDLEWARE": (),
    "WORKQUEUE_AUTODISCOVER": "tasks",
    "WORKQUEUE_HISTORY": timedelta(days=7),
}


_forgets: list[Callable[[], None]] = []


def _kept(read: Callable[[], T]) -> Callable[[], T]:
    """Keep what it returns: looking a setting up costs as much as the rest of an enqueue's bookkeeping."""
    kept = cache(read)
    _forgets.append(kept.cache_clear)
    return kept


def _changed(**_: Any) -> None:
    for forget in _forgets:
        forget()


setting_changed.connect(_changed)


def _setting(name: str) -> Any:
    return getattr(settings, name, DEFAULTS[name])


def _duration(name: str) -> timedelta:
    value = _setting(name)
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        value = timedelta(seconds=value)
    if not isinstance(value, timedelta) or value <= timedelta(0):
        raise ImproperlyConfigured(f"{name} must be a positive timedelta or number of seconds, not {value!r}")
    return value


@_kept
def database() -> str:
    """The alias that holds the queues."""
    return str(_setting("WORKQUEUE_DATABASE"))


@_kept
def notify() -> bool:
    """Whether enqueues wake idle workers through NOTIFY."""
    return bool(_setting("WORKQUEUE_NOTIFY"))


@_kept
def listen_database() -> str | None:
    """The alias to LISTEN on, where the queues' own goes through a transaction-pooling proxy."""
    alias: str | None = _setting("WORKQUEUE_LISTEN_DATABASE")
    return alias


@_kept
def poll_interval() -> timedelta:
    """How often an idle worker looks without having been woken."""
    return _duration("WORKQUEUE_POLL_INTERVAL")


@_kept
def enqueue_timeout() -> timedelta:
    """How long an enqueue waits for its group commit before `EnqueueTimeout`."""
    return _duration("WORKQUEUE_ENQUEUE_TIMEOUT")


@_kept
def batch_max() -> int:
    """The most entries of one group-committed statement."""
    value = _setting("WORKQUEUE_BATCH_MAX")
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ImproperlyConfigured(f"WORKQUEUE_BATCH_MAX must be a positive integer, not {value!r}")
    return value


@_kept
def middleware() -> Sequence[str | Callable[..., Any]]:
    """Dotted paths of the middleware around each handler; the first is outermost."""
    paths = _setting("WORKQUEUE_MIDDLEWARE")
    if isinstance(paths, str) or not isinstance(paths, Sequence):
        raise ImproperlyConfigured(f"WORKQUEUE_MIDDLEWARE must be a list of dotted paths, not {paths!r}")
    return paths


@_kept
def autodiscover() -> str | None:
    """The module of each installed app that is imported to find handlers; None finds nothing."""
    module = _setting("WORKQUEUE_AUTODISCOVER")
    if module is not None and not isinstance(module, str):
        raise ImproperlyConfigured(f"WORKQUEUE_AUTODISCOVER must be the name of a module or None, not {module!r}")
    return module


@_kept
def history() -> timedelta:
    """How long minute counters are kept."""
    return _duration("WORKQUEUE_HISTORY")
