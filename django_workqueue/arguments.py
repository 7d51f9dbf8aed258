"""Checks of arguments, at the edge: what was given, and what is wanted."""

from collections.abc import Iterable, Mapping
from datetime import timedelta
from numbers import Real
from typing import TypeVar, cast

T = TypeVar("T")

LONGEST = timedelta(days=365_250)  # a thousand years; beyond it lies the end of the server's calendar
MAX_WHOLE = 2**31 - 1


def several(name: str, values: Iterable[T], *, one: str) -> Iterable[T]:
    """Any number of `one`. Raises `TypeError` for what would silently be taken apart: a text, or a mapping."""
    if isinstance(values, (str, bytes, bytearray, Mapping)):
        raise TypeError(
            f"{name} is a list or another iterable, with a {one} each, not a {type(values).__qualname__}. "
            f"To give a single {one}, put it into a list."
        )
    return values


def whole(name: str, value: object, *, least: int, most: int = MAX_WHOLE) -> int:
    """A whole number of at least `least`. Raises `TypeError` or `ValueError`."""
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"{name} is a whole number, not {value!r}")
    if not least <= value <= most:
        raise ValueError(f"{name} lies between {least} and {most}; got {value}")
    return int(value)  # of an enum's member its value, whatever str() says


def duration(name: str, value: object) -> timedelta:
    """A timedelta, negative or not. Raises `TypeError` or `ValueError`."""
    if not isinstance(value, timedelta):
        raise TypeError(f"{name} is a timedelta, not {value!r}")
    if value > LONGEST:
        raise ValueError(f"{name} is at most a thousand years; got {value}")
    return value


def seconds(name: str, value: object) -> float:
    """A number of seconds. Raises `TypeError`."""
    if isinstance(value, bool) or not isinstance(value, (float, int, Real)):
        raise TypeError(f"{name} is a number of seconds, not {value!r}")
    return cast("float", value)


def delay(value: object) -> timedelta:
    """A delay: negative ones count as none."""
    return max(duration("delay", value), timedelta(0))


def not_negative(name: str, value: object) -> timedelta:
    """A timedelta of zero or more."""
    checked = duration(name, value)
    if checked < timedelta(0):
        raise ValueError(f"{name} is not negative; got {value}")
    return checked


def positive(name: str, value: object) -> timedelta:
    """A timedelta of more than zero."""
    checked = duration(name, value)
    if checked <= timedelta(0):
        raise ValueError(f"{name} is positive; got {value}")
    return checked
