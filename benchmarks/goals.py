"""What is to be reached, as ratios within one run.

Knows nothing of how it is measured; reads results, answers lines of a table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from benchmarks.contestants import catalog
from benchmarks.results import Key, Ratio, Results
from benchmarks.scenarios import claims, drain, enqueue, latency, memory, partitions, snapshot, stats

PYTHON_PEERS = tuple(peer for peer in catalog.peers() if peer.language == "python")
ITEMS = catalog.ITEMS.name


@dataclass(frozen=True)
class Face:
    """One of our queues, its floor, and how far it should be ahead of the best-tuned peer."""

    what: str
    ours: str
    bare: str
    ahead: float


FACES = (
    Face("items", catalog.ITEMS.name, catalog.BARE_ITEMS.name, 1.5),
    Face("jobs", catalog.JOBS.name, catalog.BARE_JOBS.name, 1.2),
)


@dataclass(frozen=True)
class Line:
    """One goal: what, against whom, how much was reached of how much, as a ratio or in `unit`."""

    what: str
    against: str
    ratio: Ratio | None
    bound: float
    at_least: bool = True
    unit: str = "×"  # noqa: RUF001 - that is the sign

    @property
    def met(self) -> bool | None:
        """Whether the median ratio reaches the bound; None where it was not measured."""
        if self.ratio is None:
            return None
        return self.ratio.median >= self.bound if self.at_least else self.ratio.median <= self.bound


def lines(results: Results) -> list[Line]:
    """Every goal whose scenario was run."""
    made = {
        drain.NAME: drains,
        enqueue.NAME: enqueues,
        latency.NAME: latencies,
        snapshot.NAME: snapshots,
        claims.NAME: claim_costs,
        partitions.NAME: partitioned,
        memory.NAME: grown,
        stats.NAME: counted,
    }
    return [line for name, make in made.items() if results.keys(name) for line in make(results)]


def drains(results: Results) -> Iterable[Line]:
    """The backlog, against the best-tuned peer, every Python peer's defaults, and the bare loop."""
    one, two = "1 process", "2 processes"
    for face in FACES:
        what = f"drain of {face.what}, our defaults"
        ours = key(drain.NAME, face.ours, "defaults")
        yield against_best(results, f"{what}, 1 process", ours(one), tuned(one), face.ahead)
        yield against_best(results, f"{what}, 2 processes", ours(two), tuned(two), 1.2)
        defaults = [Key(drain.NAME, peer.name, "defaults", one) for peer in PYTHON_PEERS]
        yield against_best(results, f"{what}, against Python peers' defaults", ours(one), defaults, 8.0)
        yield against_best(results, f"{what}, 1 process", ours(one), [Key(drain.NAME, face.bare, "defaults", one)], 0.6)


def enqueues(results: Results) -> Iterable[Line]:
    """Single enqueues from many threads, and thousands."""
    python = {peer.name for peer in PYTHON_PEERS}
    for face in FACES:
        ours = key(enqueue.NAME, face.ours, "defaults")
        for threads in ("16 threads", "32 threads"):
            what = f"enqueue of single {face.what}, {threads}"
            peers = [each for each in results.keys(enqueue.NAME) if each.contestant in python]
            peers = [each for each in peers if each.variant == threads]
            yield against_best(results, f"{what}, against Python peers", ours(threads), peers, 8.0)
            single = Key(enqueue.NAME, face.bare, "defaults", threads)
            yield against_best(results, f"{what}, against a statement a call", ours(threads), [single], 4.0)
        peers = [Key(enqueue.NAME, peer.name, "defaults", enqueue.MANY) for peer in catalog.peers()]
        yield against_best(results, f"enqueue_many of {face.what} by thousands", ours(enqueue.MANY), peers, 1.5)


def latencies(results: Results) -> Iterable[Line]:
    """An idle worker."""
    for face in FACES:
        for percentile in ("p50", "p99"):
            peers = [
                Key(latency.NAME, peer.name, peer.latency, percentile)
                for peer in catalog.peers()
                if peer.latency is not None
            ]
            best = results.best(peers, lowest=True)
            ours = Key(latency.NAME, face.ours, "defaults", percentile)
            ratio = results.ratio(ours, best) if best else None
            yield Line(f"idle worker of {face.what}, {percentile}", who(best), ratio, 1.0, at_least=False)


def snapshots(results: Results) -> Iterable[Line]:
    """A backlog under a held snapshot."""
    for face in FACES:
        first, last = (
            Key(snapshot.NAME, face.ours, "defaults", variant) for variant in (snapshot.FIRST, snapshot.LAST)
        )
        yield Line(
            f"drain of {face.what} under a held snapshot, last 10 k", "first 10 k", results.ratio(last, first), 0.9
        )


def claim_costs(results: Results) -> Iterable[Line]:
    """A claim beside other rows, against one of an empty table."""
    empty = Key(claims.NAME, claims.EMPTY, "defaults", "p50")
    for surrounding in (*list(claims.SURROUNDINGS)[1:], claims.SNAPSHOT):
        beside = key(claims.NAME, surrounding, "defaults")
        for percentile, bound in (("p50", 2.0), ("p99", 10.0)):
            ratio = results.ratio(beside(percentile), empty)
            yield Line(
                f"claim of 100, {percentile}, {surrounding}", "p50, an empty table", ratio, bound, at_least=False
            )
        share = absolute(results, beside(claims.SHARE))
        yield Line(f"rescans' share of the time, {surrounding}", "", share, 2.0, at_least=False, unit="%")


def partitioned(results: Results) -> Iterable[Line]:
    """A hundred partitions."""
    one, many = (Key(partitions.NAME, ITEMS, "defaults", each) for each in (partitions.ONE, partitions.MANY))
    yield Line("full cycles, one partition", "100 partitions", results.ratio(one, many), 1.2, at_least=False)


def grown(results: Results) -> Iterable[Line]:
    """A worker's memory."""
    for face in FACES:
        few, many = (Key(memory.NAME, face.ours, "defaults", each) for each in (memory.AFTER_FEW, memory.AFTER_MANY))
        what = f"memory of a worker after 1 M {face.what}"
        yield Line(what, "after 10 k", results.ratio(many, few), 1.1, at_least=False)


def counted(results: Results) -> Iterable[Line]:
    """Stats that are bounded."""
    highest = absolute(results, Key(stats.NAME, ITEMS, "exact=False", "highest"))
    yield Line("`stats(exact=False)`, 5 M rows, slowest of 30", "", highest, 50.0, at_least=False, unit="ms")


def absolute(results: Results, key: Key) -> Ratio | None:
    """A measured value where the goal is no ratio."""
    values, median = results.values.get(key), results.median(key)
    return Ratio(median, min(values.values()), max(values.values())) if values and median is not None else None


def key(scenario: str, contestant: str, setup: str) -> Callable[[str], Key]:
    """The keys of one contestant's variants."""
    return lambda variant: Key(scenario, contestant, setup, variant)


def tuned(variant: str) -> list[Key]:
    """Every peer's best settings."""
    return [Key(drain.NAME, peer.name, "best", variant) for peer in catalog.peers()]


def against_best(results: Results, what: str, ours: Key, others: Iterable[Key], bound: float) -> Line:
    """Ours against whoever has the best median."""
    best = results.best(others)
    return Line(what, who(best), results.ratio(ours, best) if best else None, bound)


def who(best: Key | None) -> str:
    """Whom we are compared with."""
    return f"{best.contestant} ({best.setup})" if best else "nobody measured"
