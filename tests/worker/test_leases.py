"""Leases: renewed while work is in hand, noticed when lost."""

import asyncio
import itertools
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest
from django.db import OperationalError, transaction

from django_workqueue import Item, JobQueue, PartialFailure, Queue
from django_workqueue.database import Connection, Verdict, verdict
from django_workqueue.engine import Outcome, Settled
from django_workqueue.worker import Counts, Worker
from django_workqueue.worker.keeper import OwnKeeper
from django_workqueue.worker.outage import Outage
from django_workqueue.worker.renew import Lease, Renewer
from tests.interleave import wait_until
from tests.worker.conftest import MakeQueue, Rows, Running

Working = Callable[..., Running]

SHORT = timedelta(seconds=0.6)
LONGER = 2.0  # seconds


def lapse(second: psycopg.Connection[Any], queue: Queue[Any]) -> None:
    """Let every lease of the queue have ended."""
    second.execute(
        "UPDATE workqueue_item SET lease_until = now() - interval '1 s' WHERE queue = %s AND lease_until > 'epoch'",
        [queue.name],
    )


@pytest.mark.parametrize("is_async", [False, True])
def test_a_handler_longer_than_its_lease_is_renewed_and_runs_once(queue: Queue[str], is_async: bool) -> None:
    runs: list[int] = []

    def work(item: Item[str]) -> None:
        runs.append(item.attempts)
        time.sleep(LONGER)

    async def awork(item: Item[str]) -> None:
        runs.append(item.attempts)
        await asyncio.sleep(LONGER)

    queue.handler(lease=SHORT)(awork if is_async else work)
    queue.enqueue("a")
    worker = threading.Thread(target=Worker([queue], poll=0.1).drain)
    worker.start()
    wait_until(lambda: runs)
    deadline = time.monotonic() + LONGER - 0.3
    while time.monotonic() < deadline:
        assert queue.claim(1) == []
        time.sleep(0.05)
    worker.join(10)
    assert runs == [1]
    assert queue.stats().completed == 1


def test_an_async_handler_that_blocks_the_event_loop_does_not_stop_renewals(queue: Queue[str]) -> None:
    runs: list[str] = []

    @queue.handler(lease=SHORT)
    async def block(item: Item[str]) -> None:
        runs.append(item.key)
        time.sleep(LONGER)  # noqa: ASYNC251 - the fault to be survived

    queue.enqueue("a", "b")
    assert Worker([queue], poll=0.1, concurrency=2).drain() == Counts(completed=2)
    assert sorted(runs) == ["a", "b"]


def test_what_is_prefetched_is_renewed_as_well(queue: Queue[str], working: Working) -> None:
    gate = threading.Event()
    reclaimed: list[bool] = []

    @queue.batch_handler(size=5, lease=SHORT, concurrency=1)
    def batch(items: list[Item[str]]) -> None:
        reclaimed.extend(item.reclaimed or item.attempts > 1 for item in items)
        gate.wait(LONGER)

    queue.enqueue_many(str(number) for number in range(10))
    working(queue)
    wait_until(lambda: reclaimed)
    assert not gate.wait(LONGER / 2)
    gate.set()
    wait_until(lambda: queue.stats().completed == 10)
    assert reclaimed == [False] * 10


def test_a_handler_may_hold_its_own_row_in_its_transaction(
    make_queue: MakeQueue, working: Working, second: psycopg.Connection[Any]
) -> None:
    """Its row is skipped and tried again; the other leases of the process do not suffer."""
    queue = make_queue()
    gate, runs = threading.Event(), list[str]()

    @queue.handler(lease=SHORT)
    def work(item: Item[str]) -> None:
        runs.append(item.key)
        if item.key == "holds":
            with transaction.atomic():
                queue.complete(item)
                gate.wait(LONGER)
        else:
            gate.wait(LONGER)

    queue.enqueue("holds", "plain")
    working(queue)
    wait_until(lambda: len(runs) == 2)
    deadline = time.monotonic() + LONGER * 0.6
    while time.monotonic() < deadline:
        assert queue.claim(2) == []
        time.sleep(0.05)
    gate.set()
    wait_until(lambda: queue.stats().completed == 2)
    assert sorted(runs) == ["holds", "plain"]


def test_a_skipped_row_is_renewed_again_within_a_second(
    queue: Queue[str], working: Working, rows: Rows, second: psycopg.Connection[Any]
) -> None:
    gate = threading.Event()
    queue.handler(lease=timedelta(seconds=9))(lambda item: gate.wait(20))
    queue.enqueue("a")
    working(queue)
    wait_until(lambda: queue.stats().leased == 1)
    first = rows(queue)["a"].lease_until
    with second.transaction():
        second.execute("SELECT 1 FROM workqueue_item WHERE queue = %s FOR UPDATE", [queue.name])
        # A third of the lease has passed: a renewal was due, and found the row held.
        assert not gate.wait(3.5)
        assert rows(queue)["a"].lease_until == first
    released = time.monotonic()
    wait_until(lambda: rows(queue)["a"].lease_until > first, 2.5)
    assert time.monotonic() - released < 2.0
    gate.set()


def test_work_is_not_renewed_past_its_timeout(queue: Queue[str], working: Working) -> None:
    gate = threading.Event()

    @queue.handler(lease=SHORT, timeout=timedelta(seconds=1), concurrency=4)
    def swallow(item: Item[str]) -> None:
        while not gate.is_set():
            try:
                gate.wait(0.05)
            except BaseException:
                continue

    queue.enqueue("a")
    running = working(queue, concurrency=4)
    wait_until(lambda: queue.stats().leased == 1)
    running.worker._stop_asked = False
    shift: Any = running.worker._shift
    for claimer in shift.crew._claimers:
        claimer.stop()  # or it would claim it again itself
    wait_until(lambda: queue.claim(1), 4)
    gate.set()


def test_nothing_is_started_when_too_little_of_its_lease_is_left(
    queue: Queue[str], rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[str] = []
    claim = queue.source.claim_on
    late: list[int] = []

    def claim_late(*args: Any) -> Any:
        answer = claim(*args)
        if answer.works and not late:
            late.append(len(answer.works))
            answer.fence.deadline -= 0.9 * 60  # as if the answer had been under way for as long
        return answer

    monkeypatch.setattr(queue.source, "claim_on", claim_late)

    @queue.handler
    def work(item: Item[str]) -> None:
        started.append(item.key)
        assert item.attempts == 1

    monkeypatch.setattr("django_workqueue.worker.keeper.OwnKeeper.hold", lambda self, batch: None)
    queue.enqueue("a")
    assert Worker([queue]).drain() == Counts(completed=1)
    assert late == [1]
    assert started == ["a"]
    assert rows(queue)["a"].last_error is None


@pytest.mark.parametrize("is_async", [False, True])
def test_a_lost_lease_is_seen_by_the_handler_and_its_outcome_is_dropped_and_counted(
    queue: Queue[str],
    working: Working,
    second: psycopg.Connection[Any],
    caplog: pytest.LogCaptureFixture,
    is_async: bool,
) -> None:
    seen: list[str] = []

    def work(item: Item[str]) -> None:
        if item.attempts == 1:
            wait_until(lambda: item.lease_lost)
            seen.append("lost")

    async def awork(item: Item[str]) -> None:
        if item.attempts == 1:
            try:
                await asyncio.sleep(20)
            except asyncio.CancelledError:
                seen.append("lost")
                raise

    queue.handler(lease=SHORT, concurrency=1)(awork if is_async else work)
    queue.enqueue("a")
    running = working(queue, poll=0.1)
    wait_until(lambda: queue.stats().leased == 1)
    # As another worker's claim leaves it: leased, under another token.
    second.execute(
        "UPDATE workqueue_item SET lease_token = lease_token + 1, lease_until = now() + '1 h' WHERE queue = %s",
        [queue.name],
    )
    wait_until(lambda: seen == ["lost"])
    lane: Any = next(iter(running.worker._shift.crew.lanes))  # type: ignore[union-attr]
    wait_until(lambda: lane.tally.lost == 1)
    assert (queue.stats().completed, queue.stats().leased) == (0, 1)
    assert "1 lease was lost" in caplog.text
    assert "had ended already" not in caplog.text


@pytest.mark.parametrize("retention", [timedelta(0), timedelta(hours=1)])
@pytest.mark.parametrize("deed", ["complete", "release", "remove"])
def test_what_a_handler_ended_by_hand_is_not_called_lost(
    make_queue: MakeQueue, caplog: pytest.LogCaptureFixture, deed: str, retention: timedelta
) -> None:
    caplog.set_level("INFO", "django_workqueue")
    queue = make_queue(retention=retention)

    @queue.handler
    def work(item: Item[str]) -> None:
        if deed == "remove":
            queue.remove(item.key)
        elif item.attempts == 1:
            getattr(queue, deed)(item, **({"delay": timedelta(hours=1)} if deed == "release" else {}))

    queue.enqueue("a")
    worker = Worker([queue])
    assert worker.drain() == Counts()
    assert f"{queue.name}: 1 run had ended already" in caplog.text
    assert "will not be counted" not in caplog.text


def test_a_settlement_that_landed_without_an_answer_is_not_called_lost_when_it_is_repeated(
    queue: Queue[str], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "django_workqueue")
    settle, tries = queue.source.settle_on, itertools.count()

    def settle_on(connection: Connection, outcomes: Sequence[Outcome]) -> Settled:
        settled = settle(connection, outcomes)
        if next(tries) == 0:
            raise OperationalError("the connection was lost before the answer")
        return settled

    monkeypatch.setattr(queue.source, "settle_on", settle_on)
    queue.handler(lambda item: None)
    queue.enqueue("a")
    Worker([queue]).drain()
    assert queue.stats().completed == 1
    assert "1 run had ended already" in caplog.text
    assert "will not be counted" not in caplog.text


@pytest.mark.parametrize("after", ["taken", "finished"])
def test_a_lease_that_lapsed_under_a_handler_is_called_lost_also_when_the_other_run_is_over(
    queue: Queue[str], working: Working, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, after: str
) -> None:
    started, gate = threading.Event(), threading.Event()

    @queue.handler(lease=SHORT)
    def work(item: Item[str]) -> None:
        started.set()
        gate.wait(20)

    monkeypatch.setattr(OwnKeeper, "hold", lambda *_: None)  # nobody renews
    queue.enqueue("a")
    running = working(queue, concurrency=1)
    assert started.wait(10)
    running.worker._shift.crew._claimers[0].stop()  # type: ignore[union-attr]
    other = wait_until(queue.claim, 10)
    if after == "finished":
        assert queue.complete(*other) == 1
    gate.set()
    wait_until(lambda: f"{queue.name}: 1 lease was lost" in caplog.text)
    running.stop()


def test_a_stragglers_late_completion_changes_nothing(
    queue: Queue[str], working: Working, second: psycopg.Connection[Any]
) -> None:
    gate, started = threading.Event(), threading.Event()

    @queue.handler
    def work(item: Item[str]) -> None:
        started.set()
        gate.wait(20)

    queue.enqueue("a")
    running = working(queue, concurrency=1)  # itself it has no hand free for it
    assert started.wait(10)
    lapse(second, queue)
    (stolen,) = wait_until(lambda: queue.claim(1))
    gate.set()
    counts = running.stop()
    assert counts == Counts()
    assert queue.stats().leased == 1
    assert queue.complete(stolen) == 1


def test_a_strangers_lock_on_one_row_holds_up_no_other_completion(
    queue: Queue[str], working: Working, second: psycopg.Connection[Any]
) -> None:
    gate = threading.Event()
    queue.handler(lambda item: gate.wait(20))
    queue.enqueue_many(str(number) for number in range(6))
    running = working(queue)
    wait_until(lambda: queue.stats().leased == 6)
    with second.transaction():
        second.execute("SELECT 1 FROM workqueue_item WHERE queue = %s AND key = '3' FOR UPDATE", [queue.name])
        gate.set()
        wait_until(lambda: queue.stats().completed == 5)
    wait_until(lambda: queue.stats().completed == 6)
    assert running.stop() == Counts(completed=6)


@pytest.fixture
def waits(queue: Queue[str], monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The keys of each write of the queue's outcomes that waited for a lock in vain."""
    settle, waits = queue.source.settle_on, list[list[str]]()

    def settle_on(connection: Any, outcomes: Sequence[Outcome]) -> Settled:
        try:
            return settle(connection, outcomes)
        except OperationalError as error:
            if verdict(error) is Verdict.LOCKED:
                waits.append([outcome.work.key for outcome in outcomes])
            raise

    monkeypatch.setattr(queue.source, "settle_on", settle_on)
    return waits


@pytest.fixture
def tries(queue: Queue[str], monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many keys each renewal was for, of leases too long for any but what looks for held rows."""
    extend, tries = queue.source.extend_on, list[int]()

    def extend_on(connection: Any, token: int, idents: Sequence[Any], lease: timedelta) -> list[Any]:
        tries.append(len(idents))
        return extend(connection, token, idents, lease)

    monkeypatch.setattr(queue.source, "extend_on", extend_on)
    return tries


def test_rows_that_a_stranger_holds_are_waited_for_once_each_and_hold_up_no_other_queue(
    queue: Queue[str],
    make_queue: MakeQueue,
    working: Working,
    second: psycopg.Connection[Any],
    waits: list[list[str]],
    tries: list[int],
) -> None:
    gate, other = threading.Event(), make_queue()
    queue.handler(lambda item: gate.wait(20))
    other.handler(lambda item: None)
    queue.enqueue_many(str(number) for number in range(16))
    running = working(queue, other, concurrency=20)
    wait_until(lambda: queue.stats().leased == 16)
    with second.transaction():
        second.execute("SELECT 1 FROM workqueue_item WHERE queue = %s FOR UPDATE", [queue.name])
        gate.set()
        wait_until(lambda: sum(map(len, waits)) >= 16)
        seen = len(tries)
        wait_until(lambda: len(tries) >= seen + 3)
        other.enqueue("free")
        wait_until(lambda: other.stats().completed == 1)
        assert set(Counter(key for keys in waits for key in keys).values()) == {1}
        assert queue.stats().leased == 16
    wait_until(lambda: queue.stats().completed == 16)
    assert running.stop() == Counts(completed=17)


def test_what_was_completed_counts_also_when_the_row_of_a_failure_beside_it_is_held(
    queue: Queue[str], working: Working, second: psycopg.Connection[Any], tries: list[int]
) -> None:
    gate = threading.Event()

    @queue.batch_handler(size=2)
    def half(items: list[Item[str]]) -> None:
        gate.wait(20)
        raise PartialFailure({item: "no" for item in items if item.key == "fails"})

    queue.enqueue("completes", "fails")
    running = working(queue)
    wait_until(lambda: queue.stats().leased == 2)
    with second.transaction():
        second.execute("SELECT 1 FROM workqueue_item WHERE queue = %s AND key = 'fails' FOR UPDATE", [queue.name])
        gate.set()
        wait_until(lambda: len(tries) >= 2)
    wait_until(lambda: queue.stats().scheduled == 1)
    assert running.stop() == Counts(completed=1, failed=1, retried=1)


def test_outcomes_outlast_a_lock_on_their_whole_table(
    queue: Queue[str], working: Working, second: psycopg.Connection[Any], waits: list[list[str]], tries: list[int]
) -> None:
    gate = threading.Event()
    queue.handler(lambda item: gate.wait(20))
    queue.enqueue("a", "b")
    running = working(queue)
    wait_until(lambda: queue.stats().leased == 2)
    with second.transaction():
        second.execute("LOCK workqueue_item IN SHARE MODE")
        gate.set()
        wait_until(lambda: len(tries) >= 3)
    wait_until(lambda: queue.stats().completed == 2)
    assert running.stop() == Counts(completed=2)


def test_the_lease_of_an_outcome_that_a_stranger_holds_up_is_renewed_once_its_row_is_free(
    queue: Queue[str], working: Working, second: psycopg.Connection[Any], tries: list[int]
) -> None:
    gate = threading.Event()
    queue.handler(lambda item: gate.wait(20))
    queue.enqueue("a", "b")
    running = working(queue)
    wait_until(lambda: queue.stats().leased == 2)
    with second.transaction():
        second.execute("SELECT 1 FROM workqueue_item WHERE queue = %s AND key = 'a' FOR UPDATE", [queue.name])
        gate.set()
        wait_until(lambda: queue.stats().completed == 1)
        wait_until(lambda: len(tries) >= 3)
        (batch,) = running.worker._shift.crew.lanes[0].open.values()  # type: ignore[union-attr]
        assert batch.held() == ["a"]
    wait_until(lambda: queue.stats().completed == 2)
    running.stop()


def test_an_outcome_that_cannot_be_written_holds_up_no_other(
    queue: Queue[str], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    settle = queue.source.settle_on

    def refuse_one(connection: Any, outcomes: Sequence[Outcome]) -> Settled:
        if any(outcome.work.key == "poison" for outcome in outcomes):
            raise ValueError("cannot be written")
        return settle(connection, outcomes)

    monkeypatch.setattr(queue.source, "settle_on", refuse_one)
    queue.handler(lambda item: None)
    queue.enqueue("a", "b", "poison", "c")
    assert Worker([queue]).drain() == Counts(completed=3)
    assert "poison" in caplog.text


def test_no_lease_is_lost_by_what_a_read_only_server_says(db: None) -> None:
    """After a failover a renewer may still be on the old primary, which knows nothing of the claims made since."""
    source, told = JobQueue("renewed-after-failover").source, list[Any]()
    lane: Any = SimpleNamespace(source=source, seconds=60.0)
    lease = Lease(lane, 1, time.monotonic(), held=lambda: [1], renewed=lambda deadline: None, lost=told.append)
    renewer = Renewer("default", Outage("default"), shortest=60.0)
    connection = Connection("default", application="django_workqueue renew")
    connection.execute("SET default_transaction_read_only = on")
    with pytest.raises(OperationalError) as raised:
        renewer._check(source, [lease], connection)
    assert verdict(raised.value) is Verdict.RECONNECT
    assert told == []
    connection.execute("SET default_transaction_read_only = off")
    renewer._check(source, [lease], connection)
    assert told == [[1]]
    connection.close()
