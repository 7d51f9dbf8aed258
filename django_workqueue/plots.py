"""Plots drawn on the server, as SVG that a strict Content-Security-Policy lets through.

Colours come from the style sheet's classes; all that stands here are shapes, and text that is escaped. Knows nothing
of queues or tables.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from math import ceil, log10

from django.utils import formats, timezone
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString, mark_safe

Values = Sequence[float | None]
Tell = Callable[[float], str]

WIDTH, HEIGHT = 480, 200
LEFT, RIGHT, TOP, BOTTOM = 64, 12, 12, 28  # around the plot itself
NOTHING = "\N{EN DASH}"
SPARK_WIDTH, SPARK_HEIGHT = 120, 28


def sparkline(values: Values, *, label: str, kind: str) -> SafeString:
    """A line without axes. `label` says in words what it shows; `kind` is the class that colours it."""
    highest = max((value for value in values if value is not None), default=0)
    step = SPARK_WIDTH / max(len(values) - 1, 1)

    def place(position: int, value: float) -> str:
        up = (SPARK_HEIGHT - 4) * value / highest if highest else 0
        return f"{position * step:.1f},{SPARK_HEIGHT - 2 - up:.1f}"

    return format_html(
        '<svg class="wq-spark wq-{}" role="img" aria-label="{}" viewBox="0 0 {} {}" width="{}" height="{}"'
        ' preserveAspectRatio="none"><title>{}</title>{}</svg>',
        kind,
        label,
        SPARK_WIDTH,
        SPARK_HEIGHT,
        SPARK_WIDTH,
        SPARK_HEIGHT,
        label,
        _lines(values, place, SPARK_HEIGHT - 2),
    )


@dataclass(frozen=True, slots=True)
class Series:
    """What a plot shows of one thing: its name in the legend, and the class that colours it."""

    name: str
    values: Values
    kind: str


@dataclass(slots=True)
class Plot:
    """Series over time with axes, a legend and all of it as a table. `tell` puts a value into words, with its unit."""

    title: str
    description: str
    unit: str
    times: Sequence[datetime]
    series: Sequence[Series]
    tell: Tell
    stacked: bool = False
    marks: Sequence[tuple[int, str]] = field(default_factory=tuple)
    name: str = "plot"  # of its elements

    @property
    def highest(self) -> float:
        """The end of the scale."""
        columns = list(zip(*(series.values for series in self.series), strict=True))
        totals = [(sum if self.stacked else max)([value or 0 for value in column]) for column in columns]
        return max(totals, default=0)

    def svg(self) -> SafeString:
        """The drawing."""
        top, steps = scale(self.highest)
        height = HEIGHT - TOP - BOTTOM

        def up(value: float) -> float:
            return TOP + height - height * value / top

        ticks = [(LEFT - 8, up(step) + 4, self.tell(step), up(step)) for step in steps]
        grid = format_html_join(
            "",
            '<line class="wq-grid" x1="{}" x2="{}" y1="{}" y2="{}"/>'
            '<text class="wq-tick" x="{}" y="{}" text-anchor="end">{}</text>',
            ((LEFT, WIDTH - RIGHT, f"{line:.1f}", f"{line:.1f}", x, f"{y:.1f}", text) for x, y, text, line in ticks),
        )
        shapes = self._bars(up) if self.stacked else self._curves(up)
        return format_html(
            '<svg class="wq-plot" role="img" aria-labelledby="{0}-title {0}-text" viewBox="0 0 {1} {2}">'
            '<title id="{0}-title">{3}</title><desc id="{0}-text">{4}</desc>{5}{6}{7}</svg>',
            self.name,
            WIDTH,
            HEIGHT,
            self.title,
            self.description,
            grid,
            self._marks(),
            shapes,
        )

    def rows(self) -> Iterator[tuple[str, list[str]]]:
        """The same as a table: a time and the values told, newest first."""
        for position in reversed(range(len(self.times))):
            values = [series.values[position] for series in self.series]
            yield told_time(self.times[position]), [NOTHING if value is None else self.tell(value) for value in values]

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to see."""
        return not any(value for series in self.series for value in series.values)

    def _x(self, position: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * position / max(len(self.times), 1)

    def _marks(self) -> SafeString:
        axis = HEIGHT - BOTTOM
        return format_html_join(
            "",
            '<line class="wq-axis" x1="{0}" x2="{0}" y1="{1}" y2="{2}"/>'
            '<text class="wq-tick" x="{0}" y="{3}" text-anchor="middle">{4}</text>',
            ((f"{self._x(position):.1f}", axis, axis + 4, HEIGHT - 8, text) for position, text in self.marks),
        )

    def _bars(self, up: Callable[[float], float]) -> SafeString:
        shapes = []
        width = max(self._x(1) - self._x(0) - 1, 1)
        below = [0.0] * len(self.times)
        for series in self.series:
            for position, value in enumerate(series.values):
                if value:
                    low, high = up(below[position]), up(below[position] + value)
                    below[position] += value
                    shapes.append(
                        (series.kind, f"{self._x(position):.1f}", f"{high:.1f}", f"{width:.1f}", f"{low - high:.1f}")
                    )
        return format_html_join("", '<rect class="wq-{}" x="{}" y="{}" width="{}" height="{}"/>', shapes)

    def _curves(self, up: Callable[[float], float]) -> SafeString:
        def place(position: int, value: float) -> str:
            return f"{self._x(position + 0.5):.1f},{up(value):.1f}"

        return format_html_join(
            "", '<g class="wq-{}">{}</g>', ((series.kind, _lines(series.values, place)) for series in self.series)
        )


def _lines(values: Values, place: Callable[[int, float], str], floor: float | None = None) -> SafeString:
    """A line through each run of values that are there, a dot for one that stands alone; filled down to `floor`."""
    parts = []
    for run in _runs(values):
        points = [place(position, value) for position, value in run]
        if len(points) == 1:
            x, y = points[0].split(",")
            parts.append(format_html('<circle class="wq-dot" cx="{}" cy="{}" r="2"/>', x, y))
            continue
        if floor is not None:
            start, end = points[0].split(",")[0], points[-1].split(",")[0]
            area = f"{start},{floor} {' '.join(points)} {end},{floor}"
            parts.append(format_html('<polygon class="wq-area" points="{}"/>', area))
        parts.append(format_html('<polyline class="wq-line" points="{}"/>', " ".join(points)))
    return mark_safe("".join(parts))  # noqa: S308 - each part is formatted above


def _runs(values: Values) -> Iterator[list[tuple[int, float]]]:
    run: list[tuple[int, float]] = []
    for position, value in enumerate(values):
        if value is not None:
            run.append((position, value))
        elif run:
            yield run
            run = []
    if run:
        yield run


def scale(highest: float) -> tuple[float, list[float]]:
    """The end of a scale that reaches `highest`, and its steps: of 1, 2 or 5 times a power of ten."""
    if highest <= 0:
        return 1, [0]
    power = 10.0 ** ceil(log10(highest) - 1)
    step = next(step for step in (power / 5, power / 2, power, power * 2, power * 5) if highest / step <= 5)
    count = ceil(highest / step)
    return step * count, [step * position for position in range(count + 1)]


def local(moment: datetime) -> datetime:
    """A moment in the reader's zone, where times have zones."""
    return timezone.localtime(moment) if timezone.is_aware(moment) else moment


def time_marks(times: Sequence[datetime], *, every: int) -> list[tuple[int, str]]:
    """Which buckets to mark below the axis, and how: every so many minutes, by the clock or the day."""
    marks: list[tuple[int, str]] = []
    last = None
    for position, moment in enumerate(times):
        here = local(moment)
        slot = (here.toordinal() * 1440 + here.hour * 60 + here.minute) // every
        if last is not None and slot != last:
            minute = slot * every % 1440
            told = formats.date_format(here, "D j") if every >= 1440 else f"{minute // 60:02}:{minute % 60:02}"
            marks.append((position, told))
        last = slot
    return marks


def told_time(moment: datetime) -> str:
    """A moment in the reader's zone and format."""
    here = local(moment)
    return str(formats.date_format(here, "SHORT_DATETIME_FORMAT"))
