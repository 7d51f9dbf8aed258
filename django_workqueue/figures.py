"""How figures are told to people: counts, ages and shares, in the reader's language.

Knows nothing of queues.
"""

from __future__ import annotations

from datetime import timedelta
from math import floor, log10

from django.utils.formats import number_format
from django.utils.translation import gettext, pgettext

EXACT_TO = 10_000  # counts beyond are estimates
NOTHING = "\N{EN DASH}"


def visible(text: str) -> str:
    """Text with escapes in place of what cannot be seen, or would turn the rest around."""
    if text.isprintable():
        return text
    return "".join(letter if letter.isprintable() else f"\\x{ord(letter):02x}" for letter in text)


def number(value: float, *, digits: int = 0) -> str:
    """A number with the separators of the reader's language."""
    return str(number_format(value, digits, use_l10n=True, force_grouping=True))


def count(value: int) -> str:
    """A count that is exact up to 10,000 and an estimate beyond: "≈ 1,230,000"."""
    if value <= EXACT_TO:
        return number(value)
    step = 10 ** (floor(log10(value)) - 2)
    return f"≈ {number(round(value / step) * step)}"


def age(duration: timedelta) -> str:
    """A duration to two units: "3 min 20 s"."""
    seconds = max(round(duration.total_seconds()), 0)
    for one, unit, part, smaller in (
        (86_400, pgettext("unit of time, day", "d"), 3_600, pgettext("unit of time, hour", "h")),
        (3_600, pgettext("unit of time, hour", "h"), 60, pgettext("unit of time, minute", "min")),
        (60, pgettext("unit of time, minute", "min"), 1, pgettext("unit of time, second", "s")),
    ):
        if seconds >= one:
            rest = seconds % one // part
            return f"{number(seconds // one)} {unit}" + (f" {rest} {smaller}" if rest else "")
    return f"{seconds} {pgettext('unit of time, second', 's')}"


def duration(microseconds: float | None) -> str:
    """A measured duration to two or three digits: "12 ms", "3.4 s". A dash for none."""
    if microseconds is None:
        return NOTHING
    milliseconds = microseconds / 1_000
    if not milliseconds:
        return "0"
    if milliseconds < 1_000:
        return f"{number(milliseconds, digits=1 if milliseconds < 10 else 0)} ms"
    if milliseconds < 60_000:
        unit = pgettext("unit of time, second", "s")
        return f"{number(milliseconds / 1_000, digits=1 if milliseconds < 10_000 else 0)} {unit}"
    return age(timedelta(milliseconds=milliseconds))


def share(fraction: float | None) -> str:
    """A share in percent. A dash for none."""
    if fraction is None:
        return NOTHING
    percent = fraction * 100
    digits = 1 if 0 < percent < 10 else 0
    return gettext("%(number)s %%") % {"number": number(percent, digits=digits)}
