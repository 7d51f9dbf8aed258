"""How much is claimed, what runs at once, and how completions are written."""

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import pytest

from django_workqueue import Item, PermanentError, Queue, Retry, notify
from django_workqueue.engine import Outcome, Settled
from django_workqueue.worker import Counts, Worker, settle
from tests.interleave import wait_until
from tests.worker.conftest import MakeQueue, Running

Working = Callable[..., Running]


class Gauge:
    """Counts how many are inside at once, and holds them there until `open`."""

    def __init__(self) -> None:
        self.inside = self.most = self.passed = 0
        self.open = threading.Event()
        self.lock = threading.Lock()

    def enter(self) -> None:
        with self.lock:
            self.inside += 1
            self.most = max(self.most, self.inside)

    def leave(self) -> None:
        with self.lock:
            self.inside -= 1
            self.passed += 1

    def hold(self, item: Item[Any]) -> None:
        self.enter()
        self.open.wait(20)
        self.leave()

    async def ahold(self, item: Item[Any]) -> None:
        self.enter()
        while not self.open.is_set():  # noqa: ASYNC110 - a thread opens it
            await asyncio.sleep(0.01)
        self.leave()


def keys(number: int) -> list[str]:
    return [f"{each:06d}" for each in range(number)]


@pytest.mark.parametrize("is_async", [False, True])
def test_handlers_run_on_as_many_slots_as_concurrency_says(queue: Queue[str], working: Working, is_async: bool) -> None:
    gauge = Gauge()
    queue.handler(gauge.ahold if is_async else gauge.hold)
    queue.enqueue_many(keys(40))
    running = working(queue, concurrency=5)
    wait_until(lambda: gauge.inside == 5)
    gauge.open.set()
    wait_until(lambda: gauge.passed == 40)
    assert gauge.most == 5
    assert running.stop().completed == 40


@pytest.mark.parametrize(("is_async", "own", "expected"), [(False, 2, 2), (True, 2, 2), (True, 12, 12)])
def test_a_handlers_own_concurrency_bounds_it(
    queue: Queue[str], working: Working, is_async: bool, own: int, expected: int
) -> None:
    gauge = Gauge()
    queue.handler(concurrency=own)(gauge.ahold if is_async else gauge.hold)
    queue.enqueue_many(keys(40))
    working(queue, concurrency=5)
    wait_until(lambda: gauge.inside == expected)
    gauge.open.set()
    wait_until(lambda: gauge.passed == 40)
    assert gauge.most == expected


def test_sync_and_async_handlers_run_side_by_side(make_queue: MakeQueue, working: Working) -> None:
    threads, tasks = Gauge(), Gauge()
    one, other = make_queue(), make_queue()
    one.handler(threads.hold)
    other.handler(tasks.ahold)
    one.enqueue_many(keys(8))
    other.enqueue_many(keys(8))
    working(one, other, concurrency=4)
    wait_until(lambda: (threads.inside, tasks.inside) == (4, 4))
    threads.open.set()
    tasks.open.set()
    wait_until(lambda: threads.passed == tasks.passed == 8)


def test_a_slow_queue_within_its_own_concurrency_does_not_hold_up_another(
    make_queue: MakeQueue, working: Working
) -> None:
    slow, quick = make_queue(), make_queue()
    gauge, seen = Gauge(), []
    slow.handler(concurrency=2)(gauge.hold)
    quick.handler(lambda item: seen.append(item.key))
    slow.enqueue_many(keys(50))
    working(slow, quick, concurrency=3)
    wait_until(lambda: gauge.inside == 2)
    quick.enqueue_many(keys(500))
    wait_until(lambda: len(seen) == 500)
    assert gauge.most == 2
    gauge.open.set()


def test_queues_share_the_threads_fairly(make_queue: MakeQueue, working: Working) -> None:
    first, second = make_queue(), make_queue()
    order: list[str] = []

    def work(item: Item[str]) -> None:
        time.sleep(0.002)
        order.append(item.queue)

    first.handler(work)
    second.handler(work)
    first.enqueue_many(keys(600))
    second.enqueue_many(keys(100))
    working(first, second, concurrency=2)
    wait_until(lambda: order.count(second.name) == 100, 20)
    assert order.count(first.name) < 400


def test_slow_handlers_are_claimed_about_as_many_as_there_are_slots(queue: Queue[str], working: Working) -> None:
    gauge = Gauge()
    queue.handler(gauge.hold)
    queue.enqueue_many(keys(100))
    working(queue, concurrency=4)
    wait_until(lambda: gauge.inside == 4)
    for _ in range(20):
        assert queue.stats().leased <= 4 + 1
        time.sleep(0.01)
    gauge.open.set()


def test_no_slot_is_idle_while_work_is_due(queue: Queue[str], working: Working) -> None:
    gaps: list[float] = []
    ended = threading.local()

    @queue.handler
    def nap(item: Item[str]) -> None:
        now = time.monotonic()
        if hasattr(ended, "at"):
            gaps.append(now - ended.at)
        time.sleep(0.05)
        ended.at = time.monotonic()

    queue.enqueue_many(keys(120))
    working(queue, concurrency=4)
    wait_until(lambda: len(gaps) >= 110, 20)
    assert sorted(gaps)[len(gaps) // 2] < 0.02


def test_quick_handlers_get_full_claims(queue: Queue[str], monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    claim = queue.source.claim_on

    def claim_on(connection: Any, limit: int, *rest: Any) -> Any:
        asked.append(limit)
        return claim(connection, limit, *rest)

    monkeypatch.setattr(queue.source, "claim_on", claim_on)
    queue.handler(lambda item: None)
    queue.enqueue_many(keys(10_000))
    assert Worker([queue]).drain() == Counts(completed=10_000)
    assert max(asked) == queue.source.max_claim
    assert len(asked) < 50


def test_never_more_is_in_hand_than_can_be_started_well_inside_its_lease(queue: Queue[str], working: Working) -> None:
    late: list[float] = []

    @queue.handler(lease=timedelta(seconds=1))
    def nap(item: Item[str]) -> None:
        late.append(item._fence.remaining())
        time.sleep(0.02)

    queue.enqueue_many(keys(400))
    working(queue, concurrency=2)
    wait_until(lambda: len(late) >= 200, 20)
    assert min(late) > 0.4


def test_what_waits_in_hand_too_long_is_given_back(queue: Queue[str], working: Working) -> None:
    gauge = Gauge()

    @queue.handler
    def quick_then_stuck(item: Item[str]) -> None:
        if int(item.key) >= 2000:
            gauge.hold(item)

    queue.enqueue_many(keys(4000))
    working(queue, concurrency=4)
    wait_until(lambda: gauge.inside == 4)
    wait_until(lambda: queue.stats().leased <= 5)
    gauge.open.set()
    wait_until(lambda: queue.stats().completed == 4000, 20)


def test_completions_are_group_committed(queue: Queue[str], monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    settle = queue.source.settle_on

    def settle_on(connection: Any, outcomes: Sequence[Outcome]) -> Settled:
        sizes.append(len(outcomes))
        return settle(connection, outcomes)

    monkeypatch.setattr(queue.source, "settle_on", settle_on)
    queue.handler(lambda item: None)
    queue.enqueue_many(keys(10_000))
    Worker([queue]).drain()
    assert sum(sizes) == 10_000
    assert len(sizes) < 100


def test_a_worker_sends_no_more_than_a_dozen_statements_for_a_thousand_items(
    queue: Queue[str], sent: Counter[str]
) -> None:
    """Claims, completions, and what it says of itself: how fast a drain is rests on how few they are."""
    queue.handler(lambda item: None)
    queue.enqueue_many(keys(10_000))
    sent.clear()
    assert Worker([queue]).drain() == Counts(completed=10_000)
    assert 0 < sent.total() <= 120, sent


def test_a_single_completion_waits_for_no_other(queue: Queue[str], working: Working) -> None:
    gauge = Gauge()
    queue.handler(lambda item: gauge.hold(item) if item.key != "quick" else None)
    queue.enqueue_many(keys(3))
    queue.enqueue("quick", priority=1)
    working(queue, concurrency=4)
    wait_until(lambda: queue.stats().completed == 1)
    assert gauge.passed == 0
    gauge.open.set()


def test_an_idle_worker_is_woken_by_an_enqueue(queue: Queue[str], working: Working) -> None:
    started = threading.Event()
    queue.handler(lambda item: started.set())
    running = working(queue, poll=60)
    wait_until(running.is_idle)
    begun = time.monotonic()
    queue.enqueue("a")
    assert started.wait(5)
    assert time.monotonic() - begun < 1


@pytest.mark.parametrize("before", [True, False])
def test_what_is_scheduled_is_run_when_it_comes_due_though_nobody_wakes_the_worker_then(
    queue: Queue[str], working: Working, before: bool
) -> None:
    """Each at its time, whether it was there before the worker or came while that had never seen any work."""
    ran: list[tuple[str, float]] = []
    queue.handler(lambda item: ran.append((item.key, time.monotonic())))
    if not before:
        wait_until(working(queue, poll=60).is_idle)
    begun = time.monotonic()
    queue.enqueue("second", delay=timedelta(seconds=0.9), priority=3)
    queue.enqueue("third", delay=timedelta(seconds=1.5))
    queue.enqueue("first", delay=timedelta(seconds=0.5), priority=-7)
    if before:
        working(queue, poll=60)
    wait_until(lambda: len(ran) == 3, 20)
    assert [key for key, _ in ran] == ["first", "second", "third"]
    assert ran[0][1] - begun >= 0.5


def test_a_worker_of_a_paused_queue_only_polls(queue: Queue[str], working: Working, sent: Counter[str]) -> None:
    """What comes due is not asked for: it would not be handed out."""
    queue.handler(lambda item: None)
    queue.pause()
    for number in range(20):
        queue.enqueue(str(number), delay=timedelta(seconds=number * 0.05))
    sent.clear()
    running = working(queue, poll=0.2)

    def claims() -> int:
        return sum(times for statement, times in sent.items() if statement.startswith("WITH halt"))

    wait_until(lambda: claims() >= 5)
    assert not [statement for statement in sent if "%(within)s" in statement]
    queue.resume()
    wait_until(lambda: queue.stats().completed == 20)
    running.stop()


@pytest.mark.parametrize("retention", [timedelta(hours=1), timedelta(0)])
@pytest.mark.parametrize("ends", [None, PermanentError("no"), Retry(timedelta(hours=1))])
def test_what_is_asked_for_while_it_runs_runs_again_when_that_is_over(
    make_queue: MakeQueue, working: Working, ends: Exception | None, retention: timedelta
) -> None:
    """At once, or when it was asked for; nobody wakes the worker then."""
    queue = make_queue(retention=retention)
    gauge, runs = Gauge(), list[float]()

    @queue.handler
    def work(item: Item[str]) -> None:
        runs.append(time.monotonic())
        if len(runs) < 3:
            gauge.hold(item)
            if ends is not None:
                raise ends

    wait_until(working(queue, poll=60).is_idle)
    queue.enqueue("a")
    for delay in (timedelta(0), timedelta(seconds=0.5)):
        wait_until(lambda: gauge.inside == 1)
        queue.enqueue("a", delay=delay)
        time.sleep(0.2)  # the worker has heard of it, and found it leased
        gauge.open.set()
        wait_until(lambda: gauge.inside == 0)
        gauge.open.clear()
    wait_until(lambda: len(runs) == 3, 5)


def test_others_are_woken_now_and_then_for_what_was_asked_for_while_it_ran(
    queue: Queue[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its worker may have become busy. For what is due later, and what was not asked for again, nobody is."""
    told: list[str] = []
    monkeypatch.setattr(settle, "TELL_EVERY", 3600.0)
    monkeypatch.setattr(notify, "announce", lambda connection, name: told.append(name))
    again = {"b", "c"}

    @queue.handler
    def work(item: Item[str]) -> None:
        if item.key in again:
            again.discard(item.key)
            queue.enqueue(item.key)
        if item.key == "d":
            queue.enqueue("d", delay=timedelta(hours=1))

    for key, times in {"a": 0, "b": 1, "c": 2, "d": 2}.items():
        queue.enqueue(key)
        Worker([queue]).drain()
        assert told == [queue.name] * times
    queue.enqueue("a")
    again |= {"a", "b", "c"}
    queue.enqueue("b", "c")
    Worker([queue], concurrency=1).drain()
    assert told == [queue.name] * 3


@pytest.mark.parametrize("how", ["complete", "complete by key", "release", "release by key"])
def test_what_is_given_back_by_hand_is_run_by_an_idle_worker_at_once(
    queue: Queue[str], working: Working, how: str
) -> None:
    ran: list[str] = []
    queue.enqueue("a")
    (item,) = queue.claim()
    queue.handler(lambda item: ran.append(item.key))
    wait_until(working(queue, poll=60).is_idle)
    if how.startswith("complete"):
        queue.enqueue("a")
        time.sleep(0.2)
    call = queue.complete if how.startswith("complete") else queue.release
    call(item.key if how.endswith("key") else item)
    wait_until(lambda: ran == ["a"], 5)


def test_work_that_failed_is_run_again_as_soon_as_its_backoff_is_over(queue: Queue[str], working: Working) -> None:
    runs: list[float] = []

    @queue.handler(backoff=lambda attempts: timedelta(seconds=0.3))
    def fail_once(item: Item[str]) -> None:
        runs.append(time.monotonic())
        if len(runs) == 1:
            raise ValueError("once")

    queue.enqueue("a")
    working(queue, poll=60)
    wait_until(lambda: len(runs) == 2)
    assert 0.3 <= runs[1] - runs[0] < 1.5


def test_max_items_ends_the_run_after_so_many(queue: Queue[str]) -> None:
    from django_workqueue.worker.signals import Signals

    queue.handler(lambda item: None)
    queue.enqueue_many(keys(100))
    worker = Worker([queue])
    with Signals() as signals:
        from dataclasses import replace

        assert worker.work(replace(worker.options, max_items=30), signals) == Counts(completed=30)
    assert queue.stats().ready == 70


def test_a_drain_waits_for_what_its_handlers_enqueue(make_queue: MakeQueue) -> None:
    first, second = make_queue(), make_queue()
    first.handler(lambda item: second.enqueue(item.key))
    second.handler(lambda item: first.enqueue(str(int(item.key) - 1)) if int(item.key) else None)
    first.enqueue("5")
    assert Worker([second, first]).drain() == Counts(completed=12)


def test_a_drain_counts_what_it_took_over_from_a_lapsed_lease(queue: Queue[str]) -> None:
    queue.handler(lambda item: None)
    queue.enqueue("a", "b")
    queue.claim(1, lease=timedelta(milliseconds=1))
    assert Worker([queue]).drain() == Counts(completed=2, reclaimed=1)


def test_queues_are_given_as_objects_or_names_and_unknown_ones_are_refused(make_queue: MakeQueue) -> None:
    known, unhandled = make_queue(), make_queue()
    known.handler(lambda item: None)
    assert Worker([known]).sources() == Worker([known.name]).sources() == [known.source]
    assert known.source in Worker().sources()
    assert unhandled.source not in Worker().sources()
    with pytest.raises(ValueError, match=rf"no handler is registered for a queue 'nowhere'.*{known.name}"):
        Worker(["nowhere"]).run()
    with pytest.raises(ValueError, match=f"no handler is registered for queue {unhandled.name!r}, which has been made"):
        Worker([unhandled]).drain()
    with pytest.raises(ValueError, match=r"no handler is registered for a queue 'worker.* on database 'other'"):
        Worker([known.name], using="other").sources()
    with pytest.raises(TypeError, match=r"queues is a list .*, not a str\. To give a single queue, put it into a list"):
        Worker(known.name)


@pytest.mark.parametrize(
    "options", [{"concurrency": 0}, {"processes": 0}, {"processes": True}, {"poll": 0}, {"shutdown_timeout": -1}]
)
def test_nonsensical_options_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(options))):
        Worker([], **options)
