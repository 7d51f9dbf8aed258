"""The worker's smaller parts by themselves: bells, looks, budgets, targets, the line between processes."""

import math
import os
import socket
import threading
import time
from collections.abc import Iterator
from datetime import timedelta

import pytest
from django.db import OperationalError

from django_workqueue import Queue
from django_workqueue.engine import Claim, Fence, Outcome, Verb
from django_workqueue.keyed import Item
from django_workqueue.worker.bell import Bell
from django_workqueue.worker.budget import Budget
from django_workqueue.worker.child import Child
from django_workqueue.worker.counts import Counts
from django_workqueue.worker.keeper import OwnKeeper
from django_workqueue.worker.lane import HORIZON, Batch, Lane, lanes_of
from django_workqueue.worker.line import Line, Reader, Writer, pack
from django_workqueue.worker.look import ASKS_EVERY, FLOOR, Look
from django_workqueue.worker.outage import Outage, Patience
from django_workqueue.worker.signals import Signals
from django_workqueue.worker.starts import Starter
from django_workqueue.worker.supervise import Supervisor
from django_workqueue.worker.timeouts import Watchdog
from tests.interleave import wait_until
from tests.worker.conftest import MakeQueue


@pytest.fixture
def lane(queue: Queue[str]) -> Lane:
    """A lane with a plain handler and eight slots."""
    queue.handler(lambda item: None)
    (lane,) = lanes_of([queue.source])
    lane.slots = 8
    return lane


def batch_of(lane: Lane, *keys: str, seconds: float = 60, token: int = 1) -> Batch:
    fence = Fence(token, time.monotonic() + seconds)
    items = [Item(key, lane.source.name, _text=key, _fence=fence) for key in keys]
    return Batch(lane, Claim(fence, lane.lease, list(items)))


# Bell


def test_rings_nobody_has_answered_are_one() -> None:
    bell = Bell()
    for _ in range(5):
        bell.ring()
    assert bell.wait(0)
    assert not bell.wait(0)


def test_a_ring_wakes_a_waiter_in_another_thread() -> None:
    bell, woken = Bell(), threading.Event()
    threading.Thread(target=lambda: bell.wait(10) and woken.set()).start()
    bell.ring()
    assert woken.wait(5)


# When to look again


@pytest.fixture
def look(lane: Lane) -> Iterator[Look]:
    look = Look(lane, lambda: None)
    yield look
    look.wakeup.close()


def test_a_wake_that_finds_work_is_acted_on_at_once(look: Look) -> None:
    look.woken = False
    look.found(3, sent_at=100.0, was_woken=True, poll=5.0)
    assert look.at == 105.0
    look.wakeup.set()
    assert look.at == 100.0


def test_wakes_in_vain_are_floored_more_and_more_up_to_the_queues_interval(look: Look) -> None:
    floors = []
    for _ in range(8):
        look.woken = False
        look.found(0, sent_at=100.0, was_woken=True, poll=5.0)
        look.wake()
        floors.append(round(look.at - 100.0, 3))
    assert floors == [FLOOR, 0.01, 0.02, 0.04, 0.08, 0.1, 0.1, 0.1]


def test_a_wake_during_the_claim_is_not_lost(look: Look) -> None:
    look.woken = False
    look.wake()
    look.found(0, sent_at=100.0, was_woken=False, poll=5.0)
    assert look.at == 100.0


def test_a_poll_in_vain_floors_nothing(look: Look) -> None:
    look.woken = False
    look.found(0, sent_at=100.0, was_woken=False, poll=5.0)
    look.wake()
    assert look.at == 100.0


def test_what_comes_due_during_a_claim_is_not_forgotten(look: Look) -> None:
    now = time.monotonic()
    look.woken = False
    look.due_in([2.0, 0.3])
    assert look.is_due(now)  # the first look of all; its claim is under way …
    look.lane.hungry = False
    look.found(0, sent_at=now, was_woken=False, poll=60.0)
    assert now + 0.3 <= look.at <= now + 0.35
    look.found(0, sent_at=now + 0.4, was_woken=False, poll=60.0)
    assert now + 2.0 <= look.at <= now + 2.05
    look.found(0, sent_at=now + 2.1, was_woken=False, poll=60.0)
    assert look.at == now + 62.1


def test_what_is_scheduled_is_looked_for_when_it_comes_due(look: Look) -> None:
    now = time.monotonic()
    look.woken = False
    look.found(0, sent_at=now, was_woken=False, poll=60.0)
    assert look.may_ask(now)
    look.scheduled(2.0, asked_at=now)
    assert now + 2.0 <= look.at <= now + 2.1
    assert not look.may_ask(now)  # … and once more when it may be
    assert now + ASKS_EVERY <= look.at < now + 1.0
    look.found(1, sent_at=now + 0.5, was_woken=False, poll=60.0)
    assert now + 2.0 <= look.at <= now + 2.1  # that still holds
    look.found(0, sent_at=now + 2.2, was_woken=False, poll=60.0)
    assert look.at == now + 62.2
    look.scheduled(math.inf, asked_at=now)
    assert look.at == now + 62.2


def test_many_who_look_for_one_that_is_scheduled_are_floored_as_by_wakes(look: Look) -> None:
    look.woken = False
    for _ in range(8):
        now = time.monotonic()
        look.found(0, sent_at=now, was_woken=False, poll=5.0)
        look.scheduled(0.0, asked_at=now)
        look.found(0, sent_at=look.at, was_woken=False, poll=5.0)
    look.scheduled(0.0, asked_at=now)
    assert look.at - look._looked_at == pytest.approx(0.1)


def test_how_often_it_is_asked_depends_on_what_that_takes(look: Look) -> None:
    now = time.monotonic()
    look.scheduled(math.inf, asked_at=now - 0.3)
    assert look.may_ask(now + 1.0), "once may be the machine's mood"
    look.scheduled(math.inf, asked_at=now - 0.3)
    assert not look.may_ask(now + 100 * 0.3)
    assert look.may_ask(now + 100 * 0.3 + 50)
    look.scheduled(math.inf, asked_at=time.monotonic())
    assert look.may_ask(time.monotonic() + 1.0)


def test_an_answer_that_was_held_up_for_long_does_not_end_the_asking(look: Look) -> None:
    now = time.monotonic()
    for _ in range(2):
        look.scheduled(math.inf, asked_at=now - 20)
    assert not look.may_ask(now + 50)
    assert look.may_ask(now + 70)


def test_who_never_gets_what_is_scheduled_asks_less_often_until_it_does(look: Look) -> None:
    """It is for another lane, or others are always sooner."""
    look.woken = False
    pauses = []
    for number in (0, 0, 0, 0, 0, 3):
        now = time.monotonic()
        look.scheduled(0.0, asked_at=now)
        look.found(number, sent_at=look._scheduled, was_woken=False, poll=5.0)
        asked_at = time.monotonic()
        look.scheduled(math.inf, asked_at=asked_at)
        pauses.append(round(look._ask_at - asked_at, 1))
    assert pauses == [0.2, 0.4, 0.8, 1.0, 1.0, 0.1]


def test_a_wake_while_it_is_noted_when_work_will_be_due_is_not_lost(lane: Lane) -> None:
    class Interleaved(Look):
        """A wake comes when `at` has been read to be set anew."""

        wakes: bool = False

        @property
        def at(self) -> float:
            known = self._at
            if self.wakes:
                self.wakes = False
                self.wake()
            return known

        @at.setter
        def at(self, value: float) -> None:
            self._at = value

    look = Interleaved(lane, lambda: None)
    now = time.monotonic()
    look.woken = False
    look.found(0, sent_at=now, was_woken=False, poll=60.0)
    look.due_in([3.0])
    look.wakes = True
    look._note_dues()
    assert look.woken
    assert look.is_due(now)
    look.wakeup.close()


def test_a_wake_while_it_is_asked_is_not_lost(look: Look) -> None:
    now = time.monotonic()
    look.woken = False
    look.found(0, sent_at=now, was_woken=False, poll=60.0)
    look.wakeup.set()
    look.scheduled(2.0, asked_at=now)
    assert look.at == now


# How much to claim


def test_the_target_is_the_idle_slots_until_the_run_time_is_known(lane: Lane) -> None:
    lane.open[1] = batch_of(lane, "a")
    assert lane.target(5) == 5
    assert lane.target(0) == 0


def test_the_target_follows_the_run_time(lane: Lane) -> None:
    lane.open[1] = batch_of(lane, "a")
    lane.ran(100, 100 * 2.0)
    assert lane.target(0) == 0  # slow: nothing is prefetched
    for _ in range(50):
        lane.ran(100, 100 * 0.05)
    assert lane.target(0) == int(8 * HORIZON / 0.05)
    for _ in range(50):
        lane.ran(100, 100 * 0.000001)
    assert lane.target(0) == 2 * lane.source.max_claim


def test_a_lane_with_nothing_in_hand_or_running_gets_its_place_however_busy_the_slots(lane: Lane) -> None:
    assert lane.target(0) == 1


def test_a_short_lease_means_a_short_horizon(make_queue: MakeQueue) -> None:
    queue = make_queue()
    queue.handler(lease=timedelta(seconds=0.2))(lambda item: None)
    (lane,) = lanes_of([queue.source])
    lane.slots = 8
    lane.ran(100, 100 * 0.001)
    assert lane.target(0) * 0.001 / 8 <= 0.2 / 10


def test_a_budget_is_never_overdrawn_and_what_was_not_claimed_goes_back() -> None:
    budget = Budget(10)
    assert budget.take(7) == 7
    assert budget.take(7) == 3
    assert not budget.spent  # two claims are under way
    budget.claimed(2, of=7)
    budget.claimed(3, of=3)
    assert budget.take(9) == 5
    budget.claimed(5, of=5)
    assert budget.spent


def test_no_budget_is_without_end() -> None:
    budget = Budget(None)
    assert budget.take(500) == 500
    assert not budget.spent


# A batch


def test_what_is_settled_dropped_or_lost_is_no_longer_renewed(lane: Lane) -> None:
    batch = batch_of(lane, "a", "b", "c", "d")
    batch.done.append(Outcome(batch.works[0], Verb.COMPLETE))
    assert batch.held() == ["a", "b", "c", "d"]  # an outcome that is not written yet needs its lease
    batch.settled = 1
    batch.dropped.add("b")
    assert batch.lose(["a", "c"]) == [batch.works[2]]
    assert batch.held() == ["d"]


def test_nothing_may_start_under_a_lease_that_is_nearly_over_or_lost(lane: Lane) -> None:
    fresh, stale = batch_of(lane, "a", "b"), batch_of(lane, "a", seconds=lane.margin / 2)
    assert fresh.may_start(fresh.works[0])
    assert not stale.may_start(stale.works[0])
    fresh.lose(["a"])
    assert not fresh.may_start(fresh.works[0])
    assert fresh.may_start(fresh.works[1])


# The line


def test_messages_survive_being_cut_anywhere() -> None:
    messages = [("hold", 1, 2**61, 1.5, b"x" * 1000), ("forget", 2**61), ("lost", 3, ["ä", "b"])]
    stream = b"".join(pack(*message) for message in messages)
    for step in (1, 2, 3, 7, 1000):
        reader = Reader()
        got = [
            message for start in range(0, len(stream), step) for message in reader.feed(stream[start : start + step])
        ]
        assert got == messages


def test_neither_side_ever_waits_for_the_other_and_nothing_is_lost_or_reordered() -> None:
    """Both directions are full, and nobody reads."""
    one, other = socket.socketpair()
    ends = {one: Writer(one), other: Writer(other)}
    begun = time.monotonic()
    for number in range(300):
        for writer in ends.values():
            assert writer.send(pack("message", number, b"x" * 2000))
    assert time.monotonic() - begun < 2
    assert not ends[one].flush()
    got: list[int] = []
    reader = Reader()
    other.settimeout(0.0)
    while len(got) < 300:
        ends[one].flush()
        try:
            got += [message[1] for message in reader.feed(other.recv(65536))]
        except BlockingIOError:
            continue
    assert got == list(range(300))
    one.close()
    other.close()


def test_what_a_dead_reader_leaves_is_bounded() -> None:
    one, other = socket.socketpair()
    writer = Writer(one)
    refused = 0
    for _ in range(100):
        refused += not writer.send(pack("message", b"x" * 100_000))
    assert refused
    one.close()
    other.close()


def test_a_supervisor_that_did_not_listen_for_long_is_told_all_the_claims_there_are(lane: Lane) -> None:
    with Signals() as signals:
        supervisor = Supervisor([lane], lambda *_: 0, processes=1, shutdown_timeout=1, signals=signals)
        ours, theirs = socket.socketpair()
        ours.settimeout(0.0)
        child = Child(0, os.getpid(), ours)
        own = OwnKeeper([lane], {"default": Outage("default")}, lost=lambda *_, **__: None)
        line = Line(theirs, lost=lambda *_, **__: None, own=own, alone=lambda: None, counts=Counts)
        claims = [
            batch_of(lane, *(f"{token}-{n}-{'x' * 400}" for n in range(100)), token=token) for token in range(200)
        ]
        for batch in claims:
            line.hold(batch)
        for batch in claims[:150]:
            line.forget(batch)
        line.drop(claims[199], claims[199].works[:99])
        line.start()

        def knows_all() -> bool:
            supervisor._read(child)
            return set(child.claims) == set(range(150, 200)) and len(child.claims[199].held()) == 1

        wait_until(knows_all, 20)
        (renewer,) = supervisor._renewers.values()
        assert set(renewer.leases) == set(range(150, 200))
        assert child.claims[150].held() == lane.source.idents(claims[150].works)
        line.forget(claims[150])
        wait_until(lambda: supervisor._read(child) or 150 not in child.claims)
        line.stop(1)
    ours.close()
    theirs.close()


# Outages and timeouts


@pytest.mark.parametrize("part", ["claim", "settle"])
def test_trouble_lasts_from_the_first_failure_until_a_success_or_until_nothing_is_tried(part: str) -> None:
    outage, error = Outage("default"), OperationalError("gone")
    patience = Patience(part, outage)
    assert outage.lasting(0) is None
    patience.failed(OperationalError("gone, at first"))
    patience.failed(error)
    assert outage.lasting(0) is error
    assert outage.lasting(60) is None
    patience.succeeded()
    assert outage.lasting(0) is None
    patience.failed(error)
    patience.rests()  # its slots are busy: what failed a while ago says nothing of now
    assert outage.lasting(0) is None


def test_trouble_of_parts_that_may_have_nothing_left_to_try_does_not_last() -> None:
    outage = Outage("default")
    Patience("renew", outage).failed(OperationalError("gone"))
    assert outage.lasting(0) is None


def test_waiting_grows_with_jitter_to_a_ceiling_and_starts_anew_after_a_success() -> None:
    patience = Patience("test", Outage("default"))
    waits = [patience.failed(RuntimeError())[0] for _ in range(12)]
    assert waits[0] <= 0.15
    assert 2.5 <= waits[-1] <= 7.5
    assert waits[-1] != waits[-2]
    patience.succeeded()
    assert patience.failed(RuntimeError())[0] <= 0.15


def test_an_alarm_that_rings_late_hits_nothing() -> None:
    """A thread that is guarded a thousand times for next to no time: the exception never leaves the guard."""
    dog = Watchdog(lambda slot: None, lambda slot: None)
    dog.start()
    escaped: list[BaseException] = []
    rung: list[bool] = []

    def spin(seconds: float) -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            pass

    def run() -> None:
        alarm = dog.add("slot")
        for number in range(1500):
            try:
                _, _, rang = dog.guarded(alarm, 0.0004, lambda: spin(0.00035 + (number % 10) * 0.00002))  # noqa: B023
                rung.append(rang)
                spin(0.00005)
            except BaseException as error:
                escaped.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(60)
    dog.stop()
    assert escaped == []
    assert any(rung)
    assert not all(rung)


def test_the_watchdog_outlives_what_goes_wrong_when_an_alarm_rings(caplog: pytest.LogCaptureFixture) -> None:
    rung: list[str] = []

    def rang(slot: str) -> None:
        rung.append(slot)
        raise MemoryError

    def spin() -> None:
        while True:
            time.sleep(0.001)

    dog = Watchdog(rang, lambda slot: None)
    dog.start()

    def run() -> None:
        alarm = dog.add("slot")
        for _ in range(2):
            dog.guarded(alarm, 0.01, spin)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(10)
    dog.stop()
    assert rung == ["slot", "slot"]
    assert "the watchdog raised MemoryError()" in caplog.text


# Starts


@pytest.mark.parametrize("asked_before", [False, True])
def test_whoever_asks_to_start_after_the_end_is_told_no(lane: Lane, asked_before: bool) -> None:
    starter, batch, answers = Starter({"default": Outage("default")}), batch_of(lane, "a"), list[bool]()
    if asked_before:
        assert starter.start(lane, batch, batch.works[0])
    starter.close()
    wait_until(lambda: not any(thread.name == "workqueue-start-default" for thread in threading.enumerate()))
    starter.ask(lane, batch, batch.works[0], answers.append)
    wait_until(lambda: answers == [False])


def test_threads_are_named(queue: Queue[str]) -> None:
    from django_workqueue.worker import Worker

    others, names = {thread.name for thread in threading.enumerate()}, set[str]()
    queue.handler(lambda item: names.update(thread.name for thread in threading.enumerate()))
    queue.enqueue("a")
    Worker([queue]).drain()
    assert {"workqueue-claim-default", "workqueue-settle-default", "workqueue-renew-default"} <= names
    assert {"workqueue-maintain-default", "workqueue-handler-0"} <= names
    assert not any(name.startswith("Thread-") for name in names - others)
