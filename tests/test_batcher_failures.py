"""The group commit when writes fail: whose error it is, what is repeated, what is answered when nothing helps."""

import asyncio
import contextlib
import gc
import random
import re
import sys
import threading
import time
import traceback
import types
import weakref
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from django_workqueue.batcher import Batcher, process, threads_available, writer
from django_workqueue.exceptions import EnqueueTimeout, WorkqueueError

from .interleave import aside, wait_until
from .recorder import Conflict, Connection, Gone, Locked, Recorder, Refused
from .test_batcher import MakeBatcher, batcher, busy, in_line, make_batcher, submit_aside, thread_of

__all__ = ["batcher", "make_batcher"]


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Repetitions follow at once."""
    monkeypatch.setattr(writer, "PAUSE", 0.0001)
    monkeypatch.setattr(writer, "PAUSE_MAX", 0.001)


def refuses(*culprits: Any) -> Callable[[list[Any]], BaseException | None]:
    return lambda entries: next((Refused(entry) for entry in entries if entry in culprits), None)


# Refused


def test_only_the_culprits_callers_see_the_error_and_all_others_land(make_batcher: MakeBatcher) -> None:
    batcher = make_batcher(batch_max=1000)
    lane = Recorder(fails=refuses(13, 77), results=lambda entries: [-entry for entry in entries])
    lane.hold()
    first = aside(batcher.submit, lane, [-1], 10)
    lane.wait_for_write()
    calls = submit_aside(batcher, lane, *[[n] for n in range(100)])

    lane.let_go()

    first.result(10)
    for n, call in enumerate(calls):
        if n in (13, 77):
            with pytest.raises(Refused, match=str(n)):
                call.result(10)
        else:
            assert call.result(10) == [-n]
    assert sorted(lane.written) == sorted({*range(-1, 100)} - {13, 77})
    assert len(lane.attempts) < 40


def test_those_that_land_after_a_refusal_land_in_order(batcher: Any) -> None:
    lane = Recorder(fails=refuses("c"))
    busy(batcher, lane)
    calls = submit_aside(batcher, lane, *[[name] for name in "abcdefg"])

    lane.let_go()

    wait_until(lambda: all(call.done() for call in calls))
    assert lane.written == ["first", *"abdefg"]


def test_a_refused_call_of_several_entries_is_not_taken_apart(batcher: Any) -> None:
    lane = Recorder(fails=refuses("bad"))

    with pytest.raises(Refused):
        batcher.submit(lane, ["good", "bad"], 10)

    assert lane.attempts == [["good", "bad"]]


def test_of_a_call_of_several_batches_what_was_written_before_the_refused_one_stays_and_nothing_follows(
    make_batcher: MakeBatcher,
) -> None:
    batcher = make_batcher(batch_max=2, pending_max=3)
    lane = Recorder(fails=refuses("d"))

    with pytest.raises(Refused):
        batcher.submit(lane, ["a", "b", "c", "d", "e", "f", "g"], 10)

    assert batcher.flush(10)
    assert lane.written == ["a", "b"]
    assert batcher._lines.admitted == 0


def test_the_error_is_the_writes_own_with_a_short_traceback_and_no_cycle(batcher: Any) -> None:
    lane = Recorder(fails=lambda entries: Refused("bad"))
    alive = []
    gc.collect()
    gc.disable()
    try:
        try:
            batcher.submit(lane, ["a"], 10)
        except Refused as error:
            frames = [frame.name for frame in traceback.extract_tb(error.__traceback__)]
            alive.append(weakref.ref(error))
        lane.fails = lambda entries: None
        batcher.submit(lane, ["b"], 10)

        assert frames[-1] == "write"
        assert len(frames) < 8
        assert [error() for error in alive] == [None]
    finally:
        gc.enable()


def test_an_awaiting_caller_sees_its_error(batcher: Any) -> None:
    with pytest.raises(Refused):
        asyncio.run(batcher.asubmit(Recorder(fails=refuses("a")), ["a"], 10))


def test_a_refusal_that_nobody_waits_for_any_more_is_logged(batcher: Any, caplog: pytest.LogCaptureFixture) -> None:
    lane = Recorder(fails=refuses("a", "b"))
    busy(batcher, lane)
    with pytest.raises(EnqueueTimeout):
        batcher.submit(lane, ["a"], 0.01)
    batcher.post(lane, ["b"])

    lane.let_go()

    assert batcher.flush(10)
    assert caplog.text.count("refused when nobody waited any more") == 2


# Conflicts


def test_a_deadlock_is_repeated_and_no_caller_hears_of_it(batcher: Any, quick: None) -> None:
    errors = [Conflict(), Conflict(), None]
    lane = Recorder(fails=lambda entries: errors.pop(0))

    assert batcher.submit(lane, ["a"], 10) is None

    assert lane.attempts == [["a"]] * 3
    assert lane.written == ["a"]


def test_conflicts_without_end_are_answered(batcher: Any, quick: None) -> None:
    lane = Recorder(fails=lambda entries: Conflict() if "a" in entries else None)
    busy(batcher, lane)
    calls = submit_aside(batcher, lane, ["a"], ["b"])

    lane.let_go()

    with pytest.raises(Conflict):
        calls[0].result(10)
    assert calls[1].result(10) is None
    assert lane.attempts[1:] == [["a", "b"]] * 6 + [["a"]] * 2 + [["b"]]


def test_a_deadlock_among_the_halves_of_a_refused_batch_is_nobodys_error(batcher: Any, quick: None) -> None:
    conflicts = 5

    def fails(entries: list[Any]) -> BaseException | None:
        nonlocal conflicts
        if entries == ["good"] and conflicts:
            conflicts -= 1
            return Conflict()
        return refuses("bad")(entries)

    lane = Recorder(fails=fails)
    busy(batcher, lane)
    calls = submit_aside(batcher, lane, ["bad"], ["good"])

    lane.let_go()

    with pytest.raises(Refused):
        calls[0].result(10)
    assert calls[1].result(10) is None


# Outages


def test_a_lost_connection_is_replaced_and_the_write_repeated_and_that_is_said_once(
    make_batcher: MakeBatcher, quick: None, caplog: pytest.LogCaptureFixture
) -> None:
    connection = Connection()
    batcher = make_batcher(connection)
    away: list[BaseException] = []
    lane = Recorder(fails=lambda entries: away.pop() if away else None)

    for entry in "ab":
        away += [Gone("server closed the connection")] * 20
        assert batcher.submit(lane, [entry], 10) is None

    assert lane.written == ["a", "b"]
    assert connection.dropped == 40
    assert [record.getMessage().split(": ")[1][:20] for record in caplog.records] == [
        "the database is gone",
        "the database is back",
    ] * 2


def test_a_connection_that_was_cut_while_nobody_used_it_is_replaced_without_a_warning(
    make_batcher: MakeBatcher, quick: None, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    connection = Connection()
    batcher = make_batcher(connection)
    lane = Recorder(fails=lambda entries: Gone("idle for too long") if len(lane.attempts) % 2 else None)

    for entry in "ab":
        assert batcher.submit(lane, [entry], 10) is None

    assert connection.dropped == 2
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
        ("INFO", "test-batcher: the connection was lost, another is opened: idle for too long")
    ] * 2


def test_callers_time_out_of_an_outage_and_their_entries_land_when_it_is_over(
    make_batcher: MakeBatcher, quick: None
) -> None:
    batcher = make_batcher(pending_max=3)
    back = threading.Event()
    lane = Recorder(fails=lambda entries: None if back.is_set() else Gone())

    for entry in "abcd":
        with pytest.raises(EnqueueTimeout, match="likely to land"):
            batcher.submit(lane, [entry], 0.02)
    with pytest.raises(EnqueueTimeout, match="Nothing of the call"):
        batcher.submit(lane, ["e"], 0.02)
    assert lane.written == []

    back.set()
    assert batcher.flush(10)
    assert lane.written == ["a", "b", "c", "d"]


def test_an_outage_ends_for_the_thread_when_everybody_was_answered_by_close(
    make_batcher: MakeBatcher, quick: None
) -> None:
    connection = Connection()
    batcher = make_batcher(connection)
    lane = Recorder(fails=lambda entries: Gone())
    call = aside(batcher.submit, lane, ["a"])
    wait_until(lambda: lane.attempts)

    batcher.close(0.05)

    with pytest.raises(EnqueueTimeout, match="may or may not have landed"):
        call.result(10)
    wait_until(lambda: thread_of(batcher) is None)


def test_a_connection_that_cannot_even_be_dropped_stops_nothing(
    make_batcher: MakeBatcher, quick: None, caplog: pytest.LogCaptureFixture
) -> None:
    def cannot() -> None:
        raise OSError("no")

    batcher = make_batcher(disconnect=cannot)
    errors = [Gone(), None]

    assert batcher.submit(Recorder(fails=lambda entries: errors.pop(0)), ["a"], 10) is None

    assert "could not drop the connection" in caplog.text


# What is nobody's entries


def test_a_setting_that_cannot_be_read_is_every_callers_error_and_the_next_call_starts_afresh(
    make_batcher: MakeBatcher, caplog: pytest.LogCaptureFixture
) -> None:
    broken = True

    def batch_max() -> int:
        if broken:
            raise LookupError("WORKQUEUE_BATCH_MAX is a poem")
        return 100

    batcher = make_batcher(batch_max=batch_max)
    lane = Recorder()

    with pytest.raises(WorkqueueError, match="the batcher failed") as raised:
        batcher.submit(lane, ["a"], 10)

    assert isinstance(raised.value.__cause__, LookupError)
    assert "is a poem" in caplog.text
    broken = False
    batcher.submit(lane, ["b"], 10)
    assert lane.written == ["b"]


def test_a_write_that_gives_too_few_results_hands_out_none(batcher: Any) -> None:
    lane = Recorder(results=lambda entries: entries[1:])

    with pytest.raises(WorkqueueError, match="batcher failed"):
        batcher.submit(lane, ["a", "b"], 10)

    assert lane.attempts == [["a", "b"]]


def test_an_exit_in_a_write_ends_no_more_than_that_thread(batcher: Any) -> None:
    lane = Recorder(fails=lambda entries: SystemExit(1) if "a" in entries else None)

    with pytest.raises(WorkqueueError, match="batcher failed"):
        batcher.submit(lane, ["a"], 10)

    batcher.submit(lane, ["b"], 10)
    assert lane.written == ["b"]


# Without threads


@pytest.fixture
def no_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "threads_available", lambda: False)


class Late(Exception):
    """What a signal's handler may raise, wherever it strikes."""


@pytest.mark.parametrize("interrupt", [KeyboardInterrupt, Late])
def test_without_threads_a_caller_interrupted_in_its_write_drops_the_connection_and_goes_on(
    make_batcher: MakeBatcher, no_threads: None, interrupt: type[BaseException]
) -> None:
    connection = Connection()
    batcher = make_batcher(connection)
    lane = Recorder(fails=lambda entries: interrupt() if len(lane.attempts) == 1 else None)
    with pytest.raises(interrupt):
        batcher.submit(lane, ["a"], 10)
    assert connection.dropped == 1
    batcher.submit(lane, ["b"], 10)
    assert lane.written[-1] == "b"


@pytest.mark.parametrize("call", [lambda batcher: batcher.submit(Recorder(), ["a"], 10), Batcher.rest])
def test_without_threads_an_interrupt_never_leaves_the_turn_taken(
    make_batcher: MakeBatcher, no_threads: None, monkeypatch: pytest.MonkeyPatch, call: Callable[[Batcher], Any]
) -> None:
    """It strikes at the end of a call, and so before what would release the lock that the call has acquired."""

    class Turn:
        def __init__(self) -> None:
            lock = threading.Lock()
            self.locked, self.release = lock.locked, lock.release
            self.__lock = lock

        def acquire(self, *args: Any, **how: Any) -> bool:
            self.__lock.acquire(*args, **how)
            raise KeyboardInterrupt

        def __enter__(self) -> None:
            self.__lock.acquire()

        def __exit__(self, *_: object) -> None:
            self.__lock.release()

    batcher = make_batcher()
    monkeypatch.setattr(batcher._writer, "turn", Turn())
    with contextlib.suppress(KeyboardInterrupt):
        call(batcher)
    assert not batcher._writer.turn.locked()


@pytest.mark.parametrize(
    ("options", "available"),
    [
        ({}, False),
        ({"enable-threads": True}, True),
        ({"enable-threads": b"true"}, True),
        ({"enable-threads": b"false"}, False),
        ({"enable-threads": "1"}, True),
        ({"enable-threads": "0"}, False),
        ({"threads": b"4"}, True),
    ],
)
def test_uwsgi_has_threads_only_when_it_was_told_to(
    options: dict[str, Any], available: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert threads_available()

    monkeypatch.setitem(sys.modules, "uwsgi", types.SimpleNamespace(opt=options))

    assert threads_available() is available


def test_without_threads_the_caller_writes_itself(batcher: Any, no_threads: None) -> None:
    lane = Recorder(results=lambda entries: entries)

    assert batcher.submit(lane, ["a"], 10) == ["a"]
    assert asyncio.run(batcher.asubmit(lane, ["b"], 10)) == ["b"]
    assert batcher.post(lane, ["c"]) == 1

    assert lane.written == ["a", "b", "c"]
    assert lane.tally.threads == {threading.current_thread().name}
    assert lane.afters == 3


def test_where_no_thread_can_be_started_the_caller_writes_itself(batcher: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    lane = Recorder()

    def refuse(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        batcher.submit(lane, ["a"], 10)
    batcher.submit(lane, ["b"], 10)

    assert lane.written == ["a", "b"]
    assert lane.tally.threads == {threading.current_thread().name, "test-batcher"}


def test_without_threads_there_is_still_one_write_at_a_time_and_it_takes_others_along(
    batcher: Any, no_threads: None
) -> None:
    lane = Recorder()
    first = busy(batcher, lane)
    calls = submit_aside(batcher, lane, ["a"], ["b"], ["c"])

    lane.let_go()

    for call in [first, *calls]:
        call.result(10)
    assert lane.batches == [["first"], ["a", "b", "c"]]
    assert lane.tally.most_at_once == 1


def test_without_threads_an_outage_holds_up_a_caller_no_longer_than_its_timeout(
    batcher: Any, no_threads: None, quick: None
) -> None:
    back = threading.Event()
    lane = Recorder(fails=lambda entries: None if back.is_set() else Gone())

    with pytest.raises(EnqueueTimeout, match="likely to land"):
        batcher.submit(lane, ["a"], 0.05)
    with pytest.raises(EnqueueTimeout, match="likely to land"):
        asyncio.run(batcher.asubmit(lane, ["b"], 0.05))

    back.set()
    batcher.submit(lane, ["c"], 10)
    assert lane.written == ["a", "b", "c"]


def test_without_threads_an_interrupted_write_is_not_taken_for_a_refused_one(batcher: Any, no_threads: None) -> None:
    errors: list[BaseException | None] = [KeyboardInterrupt(), None, None]
    lane = Recorder(fails=lambda entries: errors.pop(0))

    with pytest.raises(KeyboardInterrupt):
        batcher.submit(lane, ["a"], 10)

    batcher.submit(lane, ["b"], 10)
    assert lane.written == ["a", "b"]


# Everything at once


@pytest.mark.parametrize("threaded", [True, False])
def test_under_random_failures_timeouts_and_cancellations_every_entry_taken_on_lands_exactly_once(
    make_batcher: MakeBatcher, quick: None, monkeypatch: pytest.MonkeyPatch, threaded: bool
) -> None:
    if not threaded:
        monkeypatch.setattr(process, "threads_available", lambda: False)
    batcher = make_batcher(batch_max=7, pending_max=20, idle_after=lambda: 0.001)
    dice = random.Random(4)
    landed: Counter[tuple[Any, ...]] = Counter()

    def fails(entries: list[Any]) -> BaseException | None:
        time.sleep(dice.choice([0, 0, 0.001]))
        if any(poison for *_, poison in entries):
            return Refused()
        return dice.choices([None, Conflict(), Gone()], [20, 1, 1])[0]

    def results(entries: list[Any]) -> list[Any]:
        landed.update(entries)
        return entries

    lanes = [Recorder(name, fails=fails, results=results) for name in "abc"]
    for lane in lanes[1:]:
        lane.tally = lanes[0].tally
    sure: list[Any] = []
    never: list[Any] = []
    unsure: list[Any] = []

    def settle(entries: list[Any], error: BaseException | None, got: Any = None) -> None:
        if error is None:
            assert got == entries
            sure.extend(entries)
        elif isinstance(error, EnqueueTimeout) and "Nothing" in str(error):
            never.extend(entries)
        elif isinstance(error, EnqueueTimeout):
            partly = re.search(r"first (\d+) are", str(error))
            count = int(partly[1]) if partly else len(entries)
            sure.extend(entries[:count])
            never.extend(entries[count:])
        elif isinstance(error, Refused | Conflict):
            unsure.extend(entries)
        else:
            raise error

    def call(who: str, n: int, own: random.Random) -> tuple[Recorder, list[Any], float | None]:
        poison = own.random() < 0.05
        entries = [(who, n, at, poison) for at in range(own.choice([1, 1, 2, 5, 30]))]
        return own.choice(lanes), entries, own.choice([None, 10, 0.002])

    def produce(who: str) -> None:
        own = random.Random(who)
        for n in range(60):
            lane, entries, timeout = call(who, n, own)
            try:
                settle(entries, None, batcher.submit(lane, entries, timeout))
            except (WorkqueueError, Refused, Conflict) as error:
                settle_poisoned(entries, error)

    async def aproduce(who: str) -> None:
        own = random.Random(who)
        for n in range(60):
            lane, entries, timeout = call(who, n, own)
            task = asyncio.ensure_future(batcher.asubmit(lane, entries, timeout))
            if own.random() < 0.1:
                await asyncio.sleep(0.001)
                task.cancel()
            try:
                settle(entries, None, await task)
            except asyncio.CancelledError:
                unsure.extend(entries)
            except (WorkqueueError, Refused, Conflict) as error:
                settle_poisoned(entries, error)

    def settle_poisoned(entries: list[Any], error: BaseException) -> None:
        # What was taken on of a poisoned call, or meets conflict upon conflict, is refused later, with nobody there.
        if entries[0][-1]:
            unsure.extend(entries)
        else:
            settle(entries, error)

    async def main(name: str) -> None:
        await asyncio.gather(*(aproduce(f"{name}{n}") for n in range(5)))

    producers = [aside(produce, f"thread {n}") for n in range(6)]
    producers += [aside(asyncio.run, main(f"loop {n} task ")) for n in range(2)]
    for producer in producers:
        producer.result(60)
    assert batcher.flush(20)

    assert lanes[0].tally.most_at_once == 1
    assert max(landed.values()) == 1
    assert in_line(batcher) == 0
    assert batcher._lines.admitted == 0
    assert not [entry for entry in never if landed[entry]]
    assert not [entry for entry in sure if not landed[entry]]
    assert len(sure) > 1000
    assert len(never) + len(unsure) > 50


def test_a_timeout_while_the_database_is_away_says_why(make_batcher: MakeBatcher) -> None:
    batcher = make_batcher()
    lane = Recorder(fails=lambda entries: Gone("connection refused"))
    with pytest.raises(EnqueueTimeout, match="The database does not answer: connection refused"):
        batcher.submit(lane, [1], 0.05)
    lane.fails = lambda entries: None
    batcher.submit(lane, [2], 10)


# Behind a lock on the table


class Table:
    """It is locked until it is let go."""

    def __init__(self) -> None:
        self.locked = True

    def __call__(self, entries: list[Any]) -> BaseException | None:
        return Locked("lock timeout") if self.locked else None


def test_a_batch_that_meets_a_lock_is_tried_until_it_is_free_and_other_lanes_go_on(batcher: Any, quick: None) -> None:
    table = Table()
    lane, other = Recorder("jobs", fails=table, results=lambda entries: entries), Recorder("items")
    first = aside(batcher.submit, lane, ["a"], 30)
    wait_until(lambda: len(lane.attempts) > writer.CONFLICT_TRIES + 1)
    later = submit_aside(batcher, lane, ["b"], ["c"])

    for number in range(5):
        batcher.submit(other, [number], 10)

    assert other.written == list(range(5))
    assert not first.done()
    assert not lane.written
    table.locked = False
    assert [call.result(10) for call in (first, *later)] == [["a"], ["b"], ["c"]]
    assert lane.written == ["a", "b", "c"]


def test_two_lanes_behind_locks_wait_for_their_own_each(batcher: Any) -> None:
    tables = [Table(), Table()]
    lanes = [Recorder(f"jobs {n}", fails=table) for n, table in enumerate(tables)]
    calls = [aside(batcher.submit, lane, ["a"], 30) for lane in lanes]
    wait_until(lambda: all(len(lane.attempts) > 1 for lane in lanes))

    for table, call in zip(reversed(tables), reversed(calls), strict=True):
        assert not call.done()
        table.locked = False
        call.result(10)


def test_a_call_of_several_batches_lands_in_order_though_one_meets_a_lock(make_batcher: MakeBatcher) -> None:
    batcher = make_batcher(batch_max=2)
    left = [Locked()]
    lane = Recorder(fails=lambda entries: left.pop() if left and "c" in entries else None)

    batcher.submit(lane, list("abcdefg"), 10)

    assert lane.written == list("abcdefg")
    assert lane.attempts.count(["c", "d"]) == 2


def test_who_runs_out_of_time_behind_a_lock_hears_of_it_and_what_was_taken_on_lands(
    batcher: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "HELD_TOLD", 0.0)
    table = Table()
    lane = Recorder(fails=table)

    with pytest.raises(EnqueueTimeout, match=r"still likely to land.*lock timeout"):
        batcher.submit(lane, ["a"], 0.3)

    assert not batcher.flush(0.05)
    table.locked = False
    assert batcher.flush(10)
    assert lane.written == ["a"]
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "waits for a lock that somebody holds" in caplog.text


def test_what_waits_behind_a_lock_is_given_up_when_its_lane_is_finished(batcher: Any) -> None:
    table = Table()
    lane, other = Recorder("jobs", fails=table), Recorder("items", fails=table)
    ours, others = aside(batcher.submit, lane, ["a"], 30), aside(batcher.submit, other, ["x"], 30)
    wait_until(lambda: lane.attempts and other.attempts)

    batcher.finish_lane(lane, 0.05)

    with pytest.raises(EnqueueTimeout, match="closed before the call was written"):
        ours.result(10)
    assert not others.done()
    table.locked = False
    assert others.result(10) is None
    assert not lane.written


def test_without_threads_a_caller_behind_a_lock_is_back_in_time_and_others_are_not_held_up(
    make_batcher: MakeBatcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "threads_available", lambda: False)
    batcher = make_batcher()
    table = Table()
    lane, other = Recorder("jobs", fails=table), Recorder("items")

    with pytest.raises(EnqueueTimeout, match="lock timeout"):
        batcher.submit(lane, ["a"], 0.1)
    batcher.submit(other, ["x"], 10)

    assert other.written == ["x"]
    table.locked = False
    batcher.submit(lane, ["b"], 10)
    assert lane.written == ["a", "b"]
