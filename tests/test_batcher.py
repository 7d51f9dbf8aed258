"""The group commit, in one process in which nothing fails: merging, order, fairness, bounds, threads and loops."""

import asyncio
import contextlib
import gc
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from django_workqueue.batcher import Batcher, lines, thread
from django_workqueue.batcher.calls import Call
from django_workqueue.batcher.writer import Batch
from django_workqueue.exceptions import EnqueueTimeout, QueueClosed

from .interleave import aside, wait_until
from .recorder import Connection, Recorder, Tally, new_batcher

MakeBatcher = Callable[..., Batcher]


@pytest.fixture
def make_batcher() -> Iterator[MakeBatcher]:
    made: list[Batcher] = []

    def make(*args: Any, **options: Any) -> Batcher:
        made.append(new_batcher(*args, **options))
        return made[-1]

    yield make
    for batcher in made:
        batcher.close(5)


@pytest.fixture
def batcher(make_batcher: MakeBatcher) -> Batcher:
    return make_batcher()


def in_line(batcher: Batcher) -> int:
    return batcher._lines.calls


def thread_of(batcher: Batcher) -> threading.Thread | None:
    return batcher._thread._thread


def submit_aside(batcher: Batcher, lane: Recorder, *calls: list[Any], timeout: float = 10) -> list[Future[Any]]:
    """One thread for each call, in line in this order behind the write that `lane` holds."""
    futures = []
    for entries in calls:
        then = in_line(batcher) + 1
        futures.append(aside(batcher.submit, lane, entries, timeout))
        wait_until(partial(lambda then: in_line(batcher) == then, then))
    return futures


def busy(batcher: Batcher, lane: Recorder) -> Future[Any]:
    """Have a write of `lane` stop half-way, so that what comes next lines up."""
    lane.hold()
    first = aside(batcher.submit, lane, ["first"], 10)
    lane.wait_for_write()
    wait_until(lambda: in_line(batcher) == 0)
    return first


# Merging


def test_submit_returns_after_its_entries_were_written(batcher: Batcher) -> None:
    lane = Recorder()

    assert batcher.submit(lane, ["a", "b"], 10) is None

    assert lane.written == ["a", "b"]


def test_results_come_back_to_the_call_they_belong_to(batcher: Batcher) -> None:
    lane = Recorder(results=lambda entries: [entry.upper() for entry in entries])
    busy(batcher, lane)
    calls = submit_aside(batcher, lane, ["a", "b"], ["c"], ["d"])

    lane.let_go()

    assert [call.result(10) for call in calls] == [["A", "B"], ["C"], ["D"]]


def test_calls_that_arrive_during_a_write_share_the_next_in_order_of_arrival(batcher: Batcher) -> None:
    lane = Recorder()
    busy(batcher, lane)
    calls = submit_aside(batcher, lane, ["a"], ["b", "c"], ["d"])

    lane.let_go()

    for call in calls:
        call.result(10)
    assert lane.batches == [["first"], ["a", "b", "c", "d"]]


def test_a_batch_holds_no_more_than_batch_max_entries(make_batcher: MakeBatcher) -> None:
    batcher = make_batcher(batch_max=3)
    lane = Recorder()
    busy(batcher, lane)
    calls = submit_aside(batcher, lane, ["a", "b"], ["c", "d"], ["e"])

    lane.let_go()

    for call in calls:
        call.result(10)
    assert lane.batches == [["first"], ["a", "b", "c"], ["d", "e"]]


def test_a_call_larger_than_a_batch_is_split_and_gets_its_results_in_order(make_batcher: MakeBatcher) -> None:
    batcher = make_batcher(batch_max=100)
    lane = Recorder(results=lambda entries: [-entry for entry in entries])

    assert batcher.submit(lane, range(250), 10) == [-entry for entry in range(250)]

    assert [len(batch) for batch in lane.batches] == [100, 100, 50]


def test_an_empty_call_returns_without_a_write(batcher: Batcher) -> None:
    lane = Recorder()

    assert batcher.submit(lane, [], 10) is None

    assert lane.attempts == []


def test_the_callers_list_is_its_own_again_when_it_leaves(batcher: Batcher) -> None:
    lane = Recorder()
    busy(batcher, lane)
    entries = ["a", "b"]
    with pytest.raises(EnqueueTimeout):
        batcher.submit(lane, entries, 0.01)

    entries.clear()
    lane.let_go()

    batcher.flush(10)
    assert lane.written == ["first", "a", "b"]


def test_one_named_thread_writes_for_all_and_starts_with_the_first_call(batcher: Batcher) -> None:
    lane = Recorder()
    assert thread_of(batcher) is None

    futures = [aside(batcher.submit, lane, [n], 10) for n in range(20)]

    for future in futures:
        future.result(10)
    assert lane.tally.threads == {"test-batcher"}


def test_never_more_than_one_write_is_in_flight_over_all_lanes(batcher: Batcher) -> None:
    tally = Tally()
    lanes = [Recorder(f"lane {n}", tally=tally) for n in range(4)]

    def produce(lane: Recorder) -> None:
        for n in range(50):
            batcher.submit(lane, [n], 10)

    for future in [aside(produce, lane) for lane in lanes * 2]:
        future.result(20)

    assert tally.most_at_once == 1
    assert all(sorted(lane.written) == sorted([*range(50)] * 2) for lane in lanes)


def test_a_busy_lane_does_not_starve_another(make_batcher: MakeBatcher) -> None:
    batcher = make_batcher(batch_max=1)
    tally = Tally()
    busy_lane, quiet_lane = Recorder("busy", tally=tally), Recorder("quiet", tally=tally)
    busy(batcher, busy_lane)
    many = submit_aside(batcher, busy_lane, [*range(50)])
    one = submit_aside(batcher, quiet_lane, ["x"])

    busy_lane.let_go()

    one[0].result(10)
    assert tally.lanes.index("quiet") <= 2
    many[0].result(10)


def test_callers_answered_together_are_written_together_again(
    make_batcher: MakeBatcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(thread, "GATHER_SHARE", 1e9)
    monkeypatch.setattr(thread, "GATHER_MAX", 1.0)
    batcher = make_batcher()
    lane = Recorder()

    both = threading.Barrier(2)

    def produce(name: str) -> None:
        both.wait(10)
        for _ in range(200):
            batcher.submit(lane, [name], 10)

    for producer in [aside(produce, name) for name in "ab"]:
        producer.result(20)

    sizes = [len(batch) for batch in lane.batches]
    together = sizes[sizes.index(2) : len(sizes) - sizes[::-1].index(2)]
    assert together == [2] * len(together)
    assert len(together) > 20


def test_callers_that_do_not_come_again_are_waited_for_ever_more_seldom(
    batcher: Batcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited: list[int] = []
    monkeypatch.setattr(batcher._thread, "_sleep", lambda calls, timeout: waited.append(calls))
    batch = Batch(Recorder(), [], 100)
    batch.answered = 8

    for _ in range(650):
        batcher._thread._gather(batch)

    assert waited == [8] * 14  # one of 3, 5, 9, 17, 33, then one of 65


def test_a_caller_that_is_back_already_is_not_waited_for_twice(
    batcher: Batcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited: list[int] = []
    monkeypatch.setattr(batcher._thread, "_sleep", lambda calls, timeout: waited.append(calls))
    lane = Recorder()
    batch = Batch(lane, [], 100)
    batch.answered, batch.behind = 8, 3
    for _ in range(5):
        batcher._lines.append(Call(lane, "a"))

    batcher._thread._gather(batch)

    assert waited == [11]
    batcher._lines.clear([lane])


def test_after_follows_the_answers_and_its_error_reaches_no_caller(
    batcher: Batcher, caplog: pytest.LogCaptureFixture
) -> None:
    answered = threading.Event()

    class Waking(Recorder):
        def after(self, entries: list[Any]) -> None:
            assert answered.wait(10)
            super().after(entries)
            raise RuntimeError("no wakes today")

    lane = Waking()

    batcher.submit(lane, ["a"], 10)
    answered.set()

    batcher.submit(lane, ["b"], 10)
    wait_until(lambda: lane.afters == 2)
    wait_until(lambda: "no wakes today" in caplog.text)


def test_an_enqueue_from_a_lanes_own_code_is_refused_for_it_would_wait_for_itself(batcher: Batcher) -> None:
    class Reentrant(Recorder):
        def write(self, entries: list[Any]) -> None:
            batcher.submit(Recorder("mail"), ["x"], 10)

    with pytest.raises(RuntimeError, match="cannot wait for itself"):
        batcher.submit(Reentrant(), ["a"], 10)


# Waiting and leaving


@pytest.mark.parametrize("timeout", [0, -1])
def test_a_timeout_that_is_not_positive_is_refused(batcher: Batcher, timeout: float) -> None:
    lane = Recorder()

    with pytest.raises(ValueError, match="timeout must be positive"):
        batcher.submit(lane, ["a"], timeout)
    with pytest.raises(ValueError, match="timeout must be positive"):
        asyncio.run(batcher.asubmit(lane, ["a"], timeout))

    assert lane.attempts == []


def test_a_timeout_that_is_no_number_is_refused_by_all_who_take_one(batcher: Batcher) -> None:
    lane = Recorder()
    lane.let_go()
    minute: Any = timedelta(minutes=1)
    calls: list[Callable[[], Any]] = [
        lambda: batcher.submit(lane, ["a"], minute),
        lambda: asyncio.run(batcher.asubmit(lane, ["a"], minute)),
        lambda: batcher.flush(minute),
        lambda: batcher.rest(minute),
        lambda: batcher.finish_lane(lane, minute),
        lambda: batcher.finish(minute),
        lambda: batcher.close(minute),
    ]
    for call in calls:
        with pytest.raises(TypeError, match="timeout is a number of seconds, not datetime"):
            call()
    assert lane.attempts == []
    batcher.submit(lane, ["b"], 10)  # it was not closed
    assert lane.written == ["b"]


def test_a_caller_that_times_out_is_told_that_its_entries_are_likely_to_land_and_they_do(batcher: Batcher) -> None:
    lane = Recorder()
    busy(batcher, lane)

    with pytest.raises(EnqueueTimeout, match=r"'tiles'.*0\.01 s.*still likely to land\."):
        batcher.submit(lane, ["a"], 0.01)

    lane.let_go()
    assert batcher.flush(10)
    assert lane.written == ["first", "a"]


def test_a_caller_that_found_no_room_is_told_that_nothing_was_enqueued_and_nothing_lands(
    make_batcher: MakeBatcher,
) -> None:
    batcher = make_batcher(pending_max=2)
    lane = Recorder()
    busy(batcher, lane)
    waiting = submit_aside(batcher, lane, ["a"], ["b"])

    with pytest.raises(EnqueueTimeout, match="Nothing of the call was enqueued"):
        batcher.submit(lane, ["c"], 0.01)

    lane.let_go()
    for call in waiting:
        call.result(10)
    assert batcher.flush(10)
    assert lane.written == ["first", "a", "b"]


def test_a_caller_of_which_some_was_taken_on_is_told_how_much_and_only_that_lands(make_batcher: MakeBatcher) -> None:
    batcher = make_batcher(pending_max=3)
    lane = Recorder()
    busy(batcher, lane)
    waiting = submit_aside(batcher, lane, ["a"])

    with pytest.raises(EnqueueTimeout, match="Of 3 entries the first 2 are still likely to land, the others will not"):
        batcher.submit(lane, ["b", "c", "d"], 0.01)

    lane.let_go()
    waiting[0].result(10)
    assert batcher.flush(10)
    assert lane.written == ["first", "a", "b", "c"]


def test_callers_wait_for_room_and_get_it_in_order_of_arrival(make_batcher: MakeBatcher) -> None:
    batcher = make_batcher(pending_max=1, batch_max=1)
    lane = Recorder()
    busy(batcher, lane)
    waiting = submit_aside(batcher, lane, ["a"], ["b"], ["c"])

    lane.let_go()

    for call in waiting:
        call.result(10)
    assert lane.written == ["first", "a", "b", "c"]


def test_a_call_larger_than_the_bound_is_admitted_piece_by_piece(make_batcher: MakeBatcher) -> None:
    batcher = make_batcher(pending_max=5, batch_max=3)
    lane = Recorder(results=lambda entries: entries)

    assert batcher.submit(lane, range(100), 10) == [*range(100)]

    assert batcher._lines.admitted == 0


def test_a_caller_interrupted_while_it_waits_leaves_cleanly(batcher: Batcher) -> None:
    lane = Recorder()
    busy(batcher, lane)

    def interrupt() -> None:
        wait_until(lambda: in_line(batcher) == 1)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    interrupter = aside(interrupt)
    with pytest.raises(KeyboardInterrupt):
        batcher.submit(lane, ["a"], 10)
    interrupter.result(10)

    lane.let_go()
    assert batcher.submit(lane, ["b"], 10) is None
    assert lane.written == ["first", "a", "b"]


def test_a_caller_interrupted_before_it_has_woken_the_thread_leaves_nothing_behind(
    batcher: Batcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    lane = Recorder()
    batcher.submit(lane, ["a"], 10)
    wait_until(lambda: batcher._thread._wanted == 1)

    def interrupt() -> bool:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(batcher._thread, "call", interrupt)
        with pytest.raises(KeyboardInterrupt):
            batcher.submit(lane, ["b"], 10)

    wait_until(lambda: lane.written == ["a", "b"])


def test_a_post_returns_at_once_and_its_entries_land(batcher: Batcher) -> None:
    lane = Recorder()
    busy(batcher, lane)

    assert batcher.post(lane, ["a", "b"]) == 2

    assert lane.written == []
    lane.let_go()
    assert batcher.flush(10)
    assert lane.written == ["first", "a", "b"]


def test_the_thread_that_writes_may_post(batcher: Batcher) -> None:
    mail = Recorder("mail")

    class Reentrant(Recorder):
        def after(self, entries: list[Any]) -> None:
            batcher.post(mail, ["x"])

    batcher.submit(Reentrant(), ["a"], 10)

    wait_until(lambda: mail.written == ["x"])


def test_a_post_that_finds_no_room_says_how_much_was_taken_on(make_batcher: MakeBatcher) -> None:
    batcher = make_batcher(pending_max=3)
    lane = Recorder()
    busy(batcher, lane)

    assert batcher.post(lane, ["a", "b"]) == 2
    assert batcher.post(lane, ["c", "d"]) == 1
    assert batcher.post(lane, ["e"]) == 0

    lane.let_go()
    assert batcher.flush(10)
    assert lane.written == ["first", "a", "b", "c"]


@settings(deadline=None)
@given(st.data())
def test_the_lines_account_for_every_entry_that_is_taken_on(data: st.DataObject) -> None:
    most = data.draw(st.integers(1, 6), "room")
    waiting = lines.Lines(most)
    lanes = [Recorder("a"), Recorder("b")]
    here: list[Call] = []
    for _ in range(data.draw(st.integers(1, 20), "steps")):
        match data.draw(st.sampled_from(["append", "append", "take", "leave", "remove"]), "step"):
            case "append":
                here.append(Call(data.draw(st.sampled_from(lanes)), range(data.draw(st.integers(0, 9), "size"))))
                waiting.append(here[-1])
            case "take":
                limit = data.draw(st.integers(1, 5), "limit")
                taken = waiting.take(limit)
                if taken is not None:
                    lane, calls = taken
                    assert 0 <= sum(call.taken - call.written for call in calls) <= limit
                    assert {call.lane for call in calls} == {lane}
                    for call in calls:
                        call.land(None)
            case "leave" if here:
                waiting.leave(here.pop(data.draw(st.integers(0, len(here) - 1), "who")))
            case "remove" if here:
                waiting.remove(here.pop(data.draw(st.integers(0, len(here) - 1), "who")))

        standing = [call for line in waiting._lines.values() for call in line]
        assert waiting.calls == len(standing)
        assert waiting.admitted == sum(call.admitted - call.taken for call in standing)
        assert 0 <= waiting.admitted <= most
        outside = [call for call in standing if call.admitted < call.size]
        assert not outside or waiting.admitted == most
        assert set(outside) <= set(waiting._outside)
        assert not any(call.size == call.taken > 0 for call in standing)


# Event loops


def test_asubmit_returns_after_its_entries_were_written_with_their_results(batcher: Batcher) -> None:
    lane = Recorder(results=lambda entries: entries)

    assert asyncio.run(batcher.asubmit(lane, ["a", "b"], 10)) == ["a", "b"]

    assert lane.tally.threads == {"test-batcher"}


def test_a_thousand_tasks_share_few_writes_and_no_thread_of_their_own(batcher: Batcher) -> None:
    lane = Recorder(results=lambda entries: entries)
    threads = threading.active_count()
    seen = []

    async def produce(n: int) -> None:
        assert await batcher.asubmit(lane, [n], 10) == [n]
        seen.append(threading.active_count())

    async def main() -> None:
        await asyncio.gather(*(produce(n) for n in range(1000)))

    asyncio.run(main())

    assert sorted(lane.written) == [*range(1000)]
    assert max(seen) <= threads + 1
    assert len(lane.batches) < 200


def test_a_batch_wakes_each_loop_once(batcher: Batcher, monkeypatch: pytest.MonkeyPatch) -> None:
    lane = Recorder()
    busy(batcher, lane)
    hops: list[Any] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()
        hop = loop.call_soon_threadsafe
        monkeypatch.setattr(
            loop, "call_soon_threadsafe", lambda *args, **kwargs: hops.append(args) or hop(*args, **kwargs)
        )
        tasks = [asyncio.create_task(batcher.asubmit(lane, [n], 10)) for n in range(50)]
        await asyncio.sleep(0)
        assert in_line(batcher) == 50
        lane.let_go()
        await asyncio.gather(*tasks)

    asyncio.run(main())

    assert len(lane.batches) == 2
    assert len(hops) == 1


def test_several_loops_and_threads_share_a_batch(batcher: Batcher) -> None:
    lane = Recorder()
    busy(batcher, lane)
    futures = [aside(asyncio.run, batcher.asubmit(lane, [n], 10)) for n in range(4)]
    futures += [aside(batcher.submit, lane, [n], 10) for n in range(4, 8)]
    wait_until(lambda: in_line(batcher) == 8)

    lane.let_go()

    for future in futures:
        future.result(10)
    assert len(lane.batches) == 2


def test_an_awaiting_caller_times_out_as_a_blocking_one_does(make_batcher: MakeBatcher) -> None:
    batcher = make_batcher(pending_max=1)
    lane = Recorder()
    busy(batcher, lane)

    with pytest.raises(EnqueueTimeout, match="likely to land"):
        asyncio.run(batcher.asubmit(lane, ["a"], 0.01))
    with pytest.raises(EnqueueTimeout, match="Nothing of the call"):
        asyncio.run(batcher.asubmit(lane, ["b"], 0.01))

    lane.let_go()
    assert batcher.flush(10)
    assert lane.written == ["first", "a"]


def test_a_cancelled_caller_leaves_cleanly_and_what_was_taken_on_lands(batcher: Batcher) -> None:
    lane = Recorder()
    busy(batcher, lane)

    async def main() -> None:
        task = asyncio.create_task(batcher.asubmit(lane, ["a"]))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        lane.let_go()
        await batcher.asubmit(lane, ["b"], 10)

    asyncio.run(main())

    assert lane.written == ["first", "a", "b"]


def test_a_loop_that_has_closed_meanwhile_is_no_problem(batcher: Batcher) -> None:
    lane = Recorder()
    busy(batcher, lane)
    loop = asyncio.new_event_loop()
    task = loop.create_task(batcher.asubmit(lane, ["a"]))
    loop.call_soon(loop.stop)
    loop.run_forever()
    loop.close()

    lane.let_go()

    assert batcher.submit(lane, ["b"], 10) is None
    assert lane.written == ["first", "a", "b"]
    with contextlib.suppress(RuntimeError):
        task.get_coro().close()
    task._log_destroy_pending = False
    del task
    gc.collect()


# Closing and resting


def test_close_answers_every_caller_and_refuses_later_ones(make_batcher: MakeBatcher) -> None:
    batcher = make_batcher()
    lane = Recorder()
    busy(batcher, lane)
    waiting = submit_aside(batcher, lane, ["a"], ["b"])
    closing = aside(batcher.close, 10)
    wait_until(lambda: in_line(batcher) == 3)

    lane.let_go()

    closing.result(10)
    assert [call.result(10) for call in waiting] == [None, None]
    assert lane.written == ["first", "a", "b"]
    with pytest.raises(QueueClosed, match="'tiles' is closed"):
        batcher.submit(lane, ["c"], 10)
    with pytest.raises(QueueClosed):
        asyncio.run(batcher.asubmit(lane, ["c"], 10))
    with pytest.raises(QueueClosed):
        batcher.post(lane, ["c"])


def test_close_ends_the_thread_drops_the_connection_and_can_be_repeated(make_batcher: MakeBatcher) -> None:
    connection = Connection()
    batcher = make_batcher(connection)
    batcher.submit(Recorder(), ["a"], 10)
    working = thread_of(batcher)

    batcher.close(10)
    batcher.close(10)

    assert working is not None
    assert not working.is_alive()
    assert connection.dropped >= 1


def test_close_tells_callers_it_cannot_wait_for_what_may_have_landed(
    make_batcher: MakeBatcher, caplog: pytest.LogCaptureFixture
) -> None:
    batcher = make_batcher(batch_max=2)
    lane = Recorder()
    in_flight = busy(batcher, lane)
    waiting = submit_aside(batcher, lane, ["a", "b", "c"])

    batcher.close(0.05)

    with pytest.raises(EnqueueTimeout, match="may or may not have landed"):
        in_flight.result(10)
    with pytest.raises(EnqueueTimeout, match="Nothing of it was enqueued"):
        waiting[0].result(10)
    assert "gave up on 4 entries of queue 'tiles'" in caplog.text
    working = thread_of(batcher)
    lane.let_go()
    if working is not None:
        working.join(10)
        assert not working.is_alive()
    assert lane.written == ["first"]
    assert "failed" not in caplog.text


def test_finishing_a_lane_flushes_it_and_leaves_the_others_alone(batcher: Batcher) -> None:
    lane, other = Recorder("tiles"), Recorder("mail")
    busy(batcher, lane)
    waiting = submit_aside(batcher, lane, ["a"])
    finishing = aside(batcher.finish_lane, lane, 10)
    other.hold()
    others = submit_aside(batcher, other, ["x"])
    lane.let_go()

    finishing.result(10)
    assert waiting[0].result(10) is None
    assert lane.written == ["first", "a"]
    assert not others[0].done()
    other.let_go()
    assert others[0].result(10) is None
    batcher.finish_lane(lane, 10)
    batcher.submit(lane, ["b"], 10)
    assert lane.written == ["first", "a", "b"]


def test_finishing_a_lane_that_hangs_answers_its_callers_and_nobody_elses(batcher: Batcher) -> None:
    lane, other = Recorder("tiles"), Recorder("mail")
    in_flight = busy(batcher, lane)
    waiting = submit_aside(batcher, lane, ["a"])
    others = submit_aside(batcher, other, ["x"])

    batcher.finish_lane(lane, 0.05)

    for call in [in_flight, *waiting]:
        with pytest.raises(EnqueueTimeout):
            call.result(10)
    assert not others[0].done()
    lane.let_go()
    assert others[0].result(10) is None


def test_flush_says_when_it_ran_out_of_time(batcher: Batcher) -> None:
    lane = Recorder()
    busy(batcher, lane)

    assert not batcher.flush(0.01)

    lane.let_go()
    assert batcher.flush(10)
    assert batcher.flush(0.01)
    assert lane.attempts == [["first"]]
    assert lane.afters == 1


def test_rest_lets_go_of_the_connection_and_the_next_call_starts_afresh(make_batcher: MakeBatcher) -> None:
    connection = Connection()
    batcher = make_batcher(connection)
    lane = Recorder()
    batcher.submit(lane, ["a"], 10)
    first = thread_of(batcher)

    assert batcher.rest(10)

    assert connection.dropped == 1
    assert first is not None
    assert not first.is_alive()
    batcher.submit(lane, ["b"], 10)
    assert thread_of(batcher) not in (None, first)


def test_an_idle_batcher_disconnects_once_then_ends_its_thread_and_starts_another_when_needed(
    make_batcher: MakeBatcher,
) -> None:
    connection = Connection()
    batcher = make_batcher(connection, idle_after=lambda: 0.02)
    lane = Recorder()
    batcher.submit(lane, ["a"], 10)

    wait_until(lambda: thread_of(batcher) is None)

    assert connection.dropped == 1
    batcher.submit(lane, ["b"], 10)
    assert lane.written == ["a", "b"]


def test_a_call_at_the_very_moment_the_thread_ends_is_not_lost(make_batcher: MakeBatcher) -> None:
    lane = Recorder()
    late = ["b"]
    # The last thing that the thread does before it looks whether it may end.
    batcher = make_batcher(disconnect=lambda: batcher.post(lane, [late.pop()]) if late else None)
    batcher.submit(lane, ["a"], 10)

    assert batcher.rest(10)

    assert lane.written == ["a", "b"]


def test_a_flush_that_is_cut_short_by_a_close_says_so(
    make_batcher: MakeBatcher, caplog: pytest.LogCaptureFixture
) -> None:
    batcher = make_batcher()
    lane = Recorder()
    busy(batcher, lane)
    batcher.close(0.01)
    flushing = aside(batcher.flush, 10)
    wait_until(lambda: in_line(batcher) == 1)

    batcher.close(0.01)

    assert flushing.result(10) is False
    assert "gave up on 1 entries" in caplog.text
    assert "gave up on 0 entries" not in caplog.text
    lane.let_go()


def test_what_weighs_more_takes_more_of_a_batch(make_batcher: MakeBatcher) -> None:
    batcher = make_batcher(batch_max=10)
    lane = Recorder(results=lambda entries: entries)
    busy(batcher, lane)
    heavy = aside(lambda: batcher.submit(lane, list("abcdefg"), 10, weight=4))
    wait_until(lambda: in_line(batcher) == 1)
    light = submit_aside(batcher, lane, ["x"])
    wait_until(lambda: in_line(batcher) == 2)
    too_heavy = aside(lambda: batcher.submit(lane, ["y", "z"], 10, weight=1000))
    wait_until(lambda: in_line(batcher) == 3)

    lane.let_go()

    assert heavy.result(10) == list("abcdefg")
    assert light[0].result(10) == ["x"]
    assert too_heavy.result(10) == ["y", "z"]
    assert lane.batches == [["first"], ["a", "b"], ["c", "d"], ["e", "f"], ["g", "x"], ["y"], ["z"]]
