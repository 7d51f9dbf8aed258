"""The settings, read and judged at each use."""

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, cast

from django.conf import Settings, settings
from django.core.exceptions import ImproperlyConfigured
from django.utils.module_loading import import_string

DEFAULTS: dict[str, Any] = {
    "WORKQUEUE_DATABASE": "default",
    "WORKQUEUE_NOTIFY": True,
    "WORKQUEUE_LISTEN_DATABASE": None,
    "WORKQUEUE_POLL_INTERVAL": timedelta(seconds=5),
    "WORKQUEUE_ENQUEUE_TIMEOUT": timedelta(seconds=10),
    "WORKQUEUE_BATCH_MAX": 1000,
    "WORKQUEUE_MIDDLEWARE": [],
    "WORKQUEUE_AUTODISCOVER": "tasks",
    "WORKQUEUE_HISTORY": timedelta(days=7),
}


_NO_TIME = timedelta(0)


def _setting(name: str) -> Any:
    # Every enqueue asks for some. Asked for what it does not have, `settings` takes as long as the rest of the
    # bookkeeping together; where nothing overrides a project's own settings, they are plain attributes.
    plain = object.__getattribute__(settings, "_wrapped")
    if type(plain) is Settings:
        return plain.__dict__.get(name, DEFAULTS[name])
    return getattr(settings, name, DEFAULTS[name])


def _duration(name: str) -> timedelta:
    value = length = _setting(name)
    if type(value) is timedelta and value > _NO_TIME:
        return value
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        try:
            length = timedelta(seconds=value)
        except (ValueError, OverflowError):  # NaN, or a number beyond all bounds
            length = None
    if not isinstance(length, timedelta) or length <= timedelta(0):
        raise ImproperlyConfigured(f"{name} must be a positive timedelta or number of seconds, not {value!r}")
    return length


def database() -> str:
    """The alias that holds the queues."""
    return str(_setting("WORKQUEUE_DATABASE"))


def notify() -> bool:
    """Whether enqueues wake idle workers through NOTIFY."""
    return bool(_setting("WORKQUEUE_NOTIFY"))


def listen_database() -> str | None:
    """The alias to LISTEN on, where the queues' own goes through a transaction-pooling proxy."""
    alias: str | None = _setting("WORKQUEUE_LISTEN_DATABASE")
    return alias


def listen_alias(alias: str) -> str:
    """Where to LISTEN for what is sent on `alias`: the setting stands in for the queues' own, and for no other."""
    return (listen_database() or alias) if alias == database() else alias


def poll_interval() -> timedelta:
    """How often an idle worker looks without having been woken."""
    return _duration("WORKQUEUE_POLL_INTERVAL")


def enqueue_timeout() -> timedelta:
    """How long an enqueue waits for its group commit before `EnqueueTimeout`."""
    return _duration("WORKQUEUE_ENQUEUE_TIMEOUT")


def batch_max() -> int:
    """The most entries of one group-committed statement."""
    value = _setting("WORKQUEUE_BATCH_MAX")
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ImproperlyConfigured(f"WORKQUEUE_BATCH_MAX must be a positive integer, not {value!r}")
    return value


def middleware() -> Sequence[str | Callable[..., Any]]:
    """Dotted paths of the middleware around each handler; the first is outermost."""
    paths = _setting("WORKQUEUE_MIDDLEWARE")
    if isinstance(paths, str) or not isinstance(paths, Sequence):
        raise ImproperlyConfigured(f"WORKQUEUE_MIDDLEWARE must be a list of dotted paths, not {paths!r}")
    return paths


def middleware_factory(entry: Any) -> Callable[..., Any]:
    """What makes a middleware, of an entry of that list. Raises `ImproperlyConfigured` saying why nothing does."""
    try:
        factory = import_string(entry) if isinstance(entry, str) else entry
    except Exception as error:
        raise ImproperlyConfigured(f"middleware {entry} cannot be imported: {in_words(error)}") from error
    if not callable(factory):
        raise ImproperlyConfigured(f"{entry} is no middleware: it cannot be called")
    if not getattr(factory, "sync_capable", True) and not getattr(factory, "async_capable", False):
        raise ImproperlyConfigured(f"middleware {entry} is neither sync_capable nor async_capable")
    return cast("Callable[..., Any]", factory)


def in_words(error: Exception) -> str:
    """What went wrong with a project's code: in its own words, or if those need it with its type."""
    return str(error) if isinstance(error, (ImproperlyConfigured, ImportError)) else f"{type(error).__name__}: {error}"


def autodiscover() -> str | None:
    """The module of each installed app that is imported to find handlers; None finds nothing."""
    module = _setting("WORKQUEUE_AUTODISCOVER")
    if module is not None and not isinstance(module, str):
        raise ImproperlyConfigured(f"WORKQUEUE_AUTODISCOVER must be the name of a module or None, not {module!r}")
    return module


def history() -> timedelta:
    """How long minute counters are kept."""
    return _duration("WORKQUEUE_HISTORY")
