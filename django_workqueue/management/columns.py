"""How figures are written for a terminal: durations, numbers, aligned columns."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta


def duration(length: timedelta) -> str:
    """Two units at most: `850 ms`, `12 s`, `3 min 5 s`, `2 h 14 min`, `3 d 4 h`; `-` for none."""
    if length <= timedelta(0):
        return "-"
    if length < timedelta(seconds=1):
        return f"{length // timedelta(milliseconds=1)} ms"
    minutes, seconds = divmod(length // timedelta(seconds=1), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    parts = [(days, "d"), (hours, "h"), (minutes, "min"), (seconds, "s")]
    while parts[0][0] == 0:
        del parts[0]
    return " ".join(f"{value} {unit}" for value, unit in parts[:2] if value)


def number(count: int, *, exact_to: int | None) -> str:
    """With separators; an estimate, above `exact_to`, with a tilde and three digits of it."""
    if exact_to is None or count <= exact_to:
        return f"{count:,}"
    return f"~{round(count, 3 - len(str(count))):,}"


def aligned(head: Sequence[str], rows: Sequence[Sequence[str]], *, left: int) -> list[str]:
    """Lines of columns two spaces apart: the first `left` of them flush left, the others right."""
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    return [
        "  ".join(
            cell.ljust(width) if place < left else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in (head, *rows)
    ]
