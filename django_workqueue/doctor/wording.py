"""Durations and sizes in words, in the reader's language."""

from __future__ import annotations

from django.utils.translation import pgettext

from django_workqueue.figures import number


def ago(seconds: float) -> str:
    """A duration, to two digits or so."""
    for unit, size in (
        (pgettext("unit of time, day", "d"), 86_400),
        (pgettext("unit of time, hour", "h"), 3_600),
        (pgettext("unit of time, minute", "min"), 60),
    ):
        if seconds >= 2 * size:
            return f"{number(round(seconds / size))} {unit}"
    return f"{round(seconds)} {pgettext('unit of time, second', 's')}"


def megabytes(size: int) -> str:
    """A size."""
    return f"{number(size / 1024 / 1024, digits=1)} MB"
