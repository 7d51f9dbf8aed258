"""What an enqueue promises, and how it merges with what is there. Inside transactions: test_transactions.py."""

import threading
import time
from datetime import timedelta
from enum import Enum

import pytest
from django.db import connections

from django_workqueue import EmptyKey, EnqueueTimeout, Entry, QueueClosed
from django_workqueue.models import WorkItem

MINUTE = timedelta(minutes=1)
HOUR = timedelta(hours=1)


def about(seconds):
    return pytest.approx(seconds, abs=20)


def test_enqueue_returns_when_its_keys_are_durable_and_visible_to_a_following_claim(queue, table):
    queue.enqueue("a", "b")
    assert table.stored() == ["a", "b"]
    assert [item.key for item in queue.claim()] == ["a", "b"]


def test_a_key_enqueued_twice_is_one_item(queue, table):
    queue.enqueue("a")
    queue.enqueue("a", "a")
    assert table.stored() == ["a"]
    assert len(queue.claim()) == 1


def test_enqueue_without_keys_does_nothing(queue, table):
    queue.enqueue()
    queue.enqueue_many([])
    assert table.stored() == []


def test_enqueue_many_takes_bare_keys_and_entries_with_a_priority_and_delay_of_their_own(queue, table):
    queue.enqueue_many(iter(["a", Entry("b", priority=7), Entry("c", delay=MINUTE), Entry("d", -3, HOUR)]))
    assert [(table.row(key).priority, table.row(key).due_in) for key in "abcd"] == [
        (0, about(0)),
        (7, about(0)),
        (0, about(60)),
        (-3, about(3600)),
    ]


def test_enqueue_gives_all_its_keys_its_priority_and_delay(queue, table):
    queue.enqueue("a", "b", priority=4, delay=MINUTE)
    assert [(table.row(key).priority, table.row(key).due_in) for key in "ab"] == [(4, about(60))] * 2


def test_a_call_of_more_than_one_batch_lands_whole(queue, table, settings):
    settings.WORKQUEUE_BATCH_MAX = 10
    keys = [f"{number:03}" for number in range(95)]
    queue.enqueue(*keys)
    assert table.stored() == keys


def test_a_negative_delay_counts_as_none(queue, table):
    queue.enqueue("a", delay=-HOUR)
    queue.enqueue_many([Entry("b", delay=timedelta.min)])
    assert table.row("a").due_in == about(0)
    assert table.row("b").due_in == about(0)


def test_a_delayed_key_is_not_due_before_its_time(queue, table):
    queue.enqueue("a", delay=MINUTE)
    assert queue.claim() == []
    table.age("a", seconds=61)
    assert [item.key for item in queue.claim()] == ["a"]


def test_the_time_a_delayed_enqueue_spends_in_memory_counts(queue, table, connect, aside, wait_until):
    holder = connect(autocommit=False)
    holder.execute("LOCK TABLE workqueue_item, workqueue_inbox IN ACCESS EXCLUSIVE MODE")
    asked = time.monotonic()
    pending = aside(queue.enqueue, "a", delay=HOUR)
    wait_until(lambda: time.monotonic() > asked + 0.5)
    holder.rollback()
    pending.result(timeout=10)
    assert queue.claim() == []  # folds the inbox, where the batch went
    spent = time.monotonic() - asked
    # But for what the last try spent waiting for its lock, of which the server's clock knows nothing.
    assert table.row("a").due_in <= 3600 - 0.5 + 0.11
    assert table.row("a").due_in >= 3600 - spent - 1


# A waiting item


@pytest.mark.parametrize(("first", "then", "kept"), [(1, 5, 5), (5, 1, 5), (-1, -4, -1), (-4, 0, 0)])
def test_re_enqueueing_a_waiting_item_only_raises_its_priority(queue, table, first, then, kept):
    queue.enqueue("a", priority=first)
    queue.enqueue("a", priority=then)
    assert table.row("a").priority == kept


@pytest.mark.parametrize(("first", "then"), [(HOUR, MINUTE), (MINUTE, HOUR)])
def test_re_enqueueing_a_waiting_item_only_moves_its_time_earlier(queue, table, first, then):
    queue.enqueue("a", delay=first)
    queue.enqueue("a", delay=then)
    assert table.row("a").due_in == about(60)


def test_a_raised_priority_does_not_delay_an_item_that_is_due(queue, table):
    queue.enqueue("a")
    queue.enqueue("a", priority=9, delay=HOUR)
    assert [(item.key, item.priority) for item in queue.claim()] == [("a", 9)]


def test_re_enqueueing_a_waiting_item_keeps_its_attempts_and_its_error(queue, table):
    queue.enqueue("a")
    queue.release(*queue.claim(), delay=HOUR, error=ValueError("no"))
    before = table.row("a")
    queue.enqueue("a", priority=3)
    after = table.row("a")
    assert (after.attempts, after.last_error, after.enqueued_at) == (1, "ValueError: no", before.enqueued_at)
    assert after.due_in == about(0)


def test_re_enqueueing_a_waiting_item_that_gains_nothing_writes_nothing(queue, table):
    queue.enqueue("a", priority=5)
    before = table.connection.execute(
        "SELECT ctid, xmin FROM workqueue_item WHERE queue = %s", [table.queue]
    ).fetchone()
    queue.enqueue("a", priority=4, delay=MINUTE)
    after = table.connection.execute("SELECT ctid, xmin FROM workqueue_item WHERE queue = %s", [table.queue]).fetchone()
    assert after == before


# A completed or stalled item


def test_re_enqueueing_a_completed_item_starts_it_afresh(queue, table):
    queue.enqueue("a", priority=9)
    queue.release(*queue.claim(), error="first")
    queue.complete(*queue.claim())
    table.age("a")
    queue.enqueue("a", priority=-2, delay=MINUTE)
    row = table.row("a")
    assert table.state("a") == "waiting"
    assert (row.priority, row.attempts, row.last_error, row.due_in) == (-2, 0, None, about(60))
    assert row.asked_ago < 60
    table.age("a")
    assert [(item.key, item.attempts, item.reclaimed) for item in queue.claim()] == [("a", 1, False)]


def test_re_enqueueing_a_stalled_item_starts_it_afresh(make_queue, table):
    queue = make_queue(max_attempts=1)
    queue.enqueue("a", priority=9)
    queue.release(*queue.claim(), error=ValueError("no"))
    assert table.state("a") == "stalled"
    queue.enqueue("a", priority=-2, delay=MINUTE)
    row = table.row("a")
    assert table.state("a") == "waiting"
    assert (row.priority, row.attempts, row.last_error, row.due_in) == (-2, 0, None, about(60))
    table.age("a")
    assert [(item.key, item.attempts, item.reclaimed) for item in queue.claim()] == [("a", 1, False)]


@pytest.mark.parametrize("how", ["released", "lapsed"])
def test_a_producer_that_does_not_know_max_attempts_revives_a_stalled_item(make_queue, table, name, how):
    consumer = make_queue(max_attempts=1)
    consumer.enqueue("a")
    items = consumer.claim()
    if how == "released":
        consumer.release(*items)
    else:
        table.lapse("a")
        assert consumer.claim() == []
    assert table.state("a") == "stalled"
    WorkItem.objects.enqueue(name, ["a"], [0], [0])
    assert [(item.key, item.attempts) for item in consumer.claim()] == [("a", 1)]


# A leased item


def test_re_enqueueing_a_leased_item_leaves_the_lease_as_it_is(queue, table):
    queue.enqueue("a")
    (item,) = queue.claim(lease=MINUTE)
    before = table.row("a")
    queue.enqueue("a", priority=3)
    after = table.row("a")
    assert (after.lease_until, after.lease_token, after.attempts) == (before.lease_until, before.lease_token, 1)
    assert queue.claim() == []
    assert queue.extend(item, lease=HOUR) == [item]


@pytest.mark.parametrize("retention", [timedelta(0), HOUR])
def test_a_leased_item_asked_for_again_is_due_again_when_its_run_completes(make_queue, table, retention):
    queue = make_queue(retention=retention)
    queue.enqueue("a")
    items = queue.claim()
    queue.enqueue("a")
    assert queue.complete(*items) == 1
    assert table.state("a") == "waiting"
    assert [(item.key, item.attempts, item.reclaimed) for item in queue.claim()] == [("a", 1, False)]


@pytest.mark.parametrize("retention", [timedelta(0), HOUR])
def test_an_item_asked_for_once_more_runs_once_more_and_not_twice(make_queue, table, retention):
    queue = make_queue(retention=retention)
    queue.enqueue("a")
    items = queue.claim()
    for _ in range(3):
        queue.enqueue("a")
    queue.complete(*items)
    queue.complete(*queue.claim())
    assert table.state("a") == ("completed" if retention else "absent")


@pytest.mark.parametrize("delays", [(HOUR, MINUTE), (MINUTE, HOUR)])
def test_a_leased_item_is_due_again_at_the_earliest_time_asked_for(queue, table, delays):
    queue.enqueue("a")
    items = queue.claim()
    for delay in delays:
        queue.enqueue("a", delay=delay)
    queue.complete(*items)
    assert table.row("a").due_in == about(60)
    assert queue.claim() == []


def test_a_leased_item_asked_for_again_is_louder_if_asked_for_more_loudly(queue, table):
    queue.enqueue("a", priority=1)
    items = queue.claim()
    queue.enqueue("a", priority=5)
    queue.enqueue("a", priority=3)
    queue.complete(*items)
    assert table.row("a").priority == 5


def test_an_item_that_completes_after_the_time_it_was_asked_for_again_is_due_at_once(queue, table):
    queue.enqueue("a")
    items = queue.claim()
    queue.enqueue("a", delay=MINUTE)
    table.age("a", seconds=600)
    queue.complete(*items)
    assert [item.key for item in queue.claim()] == ["a"]


def test_a_released_item_is_due_at_the_earliest_time_asked_for_since(queue, table):
    queue.enqueue("a", "b")
    a, b = queue.claim()
    queue.enqueue("a")
    queue.enqueue("b", delay=HOUR)
    assert queue.release(a, b, delay=MINUTE) == 2
    assert table.row("a").due_in == about(0)
    assert table.row("b").due_in == about(60)


def test_after_a_run_that_failed_it_is_due_no_earlier_than_its_backoff(queue, table):
    queue.enqueue("a")
    items = queue.claim()
    queue.enqueue("a")
    assert queue.release(*items, delay=MINUTE, error=ValueError("no")) == 1
    assert table.row("a").due_in == about(60)
    assert queue.claim() == []
    table.age("a", seconds=61)
    (item,) = queue.claim()
    assert item.attempts == 2


def test_an_enqueue_during_a_run_that_fails_is_satisfied_by_the_retry(queue, table):
    queue.enqueue("a")
    items = queue.claim()
    queue.enqueue("a")
    queue.release(*items, error="no")
    queue.complete(*queue.claim())
    assert table.state("a") == "completed"


@pytest.mark.parametrize("error", [None, "no"])
def test_on_the_last_attempt_it_starts_afresh_when_that_run_is_released(make_queue, table, error):
    queue = make_queue(max_attempts=2)
    queue.enqueue("a")
    queue.release(*queue.claim())
    (item,) = queue.claim()
    assert item.attempts == 2
    queue.enqueue("a")
    assert queue.release(item, delay=MINUTE, error=error) == 1
    assert table.state("a") == "waiting"
    assert (table.row("a").attempts, table.row("a").due_in) == (0, about(60 if error else 0))
    table.age("a")
    assert [item.attempts for item in queue.claim()] == [1]


def test_on_the_last_attempt_it_starts_afresh_when_that_run_lapses_and_never_stalls(make_queue, table):
    queue = make_queue(max_attempts=1)
    queue.enqueue("a")
    queue.claim()
    queue.enqueue("a")
    table.lapse("a")
    queue.reap()
    assert table.state("a") == "lapsed"
    assert [(item.attempts, item.reclaimed) for item in queue.claim()] == [(1, True)]


def test_on_the_last_attempt_it_starts_afresh_when_that_run_completes(make_queue, table):
    queue = make_queue(max_attempts=1)
    queue.enqueue("a")
    items = queue.claim()
    queue.enqueue("a")
    queue.complete(*items)
    assert [(item.attempts, item.reclaimed) for item in queue.claim()] == [(1, False)]


# A lapsed item, not yet reclaimed


@pytest.mark.parametrize("retention", [timedelta(0), HOUR])
def test_an_item_asked_for_after_its_lease_lapsed_survives_a_late_completion(make_queue, table, retention):
    queue = make_queue(retention=retention)
    queue.enqueue("a")
    items = queue.claim()
    table.lapse("a")
    before = table.row("a")
    queue.enqueue("a")
    assert (table.row("a").lease_until, table.row("a").lease_token) == (before.lease_until, before.lease_token)
    assert queue.complete(*items) == 1
    assert [(item.key, item.attempts) for item in queue.claim()] == [("a", 1)]


def test_an_item_asked_for_after_its_lease_lapsed_is_satisfied_by_being_reclaimed(queue, table):
    queue.enqueue("a")
    queue.claim()
    table.lapse("a")
    queue.enqueue("a")
    (item,) = queue.claim()
    assert item.reclaimed
    queue.complete(item)
    assert table.state("a") == "completed"


def test_an_item_asked_for_after_its_last_attempt_lapsed_runs_afresh(make_queue, table):
    queue = make_queue(max_attempts=1)
    queue.enqueue("a")
    queue.claim()
    table.lapse("a")
    queue.enqueue("a")
    assert [(item.attempts, item.reclaimed) for item in queue.claim()] == [(1, True)]


def test_a_re_enqueue_during_a_run_survives_that_runs_lapse(queue, table):
    queue.enqueue("a")
    stale = queue.claim()
    queue.enqueue("a")
    table.lapse("a")
    (item,) = queue.claim()
    assert queue.complete(*stale) == 0
    assert table.state("a") == "leased"
    assert queue.complete(item) == 1
    assert table.state("a") == "completed"


# Refusals


def test_of_a_call_with_a_bad_key_nothing_is_enqueued(queue, table):
    with pytest.raises(EmptyKey):
        queue.enqueue("a", "", "b")
    with pytest.raises(EmptyKey):
        queue.enqueue_many(["a", Entry("")])
    assert table.stored() == []


def test_a_priority_that_is_an_enums_member_is_its_value(queue, table):
    class Priority(int, Enum):
        LOW, HIGH = -1, 7

    queue.enqueue_many([Entry("a", Priority.LOW), Entry("b", Priority.HIGH), "c"])
    queue.enqueue("d", priority=Priority.HIGH)
    assert [table.row(key).priority for key in "abcd"] == [-1, 7, 0, 7]


def test_one_bad_key_fails_only_its_own_caller(queue, table, aside, connect, wait_until):
    holder = connect(autocommit=False)
    holder.execute("LOCK TABLE workqueue_item IN ACCESS EXCLUSIVE MODE")
    good = [aside(queue.enqueue, f"good {number}") for number in range(4)]
    bad = aside(queue.enqueue, "bad\n")
    with pytest.raises(ValueError, match="line break"):
        bad.result(timeout=10)
    holder.rollback()
    for each in good:
        each.result(timeout=10)
    assert [item.key for item in queue.claim()] == [f"good {number}" for number in range(4)]


def test_an_enqueue_that_is_not_durable_in_time_says_that_it_is_likely_to_land_and_lands(
    queue, table, connect, wait_until
):
    holder = connect(autocommit=False)
    holder.execute("LOCK TABLE workqueue_item, workqueue_inbox IN ACCESS EXCLUSIVE MODE")
    with pytest.raises(EnqueueTimeout, match=r"(?i)still likely to land") as raised:
        queue.enqueue("a", timeout=0.15)
    assert isinstance(raised.value, TimeoutError)
    holder.rollback()
    wait_until(lambda: table.stored() + table.inbox() == ["a"])


def test_the_timeout_is_the_settings_when_none_is_given(queue, connect, settings, wait_until, table):
    settings.WORKQUEUE_ENQUEUE_TIMEOUT = 0.15
    holder = connect(autocommit=False)
    holder.execute("LOCK TABLE workqueue_item, workqueue_inbox IN ACCESS EXCLUSIVE MODE")
    with pytest.raises(EnqueueTimeout):
        queue.enqueue("a")
    holder.rollback()
    wait_until(lambda: table.stored() + table.inbox() == ["a"])


def test_a_closed_queue_refuses_to_enqueue(queue, table):
    queue.enqueue("a")
    queue.close()
    queue.close()
    with pytest.raises(QueueClosed, match="closed in this process"):
        queue.enqueue("b")
    with pytest.raises(QueueClosed):
        queue.enqueue_many([])
    assert table.stored() == ["a"]


def test_close_waits_for_what_was_being_enqueued(queue, table, connect, aside, wait_until):
    holder = connect(autocommit=False)
    holder.execute("LOCK TABLE workqueue_item, workqueue_inbox IN ACCESS EXCLUSIVE MODE")
    pending = aside(queue.enqueue, "a")
    wait_until(lambda: holder.execute("SELECT count(*) FROM pg_locks WHERE NOT granted").fetchone()[0])
    closing = aside(queue.close)
    holder.rollback()
    closing.result(timeout=10)
    pending.result(timeout=10)
    assert table.stored() == ["a"]


def test_two_objects_of_one_name_enqueue_into_one_set_through_one_batcher(make_queue, table):
    one, other = make_queue(), make_queue()
    assert one.source is other.source
    assert one.source.commits.batcher is other.source.commits.batcher
    one.enqueue("a")
    other.enqueue("a", priority=2)
    assert [item.priority for item in one.claim()] == [2]


def test_many_threads_are_written_together_and_each_sees_its_own_key(queue, table):
    seen = []

    def produce(number):
        queue.enqueue(f"{number:02}")
        seen.append(table_of(number))

    def table_of(number):
        return f"{number:02}" in {key for (key,) in WorkItem.objects.filter(queue=queue.name).values_list("key")}

    threads = [
        threading.Thread(target=_closing(produce), args=(number,), name=f"producer-{number}") for number in range(12)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert seen == [True] * 12


def _closing(work):
    def run(*args):
        try:
            work(*args)
        finally:
            connections.close_all()

    return run
