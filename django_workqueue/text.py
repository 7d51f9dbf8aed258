"""Text of strangers' making, fit for the database: errors, their messages and tracebacks."""

from __future__ import annotations

from collections.abc import Mapping
from traceback import TracebackException, format_exception, format_tb
from types import TracebackType
from typing import Any

MAX_ERROR = 2000  # characters


def cut(text: str, most: int = MAX_ERROR, *, keep_end: bool = False) -> str:
    """The text without what PostgreSQL cannot store, and no longer than `most`; of a long one the start, or the end."""
    clean = text.replace("\x00", "\\x00").encode("utf-8", "backslashreplace").decode()
    if len(clean) <= most:
        return clean
    return "…" + clean[1 - most :] if keep_end else clean[:most]


def error_text(error: BaseException | str | None) -> str | None:
    """`Type: message`, as an item keeps it."""
    if error is None:
        return None
    return cut(f"{type(error).__name__}: {message(error)}" if isinstance(error, BaseException) else error)


def message(error: BaseException) -> str:
    """What the error says of itself, even where its own `__str__` or attributes fail."""
    try:
        return str(TracebackException(type(error), error, None, lookup_lines=False, compact=True))
    except BaseException as fault:  # noqa: BLE001 - the user's exceptions, which may raise whatever is asked of them
        return f"<what it says cannot be shown: {type(fault).__name__}>"


def shown(error: BaseException) -> str:
    """The error with its traceback and what it comes from, as far as these can be shown."""
    try:
        return "".join(format_exception(error))
    except BaseException:  # noqa: BLE001 - as above
        return "".join(format_tb(traceback_of(error))) + f"{exception_path(error)}: {message(error)}\n"


def traceback_of(error: BaseException) -> TracebackType | None:
    """Where the error was raised, whatever its class makes of that attribute."""
    found: TracebackType | None = vars(BaseException)["__traceback__"].__get__(error)
    return found


def exception_path(error: BaseException) -> str:
    """The dotted path of an exception's class."""
    kind = type(error)
    return f"{kind.__module__}.{kind.__qualname__}"


def told(entry: Mapping[str, Any]) -> str:
    """An entry of a job's error history as `Type: message`."""
    return f"{str(entry.get('type', '')).rpartition('.')[2]}: {entry.get('message', '')}"
