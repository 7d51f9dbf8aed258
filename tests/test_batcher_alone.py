"""The group commit when a caller is alone: it writes for itself, and whatever comes of that the thread goes on with."""

import gc
import math
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from django_workqueue import EnqueueTimeout, Queue, lanes
from django_workqueue.batcher import Batcher, process, thread, writer
from django_workqueue.batcher.writer import Batch
from django_workqueue.exceptions import QueueClosed

from .interleave import aside, wait_until
from .recorder import Conflict, Connection, Gone, Locked, Recorder, Refused
from .relay import Relay, relayed
from .test_batcher import MakeBatcher, in_line, make_batcher, submit_aside, thread_of

__all__ = ["make_batcher"]


@pytest.fixture
def batcher(make_batcher: MakeBatcher) -> Batcher:
    return resting(make_batcher(at_hand=lambda: True))


def resting(batcher: Batcher) -> Batcher:
    """With a thread that has written and has nothing to do."""
    batcher.submit(Recorder(), ["before"], 10)
    wait_until(lambda: batcher._thread.rests)
    return batcher


def interrupted_in(batcher: Batcher, lane: Recorder, monkeypatch: pytest.MonkeyPatch, *methods: str) -> None:
    """A caller with "a" for the lane, interrupted at each of these."""

    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        for method in methods:
            patch.setattr(batcher, method, interrupted)
        with pytest.raises(KeyboardInterrupt):
            batcher.submit(lane, ["a"], 10)


def me() -> str:
    return threading.current_thread().name


# Who writes


def test_a_caller_who_is_alone_writes_on_its_own_thread(batcher: Batcher) -> None:
    lane = Recorder(results=lambda entries: [entry.upper() for entry in entries])

    assert batcher.submit(lane, ["a", "b"], 10) == ["A", "B"]
    wait_until(lambda: batcher._thread.rests)
    assert batcher.submit(lane, ["c"]) == ["C"]

    assert lane.tally.threads == {me()}
    assert lane.batches == [["a", "b"], ["c"]]


def test_the_first_call_of_a_process_is_the_threads(make_batcher: MakeBatcher) -> None:
    batcher, lane = make_batcher(at_hand=lambda: True), Recorder()

    batcher.submit(lane, ["a"], 10)

    assert lane.tally.threads == {"test-batcher"}


@pytest.mark.parametrize(
    ("entries", "timeout", "at_hand"),
    [(["a"], 10, False), (["a"], 0.9, True), (["a"] * 101, 10, True)],
    ids=["no connection", "hardly any time", "more than a batch"],
)
def test_otherwise_the_thread_does(
    make_batcher: MakeBatcher, entries: list[str], timeout: float, at_hand: bool
) -> None:
    batcher, lane = resting(make_batcher(at_hand=lambda: at_hand)), Recorder()

    batcher.submit(lane, entries, timeout)

    assert lane.tally.threads == {"test-batcher"}
    assert lane.written == entries


def test_those_who_come_meanwhile_line_up_for_the_thread_and_no_two_write_at_once(batcher: Batcher) -> None:
    lane = Recorder()
    lane.hold()
    first = aside(batcher.submit, lane, ["first"], 10)
    lane.wait_for_write()

    calls = submit_aside(batcher, lane, ["a"], ["b"], ["c"])
    assert lane.attempts == [["first"]]
    lane.let_go()

    for call in [first, *calls]:
        call.result(10)
    assert lane.batches == [["first"], ["a", "b", "c"]]
    assert lane.tally.threads == {"aside-submit", "test-batcher"}
    assert lane.tally.most_at_once == 1


def test_a_storm_of_callers_loses_and_doubles_nothing(batcher: Batcher) -> None:
    lane = Recorder()

    def call(number: int) -> None:
        for turn in range(50):
            batcher.submit(lane, [(number, turn)], 10)
            if turn % 10 == number:
                time.sleep(0.001)  # so that somebody is alone now and then

    for caller in [aside(call, number) for number in range(6)]:
        caller.result(30)
    assert sorted(lane.written) == [(number, turn) for number in range(6) for turn in range(50)]
    assert lane.tally.most_at_once == 1
    assert batcher._lines.admitted == 0


def test_the_thread_does_not_count_as_resting_when_it_was_woken_for_nothing(
    batcher: Batcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    rested: list[bool] = []

    def chores() -> float:
        rested.append(batcher._thread.rests)
        return math.inf

    monkeypatch.setattr(batcher._thread, "_chores", chores)
    lane = Recorder()
    lane.hold()
    batcher.post(lane, ["a"])
    lane.wait_for_write()
    with batcher._lock:
        batcher._thread.wake()  # as whoever leaves does
    lane.let_go()

    wait_until(lambda: len(rested) == 2)
    assert not any(rested)


def test_what_writes_cannot_wait_for_itself_on_a_callers_thread_either(batcher: Batcher) -> None:
    lane = Recorder(fails=lambda entries: batcher.submit(lane, ["again"], 10) and None)

    with pytest.raises(RuntimeError, match="cannot wait for itself"):
        batcher.submit(lane, ["a"], 10)


# What does not succeed at once


@pytest.mark.parametrize("error", [Gone("away"), Conflict("deadlock"), Locked("table")], ids=str)
def test_what_fails_for_the_moment_the_thread_goes_on_with(make_batcher: MakeBatcher, error: Exception) -> None:
    connection = Connection()
    batcher = resting(make_batcher(connection, at_hand=lambda: True))
    errors = [error]
    lane = Recorder(fails=lambda entries: errors.pop() if errors else None, results=lambda entries: entries)

    assert batcher.submit(lane, ["a"], 10) == ["a"]

    assert lane.attempts == [["a"], ["a"]]
    assert lane.tally.threads == {me(), "test-batcher"}
    assert connection.dropped == isinstance(error, Gone)


def test_what_is_refused_is_its_callers_error_and_the_next_is_written(batcher: Batcher) -> None:
    lane = Recorder(fails=lambda entries: Refused("bad") if "bad" in entries else None)

    with pytest.raises(Refused):
        batcher.submit(lane, ["bad"], 10)
    wait_until(lambda: batcher._thread.rests)
    batcher.submit(lane, ["good"], 10)

    assert lane.written == ["good"]


@pytest.mark.parametrize("raised", [ZeroDivisionError, KeyboardInterrupt, SystemExit])
def test_what_is_raised_into_a_caller_while_it_writes_is_its_own(
    make_batcher: MakeBatcher, raised: type[BaseException]
) -> None:
    """As a handler's timeout is, which is an `Exception` like any other."""
    connection = Connection()
    batcher = resting(make_batcher(connection, at_hand=lambda: True))
    errors = [raised()]
    lane = Recorder(fails=lambda entries: errors.pop() if errors else None)

    with pytest.raises(raised):
        batcher.submit(lane, ["a"], 10)

    wait_until(lambda: lane.written == ["a"])
    assert connection.dropped == 1
    batcher.submit(lane, ["b"], 10)
    assert lane.written == ["a", "b"]


@pytest.mark.parametrize("itself", [False, True])
def test_a_caller_that_did_not_get_to_write_and_could_not_say_so_holds_nobody_up_for_long(
    batcher: Batcher, monkeypatch: pytest.MonkeyPatch, itself: bool
) -> None:
    """Interrupted again as it took back what it was about to do. Neither others nor that thread itself."""
    monkeypatch.setattr(writer, "ALONE_BEGINS_WITHIN", 0.05)
    lane = Recorder()
    interrupted_in(batcher, lane, monkeypatch, "_write_alone", "_leave")

    if itself:
        batcher.submit(lane, ["b"], 10)
    else:
        aside(batcher.submit, lane, ["b"], 10).result(10)
    assert lane.written == ["a", "b"]


def test_nor_does_it_take_itself_for_the_one_that_writes_while_the_database_is_gone(
    batcher: Batcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "ALONE_BEGINS_WITHIN", 0.05)
    gone = [Gone()]
    lane = Recorder(fails=lambda entries: gone[0] if gone else None)

    interrupted_in(batcher, lane, monkeypatch, "_write_alone", "_leave")
    begun = aside(batcher.submit, lane, ["b"], 20)
    wait_until(lambda: lane.attempts)

    with pytest.raises(EnqueueTimeout):
        batcher.submit(lane, ["c"], 0.1)
    gone.clear()
    begun.result(20)
    assert lane.written[:2] == ["a", "b"]


def test_a_caller_that_is_interrupted_before_it_writes_leaves_its_call_too(
    batcher: Batcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    lane = Recorder()
    interrupted_in(batcher, lane, monkeypatch, "_write_alone")

    wait_until(lambda: lane.written == ["a"])
    batcher.submit(lane, ["b"], 10)
    assert lane.written == ["a", "b"]


def test_a_thread_that_is_interrupted_when_it_begins_to_write_can_enqueue_again(
    make_batcher: MakeBatcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Interrupting(set[int]):
        def add(self, thread: int) -> None:
            super().add(thread)
            raise KeyboardInterrupt

    batcher, lane = make_batcher(), Recorder()
    monkeypatch.setattr(process, "threads_available", lambda: False)
    with monkeypatch.context() as patch:
        patch.setattr(batcher._writer, "threads", Interrupting())
        with pytest.raises(KeyboardInterrupt):
            batcher.submit(lane, ["a"], 10)
        assert not batcher._writer.is_me()
    batcher.submit(lane, ["b"], 10)
    assert lane.written[-1] == "b"


def test_a_caller_that_is_interrupted_as_it_says_by_when_takes_that_back(make_batcher: MakeBatcher) -> None:
    told: list[float | None] = []

    def answer_by(deadline: float | None) -> None:
        told.append(deadline)
        if deadline is not None:
            raise KeyboardInterrupt

    batcher, lane = resting(make_batcher(at_hand=lambda: True, answer_by=answer_by)), Recorder()
    with pytest.raises(KeyboardInterrupt):
        batcher.submit(lane, ["a"], 10)
    assert told[-1] is None
    assert not batcher._writer.is_me()


def test_a_caller_without_a_thread_to_leave_it_to_goes_on_itself(
    batcher: Batcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    errors: list[Exception] = [Gone("away")]

    def fails(entries: list[Any]) -> Exception | None:
        if not errors:
            return None
        batcher._thread._thread = None  # it has ended
        monkeypatch.setattr(batcher._thread, "_start", lambda: False)
        return errors.pop()

    lane = Recorder(fails=fails)
    batcher.submit(lane, ["a"], 10)

    assert lane.written == ["a"]
    assert lane.tally.threads == {me()}


def test_closing_waits_for_it_and_gives_up_on_it_in_time(batcher: Batcher) -> None:
    lane = Recorder()
    lane.hold()
    first = aside(batcher.submit, lane, ["a"], 10)
    lane.wait_for_write()

    batcher.close(0.05)

    lane.let_go()
    with pytest.raises(EnqueueTimeout, match="may or may not have landed"):
        first.result(10)
    with pytest.raises(QueueClosed):
        batcher.submit(lane, ["b"], 10)


# What it may cost


def test_the_connection_is_told_by_when_it_has_to_answer_and_when_that_is_over(make_batcher: MakeBatcher) -> None:
    told: list[float | None] = []
    batcher, lane = resting(make_batcher(at_hand=lambda: True, answer_by=told.append)), Recorder()
    told.clear()

    batcher.submit(lane, ["a"], 10)

    assert told[0] is not None
    assert 0 < told[0] - time.monotonic() <= 10
    assert set(told[1:]) == {None}


# What follows


def test_what_follows_is_the_threads_soon_and_told_of_all_that_was_written(batcher: Batcher) -> None:
    class Following(Recorder):
        def after(self, entries: list[Any]) -> None:
            followed.append((me(), entries))

    followed: list[tuple[str, list[Any]]] = []
    lane = Following()
    wait_until(lambda: batcher._thread._rests_until > time.monotonic() + 10)

    for number in range(20):
        batcher.submit(lane, [number], 10)

    wait_until(lambda: [entry for _, entries in followed for entry in entries] == [*range(20)])
    assert {name for name, _ in followed} == {"test-batcher"}


def test_what_was_written_just_before_the_thread_rests_is_followed_too(make_batcher: MakeBatcher) -> None:
    lane = Recorder()
    written = [Batch(lane, [], 1)]

    def chores() -> float:
        since = time.monotonic() - batcher._writer.followed_at
        if written and thread.FOLLOWS_OFTEN < since < math.inf:  # from here on it rests for long
            written[0].landed = ["a"]
            batcher._writer.to_follow.append(written.pop())
        return 1000.0

    batcher = make_batcher(at_hand=lambda: True, chores=chores)
    resting(batcher).submit(Recorder(), ["b"], 10)

    wait_until(lambda: lane.afters == 1)


def test_nothing_that_follows_is_left_undone_at_the_end(make_batcher: MakeBatcher, monkeypatch: Any) -> None:
    monkeypatch.setattr(thread, "FOLLOWS_WITHIN", 1000.0)
    batcher, lane = resting(make_batcher(at_hand=lambda: True)), Recorder()

    batcher.submit(lane, ["a"], 10)
    assert batcher.rest(10)

    assert lane.tally.threads == {me()}
    assert lane.afters == 1


def test_chores_that_come_up_with_it_are_done_in_time(make_batcher: MakeBatcher) -> None:
    due: list[float] = [1000.0]
    done: list[str] = []

    def chores() -> float:
        done.append(me())
        if due[0] < 1:
            due[0] = 1000.0
            return 0.02
        return due[0]

    class Counting(Recorder):
        def after(self, entries: list[Any]) -> None:
            due[0] = 0.02

    batcher = resting(make_batcher(at_hand=lambda: True, chores=chores))
    before = len(done)

    batcher.submit(Counting(), ["a"], 10)

    wait_until(lambda: len(done) >= before + 2)
    assert set(done) == {"test-batcher"}


# What it may cost


def test_a_connection_on_which_callers_write_for_themselves_is_not_idle(make_batcher: MakeBatcher) -> None:
    connection = Connection()
    batcher, lane = make_batcher(connection, at_hand=lambda: True, idle_after=lambda: 0.2), Recorder()
    resting(batcher)
    until = time.monotonic() + 0.7
    while time.monotonic() < until:
        batcher.submit(lane, ["a"], 10)
        time.sleep(0.01)
    assert connection.dropped == 0
    assert me() in lane.tally.threads
    wait_until(lambda: connection.dropped == 1)
    wait_until(lambda: thread_of(batcher) is None)


def test_a_thread_does_not_end_while_somebody_writes_in_its_place(make_batcher: MakeBatcher) -> None:
    connection = Connection()
    batcher, lane = resting(make_batcher(connection, at_hand=lambda: True, idle_after=lambda: 0.05)), Recorder()
    lane.fails = lambda entries: Gone("away") if len(lane.attempts) == 1 else None
    lane.hold()
    first = aside(batcher.submit, lane, ["a"], 10)
    lane.wait_for_write()
    time.sleep(0.3)  # several times as long as it stays without work

    lane.let_go()

    first.result(10)
    assert lane.written == ["a"]
    assert in_line(batcher) == 0


# On a server


@pytest.fixture
def relay() -> Iterator[Relay]:
    with relayed() as relay:
        yield relay


@pytest.fixture
def far(relay: Relay, monkeypatch: pytest.MonkeyPatch) -> Iterator[Queue[str]]:
    """A queue of the usual database, by way of the relay; a connection once opened stays, however busy the machine."""
    monkeypatch.setattr(lanes, "IDLE_AFTER_IN_TESTS", 60)
    yield Queue("alone", using="other")
    gc.collect()  # an error's traceback would keep it, and with it the alias, for the tests that follow


@pytest.mark.django_db(databases=["default", "other"], transaction=True)
def test_an_enqueue_that_nobody_answers_ends_at_its_timeout_and_lands_on_another_connection(
    far: Queue[str], relay: Relay
) -> None:
    near = Queue("alone")
    batcher = far.source.commits.batcher
    far.enqueue("before")
    wait_until(lambda: batcher._thread.rests)
    relay.freeze()
    began = time.monotonic()

    with pytest.raises(EnqueueTimeout, match=r"still likely to land.*does not answer"):
        far.enqueue("a", timeout=1.2)

    assert 1 < time.monotonic() - began < 5
    wait_until(lambda: near.stats().pending == 2)
    far.enqueue("b")
    assert {item.key for item in near.claim()} == {"before", "a", "b"}
    far.close(10)
