"""What the dashboard shows, put together: each queue's numbers, its last hour, the plots and the workers.

Knows nothing of requests or templates.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Generic, TypeVar

from django.utils.safestring import SafeString
from django.utils.translation import gettext as _

from . import figures, history, inventory, plots
from .forks import Lock
from .history import DAY, HOUR, WEEK, Counts, History, Span, Worker
from .stats import QueueStats

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

LATE = timedelta(minutes=1)  # a ready piece of work that has waited so long wants to be looked at …
TOO_LATE = timedelta(minutes=10)  # … and one that has waited so long is somebody's trouble
SILENT = timedelta(seconds=60)  # a worker that has not been seen for so long is probably gone
FRACTIONS = (0.5, 0.95)

BUDGET = 0.01  # seconds that figures known from a moment ago are looked up anew in
KEPT = 60.0  # seconds for which a figure is good enough meanwhile
CHARTS_KEPT = {HOUR: 0.0, DAY: 60.0, WEEK: 600.0}  # a long past changes slowly
CHARTS_MOST = 256  # queues and spans come and go


class Memory(Generic[K, V]):
    """What this process found out, and when; of `most` things, or of as many as there are. Thread-safe."""

    def __init__(self, most: int | None = None) -> None:
        self._most = most
        self._lock = Lock()  # guards _known
        self._known: dict[K, tuple[float, V]] = {}

    def keep(self, key: K, value: V) -> V:
        """Remember, and forget the oldest of too much."""
        with self._lock:
            self._known.pop(key, None)
            self._known[key] = time.monotonic(), value
            while self._most is not None and len(self._known) > self._most:
                del self._known[next(iter(self._known))]
        return value

    def recall(self, key: K, most: float) -> V | None:
        """What is known, if that is not older than `most` seconds."""
        with self._lock:
            at, value = self._known.get(key, (0.0, None))
        return value if value is not None and time.monotonic() - at < most else None

    def age(self, key: K) -> float:
        """How long ago it was found out, in seconds."""
        with self._lock:
            at, _value = self._known.get(key, (-math.inf, None))
        return time.monotonic() - at

    def forget(self, unwanted: Callable[[K], bool] = lambda _key: True) -> None:
        """Forget it all, or what is unwanted."""
        with self._lock:
            for key in list(filter(unwanted, self._known)):
                del self._known[key]


_figures: Memory[tuple[str, str], QueueStats] = Memory()
_pasts: Memory[tuple[str, Span, str | None], History] = Memory(CHARTS_MOST)


def forget() -> None:
    """Let the next look find everything out anew."""
    _figures.forget()
    _pasts.forget()


@dataclass(frozen=True, slots=True)
class QueueView:
    """One queue: how it stands, and what its last hour was like."""

    queue: inventory.KnownQueue
    stats: QueueStats
    counts: Counts

    @property
    def name(self) -> str:
        """The queue's name."""
        return self.queue.name

    @property
    def mood(self) -> str:
        """How the oldest ready age is to be taken: "idle", "good", "late" or "too-late"."""
        if not self.stats.ready:
            return "idle"
        if self.stats.oldest_ready_age >= TOO_LATE:
            return "too-late"
        return "late" if self.stats.oldest_ready_age >= LATE else "good"

    @property
    def throughput(self) -> SafeString:
        """How many were completed each minute."""
        done = self.counts.completed
        label = _("Completed per minute in the last hour: %(last)s at last, %(most)s at most, %(sum)s in all")
        told = {
            "last": figures.number(done[-1]),
            "most": figures.number(max(done)),
            "sum": figures.number(sum(done)),
        }
        return plots.sparkline([float(value) for value in done], label=label % told, kind="completed")

    @property
    def failures(self) -> SafeString:
        """Which share of the attempts failed."""
        rates = self.counts.failure_rates()
        label = _("Share of attempts that failed in the last hour: %(all)s overall, %(most)s at most")
        told = {"all": self.failure_rate, "most": figures.share(max((rate for rate in rates if rate), default=0))}
        return plots.sparkline(rates, label=label % told, kind="failed")

    @property
    def waits(self) -> SafeString:
        """How long work had waited for its start."""
        waits = self.counts.mean_waits()
        label = _("Time waited before the start in the last hour: %(all)s on average, %(most)s at most by the minute")
        told = {
            "all": self.mean_wait,
            "most": figures.duration(max((wait for wait in waits if wait is not None), default=None)),
        }
        return plots.sparkline(waits, label=label % told, kind="wait")

    @property
    def per_minute(self) -> str:
        """Completed per minute, over the hour."""
        mean = sum(self.counts.completed) / HOUR.minutes
        return figures.number(mean, digits=1 if 0 < mean < 10 else 0)

    @property
    def failure_rate(self) -> str:
        """The share of attempts that failed, over the hour."""
        ended = sum(self.counts.failed) + sum(self.counts.completed)
        return figures.share(sum(self.counts.failed) / ended if ended else None)

    @property
    def mean_wait(self) -> str:
        """The mean wait, over the hour."""
        started = sum(self.counts.started)
        return figures.duration(sum(self.counts.wait) / started if started else None)


def queue_views(alias: str, names: Sequence[str] = ()) -> list[QueueView]:
    """The queues of an alias (of these names, or all), each with its last hour. Raises `UnknownQueue`."""
    known = inventory.queues(names, using=alias)
    past = history.history(alias, HOUR, queue=names[0] if len(names) == 1 else None)
    stats = _stats(known)
    if not names:
        _figures.forget(lambda key: key[0] == alias and key[1] not in stats)  # the queue is gone
    return [QueueView(queue, stats[queue.name], past.of(queue.name)) for queue in known]


def _stats(known: Sequence[inventory.KnownQueue]) -> dict[str, QueueStats]:
    """The figures of queues on one alias: those that are not known, and of the others the oldest, are looked up."""
    found: dict[str, QueueStats] = {}
    deadline = time.monotonic() + BUDGET
    for queue in sorted(known, key=lambda queue: -_figures.age((queue.alias, queue.name))):
        key = queue.alias, queue.name
        remembered = None if time.monotonic() < deadline else _figures.recall(key, KEPT)
        found[queue.name] = remembered or _figures.keep(key, queue.stats())
    return found


def live_workers(alias: str) -> list[Worker]:
    """The workers that were seen not long ago."""
    return [worker for worker in history.workers(alias) if worker.silence < SILENT]


def charts(alias: str, span: Span, queue: str | None = None) -> tuple[History, list[plots.Plot]]:
    """The plots over a span, of one queue or (None) of all together."""
    key = alias, span, queue
    past = _pasts.recall(key, CHARTS_KEPT[span])
    if past is None:
        past = _pasts.keep(key, history.history(alias, span, queue=queue, fractions=FRACTIONS))
    counts = past.total()
    times = [past.start_of(bucket) for bucket in range(span.buckets)]
    marks = plots.time_marks(times, every=_MARKS[span])
    per = {HOUR: _("per minute"), DAY: _("per 15 minutes"), WEEK: _("per 2 hours")}[span]
    failed = [max(failed - dead, 0) for failed, dead in zip(counts.failed, counts.dead, strict=True)]
    ended = plots.Plot(
        title=_("Throughput and failures"),
        description=_("%(completed)s completed, %(failed)s failed and to be tried again, %(dead)s dead")
        % {
            "completed": figures.number(sum(counts.completed)),
            "failed": figures.number(sum(failed)),
            "dead": figures.number(sum(counts.dead)),
        },
        unit=per,
        times=times,
        series=[
            plots.Series(_("completed"), counts.completed, "completed"),
            plots.Series(_("failed, to be tried again"), failed, "failed"),
            plots.Series(_("dead or stalled"), counts.dead, "dead"),
        ],
        tell=lambda value: figures.number(value, digits=0 if float(value).is_integer() else 1),
        stacked=True,
        marks=marks,
        name="wq-ended",
    )
    return past, [
        ended,
        _durations(past, "wait", _("Wait: from when work was due to its start"), times, marks),
        _durations(past, "run", _("Run: from the start to the end of an attempt"), times, marks),
    ]


def _durations(
    past: History, what: str, title: str, times: Sequence[datetime], marks: list[tuple[int, str]]
) -> plots.Plot:
    median, high = (past.quantiles[what][fraction] for fraction in FRACTIONS)
    return plots.Plot(
        title=title,
        description=_("The median was %(median)s at most, the 95th percentile %(high)s at most")
        % {
            "median": figures.duration(max((value for value in median if value is not None), default=None)),
            "high": figures.duration(max((value for value in high if value is not None), default=None)),
        },
        unit=_("time"),
        times=times,
        series=[
            plots.Series(_("p95 (19 of 20 were faster)"), high, "p95"),
            plots.Series(_("p50 (half were faster)"), median, "p50"),
        ],
        tell=figures.duration,
        marks=marks,
        name=f"wq-{what}",
    )


_MARKS = {
    HOUR: 10,
    DAY: 240,
    WEEK: 1440,
}
