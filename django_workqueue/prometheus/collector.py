"""What Prometheus is told: gauges from bounded stats, counters and histograms from the minute counters.

Asks the database on the calling thread's Django connection, at a cost that does not depend on how much it holds.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from time import monotonic

from django.db import DatabaseError, InterfaceError, connections
from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

from django_workqueue import conf, database, histogram, inventory, unmigrated
from django_workqueue.forks import Lock
from django_workqueue.inventory import KnownQueue
from django_workqueue.sql import Statement, exports
from django_workqueue.stats import QueueStats

from .totals import Total, Totals

logger = logging.getLogger("django_workqueue")

BUDGET = 0.025  # seconds of one scrape that go into stats; the others are those of an earlier one
STATES = ("ready", "scheduled", "leased", "stalled", "completed")
QUEUE = ("database", "queue")
KIND = ("database", "queue", "kind")
COUNTERS = {
    "enqueued": "Enqueued, whether or not they were waiting already.",
    "started": "Runs of a handler that began.",
    "completed": "Runs that completed.",
    "failed": "Runs that raised.",
    "dead": "Out of attempts, or failed for good: stalled items, dead jobs.",
    "reclaimed": "Taken over from a lease that had lapsed.",
    "lost": "Outcomes that were dropped because their lease was lost.",
}
EACH = 4  # every fourth bucket: two neighbours differ by a factor of four


class WorkqueueCollector(Collector):
    """Register it: `REGISTRY.register(WorkqueueCollector())`. `using` keeps it to one database alias.

    What it says is of the whole database, not of its process. Counters begin at 0 with its first scrape. A database
    that does not answer is `workqueue_up 0`; nothing is raised.
    """

    def __init__(self, using: str | None = None) -> None:
        self._using = using
        self._lock = Lock()  # guards the rest
        self._totals: dict[str, Totals] = {}
        self._known: dict[tuple[str, str], KnownQueue] = {}
        self._stats: dict[tuple[str, str], tuple[QueueStats, float]] = {}  # with when they were taken
        self._said = False
        self.is_kept_fresh = False  # whether somebody calls `refresh` between scrapes

    def describe(self) -> Sequence[Metric]:
        """Nothing, so that registering asks no database."""
        return []

    def collect(self) -> Iterator[Metric]:
        """All of it."""
        began = monotonic()
        up = GaugeMetricFamily("workqueue_up", "Whether the database answered.")
        with self._lock:
            try:
                found = list(self._collect())
                up.add_metric([], 1)
                self._said = False
            except (DatabaseError, InterfaceError) as error:
                found = []
                up.add_metric([], 0)
                if not self._said:
                    self._said = True
                    logger.warning("The metrics cannot be collected: %s", error)
        yield up
        yield from found
        took = GaugeMetricFamily("workqueue_scrape_duration_seconds", "How long collecting this took.")
        took.add_metric([], monotonic() - began)
        yield took

    def refresh(self, *, older_than: float) -> bool:
        """Look at the queue that was not looked at for longest, if that is so many seconds ago; whether there was one.

        For whoever has time between scrapes, which then need not do it. Raises what the database raises.
        """
        with self._lock:
            if not self._stats:
                return False
            key, (_, taken_at) = min(self._stats.items(), key=lambda each: each[1][1])
            if monotonic() - taken_at < older_than:
                return False
            self._stats[key] = (self._known[key].stats(), monotonic())
            return True

    def _collect(self) -> Iterator[Metric]:
        queues = inventory.queues(using=self._using)
        yield from self._gauges(queues)
        aliases = [self._using] if self._using else sorted({conf.database(), *(queue.alias for queue in queues)})
        yield from self._workers(aliases)
        for alias in aliases:
            totals = self._totals.setdefault(alias, Totals())
            totals.add(_ask(alias, exports.RECENT, since=totals.since))
        yield from self._counters()
        yield self._durations("wait", "From when it was due until a handler began.")
        yield self._durations("run", "What the handler took; of a batch handler, for each item of the batch.")

    def _gauges(self, queues: Sequence[KnownQueue]) -> Iterator[Metric]:
        self._refresh(queues)
        entries = GaugeMetricFamily(
            "workqueue_entries", "Items or jobs by state; over 10,000 they are estimates.", labels=[*QUEUE, "state"]
        )
        age = GaugeMetricFamily(
            "workqueue_oldest_ready_age_seconds", "How long the longest waiting has been due.", labels=QUEUE
        )
        paused = GaugeMetricFamily("workqueue_paused", "Whether the queue is paused.", labels=QUEUE)
        stale = GaugeMetricFamily("workqueue_stats_age_seconds", "How old the queue's gauges are.", labels=QUEUE)
        for queue in queues:
            labels = [queue.alias, queue.name]
            paused.add_metric(labels, queue.paused)
            stats, taken_at = self._stats[queue.alias, queue.name]
            for state in STATES:
                entries.add_metric([*labels, state], getattr(stats, state))
            age.add_metric(labels, stats.oldest_ready_age.total_seconds())
            stale.add_metric(labels, monotonic() - taken_at)
        yield from (entries, age, paused, stale)

    def _refresh(self, queues: Sequence[KnownQueue]) -> None:
        """Look at the queues, those first that were not looked at for longest, as far as the budget goes.

        One that was never seen is looked at in any case.
        """
        until = 0.0 if self.is_kept_fresh else monotonic() + BUDGET
        known = self._known = {(queue.alias, queue.name): queue for queue in queues}
        self._stats = {key: stats for key, stats in self._stats.items() if key in known}
        for key in sorted(known, key=lambda key: self._stats[key][1] if key in self._stats else 0.0):
            if key in self._stats and monotonic() > until:
                break
            self._stats[key] = (known[key].stats(), monotonic())

    def _workers(self, aliases: Sequence[str]) -> Iterator[Metric]:
        workers = GaugeMetricFamily("workqueue_workers", "Worker processes seen within a minute.", labels=["database"])
        slots = GaugeMetricFamily("workqueue_worker_slots", "How much these can run at once.", labels=["database"])
        in_flight = GaugeMetricFamily(
            "workqueue_in_flight", "What these have in hand or run, as they last said.", labels=["database"]
        )
        for alias in aliases:
            ((number, concurrency, held),) = _ask(alias, exports.WORKERS)
            workers.add_metric([alias], number)
            slots.add_metric([alias], float(concurrency))
            in_flight.add_metric([alias], float(held))
        yield from (workers, slots, in_flight)

    def _counters(self) -> Iterator[Metric]:
        for name, about in COUNTERS.items():
            family = CounterMetricFamily(f"workqueue_{name}", about, labels=KIND)
            for labels, total in self._each_total():
                family.add_metric(labels, total.counters[name])
            yield family

    def _durations(self, what: str, about: str) -> Metric:
        family = HistogramMetricFamily(f"workqueue_{what}_seconds", about, labels=KIND)
        for labels, total in self._each_total():
            family.add_metric(labels, _cumulative(getattr(total, what)), total.counters[f"{what}_us"] / 1_000_000)
        return family

    def _each_total(self) -> Iterator[tuple[list[str], Total]]:
        for alias, totals in self._totals.items():
            for (queue, kind), total in totals.by_kind.items():
                yield [alias, queue, kind], total


def _ask(alias: str, statement: Statement, **params: int) -> database.Rows:
    with unmigrated.hinting(alias), connections[alias].cursor() as cursor:
        cursor.execute(statement.text, params or None)
        rows: database.Rows = cursor.fetchall()
        return rows


def _cumulative(counts: Sequence[int]) -> list[tuple[str, float]]:
    """As Prometheus has buckets: each with all that is below, by its bound in seconds."""
    below, buckets = 0, []
    for position, bound in enumerate(histogram.BOUNDS):
        below += counts[position]
        if position % EACH == 0:
            buckets.append((f"{bound / 1_000_000:g}", float(below)))
    return [*buckets, ("+Inf", float(sum(counts)))]
