"""Durations and sizes in words."""

from __future__ import annotations


def ago(seconds: float) -> str:
    """A duration, to two digits or so."""
    for unit, size in (("days", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"


def megabytes(size: int) -> str:
    """A size."""
    return f"{size / 1024 / 1024:,.1f} MB"
