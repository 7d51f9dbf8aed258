"""Remove, reap and stats."""

import dataclasses
from datetime import timedelta

import pytest
from django.db import transaction

from django_workqueue import PermanentError, Worker
from tests.keyed.test_enqueue import HOUR, about

# Remove


def test_remove_deletes_keys_in_whatever_state(make_queue, table):
    queue = make_queue(max_attempts=1)
    queue.enqueue("stalled", "completed", "leased", "lapsed")
    queue.claim()
    queue.release("stalled")
    queue.complete("completed")
    table.lapse("lapsed")
    queue.enqueue("waiting")
    queue.enqueue("delayed", delay=HOUR)
    assert [table.state(key) for key in ("stalled", "completed", "leased", "lapsed")] == [
        "stalled",
        "completed",
        "leased",
        "lapsed",
    ]
    assert queue.remove("stalled", "completed", "leased", "lapsed", "waiting", "delayed", "unknown", "waiting") == 6
    assert table.stored() == []


def test_removing_a_running_item_drops_its_outcome(queue, table):
    queue.enqueue("a")
    items = queue.claim()
    assert queue.remove("a") == 1
    assert queue.extend(*items, lease=HOUR) == []
    assert queue.release(*items) == 0
    assert queue.complete(*items) == 0
    assert table.stored() == []


def test_remove_leaves_other_keys_and_other_queues_alone(make_queue, table, name):
    queue, other = make_queue(), make_queue(name=f"{name}, another")
    queue.enqueue("a", "b")
    other.enqueue("a")
    assert queue.remove("a") == 1
    assert table.stored() == ["b"]
    assert other.remove("a") == 1


# Reap


@pytest.mark.parametrize(("retention", "kept"), [(timedelta(0), 24 * HOUR), (HOUR, HOUR)])
def test_what_is_given_up_for_good_keeps_its_error_for_the_retention_or_a_day_where_there_is_none(
    make_queue, table, retention, kept
):
    queue = make_queue(retention=retention)

    @queue.handler
    def handle(item):
        if item.key != "good":
            raise PermanentError("no such product")

    queue.enqueue("bad", "worse", "good")
    counts = Worker([queue]).drain()
    assert (counts.completed, counts.failed) == (1, 2)
    assert table.row("bad").last_error == "PermanentError: no such product"
    table.age("bad", seconds=kept.total_seconds() - 60)
    table.age("worse", seconds=kept.total_seconds() + 60)
    assert queue.reap() == 1
    assert {"bad"} <= set(table.stored()) <= {"bad", "good"}
    queue.enqueue("bad")
    assert (table.state("bad"), table.row("bad").attempts, table.row("bad").last_error) == ("waiting", 0, None)


def test_reap_deletes_what_was_completed_longer_ago_than_the_retention(make_queue, table):
    queue = make_queue(retention=HOUR)
    queue.enqueue("old", "young", "leased")
    items = queue.claim()
    queue.complete(*[item for item in items if item.key != "leased"])
    queue.enqueue("waiting", delay=HOUR)
    table.age("old", seconds=3605)
    table.age("young", "leased", "waiting", seconds=3500)
    assert queue.reap() == 1
    assert table.stored() == ["leased", "waiting", "young"]


def test_reap_deletes_all_there_is_in_batches_of_reap_batch(make_queue, table):
    queue = make_queue(retention=HOUR, reap_batch=3)
    queue.enqueue(*map(str, range(10)))
    queue.complete(*queue.claim())
    table.age(*map(str, range(10)), seconds=7200)
    assert queue.reap() == 10
    assert table.stored() == []


def test_reap_stalls_every_lapsed_last_attempt(make_queue, table):
    queue = make_queue(max_attempts=1, reap_batch=3)
    keys = list(map(str, range(10)))
    queue.enqueue(*keys)
    queue.claim()
    table.lapse(*keys)
    assert queue.reap() == 0
    assert {table.state(key) for key in keys} == {"stalled"}


@pytest.mark.parametrize("by", ["a worker's claim", "maintenance", "a claim", "reap", "a claim in a transaction"])
def test_whoever_stalls_what_lapsed_on_its_last_attempt_says_so_as_an_error(make_queue, table, own, caplog, by):
    queue = make_queue(max_attempts=1)
    keys = [f"key {number:02}" for number in range(12)]
    queue.enqueue(*keys)
    queue.claim()
    table.lapse(*keys)
    stall = {
        "a worker's claim": lambda: queue.source.claim_on(own, 1, HOUR, None),
        "maintenance": lambda: queue.source.maintain_on(own),
        "a claim": queue.claim,
        "reap": queue.reap,
        "a claim in a transaction": transaction.atomic(queue.claim),
    }[by]
    stall()
    assert {table.state(key) for key in keys} == {"stalled"}
    stall()
    (record,) = caplog.records
    named = ", ".join(map(repr, keys[:10]))
    assert (record.levelname, record.getMessage()) == (
        "ERROR",
        f"{queue.name}: 12 items are stalled now, since the leases of their last attempts lapsed: {named} and 2 more",
    )


def test_reap_keeps_stalled_items(make_queue, table):
    queue = make_queue(max_attempts=1, retention=HOUR)
    queue.enqueue("a")
    queue.release(*queue.claim())
    table.age("a", seconds=10**6)
    assert queue.reap() == 0
    assert table.state("a") == "stalled"


def test_an_item_revived_by_an_enqueue_is_not_reaped(make_queue, table):
    queue = make_queue(retention=HOUR)
    queue.enqueue("a")
    queue.complete(*queue.claim())
    table.age("a", seconds=7200)
    queue.enqueue("a", delay=HOUR)
    assert queue.reap() == 0
    assert table.state("a") == "waiting"


# Stats


def test_stats_count_every_state(make_queue, table):
    queue = make_queue(max_attempts=1, retention=HOUR)
    queue.enqueue("stalled", "completed", "leased", "lapsed last attempt", "lapsed but asked for")
    queue.claim()
    queue.release("stalled")
    queue.complete("completed")
    queue.enqueue("lapsed but asked for")
    table.lapse("lapsed last attempt", "lapsed but asked for")
    queue.enqueue("ready", "readier")
    queue.enqueue("scheduled", delay=HOUR)
    table.age("readier", seconds=120)
    stats = queue.stats()
    assert (stats.pending, stats.ready, stats.scheduled, stats.leased, stats.stalled, stats.completed) == (
        4,
        3,
        1,
        1,
        2,
        1,
    )
    assert stats.oldest_ready_age.total_seconds() == about(120)
    assert len(queue.claim()) == stats.ready


def test_stats_of_an_empty_queue_are_zero(queue):
    stats = queue.stats()
    assert dataclasses.astuple(stats) == (0, 0, 0, 0, 0, 0, timedelta(0))
