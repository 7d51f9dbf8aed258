"""What complete changes, what it leaves alone, what it counts."""

import dataclasses
from datetime import timedelta

import pytest

from django_workqueue import Item
from tests.keyed.test_enqueue import HOUR, MINUTE

RETENTIONS = pytest.mark.parametrize("retention", [timedelta(0), HOUR])


def only(items):
    (item,) = items
    return item


def test_complete_keeps_the_item_for_the_retention(queue, table):
    queue.enqueue("a", "b")
    assert queue.complete(*queue.claim()) == 2
    assert table.state("a") == table.state("b") == "completed"
    row = table.row("a")
    assert (row.leased, row.lease_token, row.requeue_at, row.last_error) == (False, 0, None, None)
    assert queue.claim() == []


def test_complete_deletes_the_item_at_once_where_nothing_is_retained(make_queue, table):
    queue = make_queue(retention=timedelta(0))
    queue.enqueue("a", "b", "c")
    assert queue.complete(*queue.claim(limit=2)) == 2
    assert table.stored() == ["c"]
    assert queue.complete(*queue.claim()) == 1
    assert table.stored() == []


@RETENTIONS
def test_complete_counts_items_that_are_to_run_once_more(make_queue, retention):
    queue = make_queue(retention=retention)
    queue.enqueue("a", "b")
    items = queue.claim()
    queue.enqueue("b")
    assert queue.complete(*items) == 2


def test_complete_forgets_the_error_of_an_earlier_attempt(queue, table):
    queue.enqueue("a")
    queue.release(*queue.claim(), error="no")
    queue.complete(*queue.claim())
    assert table.row("a").last_error is None


@RETENTIONS
@pytest.mark.parametrize("again", [False, True])
def test_a_stragglers_complete_changes_nothing_and_reports_0(make_queue, table, retention, again):
    queue = make_queue(retention=retention)
    queue.enqueue("a")
    stale = queue.claim()
    table.lapse("a")
    queue.claim()
    if again:
        queue.enqueue("a")
    before = table.row("a")
    assert queue.complete(*stale) == 0
    after = table.row("a")
    assert (after.lease_until, after.lease_token, after.requeue_at) == (
        before.lease_until,
        before.lease_token,
        before.requeue_at,
    )


def test_a_lapsed_lease_that_nobody_took_over_still_completes(queue, table):
    queue.enqueue("a")
    items = queue.claim()
    table.lapse("a")
    assert queue.complete(*items) == 1
    assert table.state("a") == "completed"


@RETENTIONS
def test_items_of_several_claims_are_each_fenced_on_their_own_lease(make_queue, table, retention):
    queue = make_queue(retention=retention)
    queue.enqueue("a", "b", "c")
    a, b, c = (only(queue.claim(limit=1)) for _ in range(3))
    table.lapse("b")
    other = only(queue.claim())
    assert queue.complete(a, b, c) == 2
    assert table.state("b") == "leased"
    assert queue.complete(b, other) == 1


@RETENTIONS
def test_a_stale_and_a_live_item_of_one_key_in_one_call_count_once(make_queue, table, retention):
    queue = make_queue(retention=retention)
    queue.enqueue("a")
    stale = only(queue.claim())
    table.lapse("a")
    live = only(queue.claim())
    assert queue.complete(stale, live, live) == 1


@RETENTIONS
def test_complete_by_key_acts_on_whatever_lease_is_there(make_queue, table, retention):
    queue = make_queue(retention=retention)
    queue.enqueue("live", "lapsed")
    queue.claim()
    table.lapse("lapsed")
    assert queue.complete("live", "lapsed", "live") == 2
    assert {table.state("live"), table.state("lapsed")} == {"completed" if retention else "absent"}


@RETENTIONS
def test_complete_by_key_leaves_what_is_not_leased_alone_and_does_not_count_it(make_queue, table, retention):
    queue = make_queue(retention=retention, max_attempts=1)
    queue.enqueue("stalled", "completed")
    queue.release(*[item for item in queue.claim() if item.key == "stalled"])
    queue.complete("completed")
    queue.enqueue("waiting", delay=HOUR)
    before = [table.row(key) for key in table.stored()]
    assert queue.complete("stalled", "completed", "waiting", "unknown") == 0
    assert [
        (row.key, row.completed_at, row.stalled_at, row.available_at) for row in map(table.row, table.stored())
    ] == [(row.key, row.completed_at, row.stalled_at, row.available_at) for row in before]


@RETENTIONS
def test_complete_of_items_completed_or_removed_already_changes_nothing(make_queue, table, retention):
    queue = make_queue(retention=retention)
    queue.enqueue("completed", "removed")
    items = queue.claim()
    queue.complete("completed")
    queue.remove("removed")
    assert queue.complete(*items) == 0
    assert table.state("removed") == "absent"


def test_a_completion_takes_no_later_run_for_its_own(queue, table):
    queue.enqueue("a")
    items = queue.claim()
    queue.remove("a")
    queue.enqueue("a")
    assert queue.complete(*items) == 0
    queue.claim()
    assert queue.complete(*items) == 0
    assert table.state("a") == "leased"


def test_complete_takes_items_and_keys_together(queue, table):
    queue.enqueue("a", "b")
    a, _ = queue.claim()
    assert queue.complete(a, "b") == 2


def test_complete_of_more_than_one_statement_holds(queue):
    queue.enqueue(*(f"{number:04}" for number in range(1200)))
    items = queue.claim() + queue.claim() + queue.claim()
    assert queue.complete(*items) == 1200


def test_complete_of_nothing_is_0(queue):
    assert queue.complete() == 0
    assert queue.release() == 0
    assert queue.remove() == 0
    assert queue.extend(lease=MINUTE) == []


def test_an_item_that_was_never_claimed_completes_nothing(queue, table):
    queue.enqueue("a")
    assert queue.complete(Item("a", queue.name)) == 0
    assert queue.complete(dataclasses.replace(Item("a", queue.name), _text="a")) == 0
    assert queue.release(dataclasses.replace(Item("a", queue.name), _text="a")) == 0
    assert table.state("a") == "waiting"
