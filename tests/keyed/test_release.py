"""Giving leases back and keeping them: release, stalling, extend."""

from datetime import timedelta

import pytest

from tests.keyed.test_complete import only
from tests.keyed.test_enqueue import HOUR, MINUTE, about

# Release


def test_release_gives_the_item_back_after_the_delay(queue, table):
    queue.enqueue("a", "b")
    assert queue.release(*queue.claim(), delay=MINUTE) == 2
    row = table.row("a")
    assert table.state("a") == "waiting"
    assert (row.due_in, row.lease_token) == (about(60), 0)


def test_a_negative_delay_of_a_release_counts_as_none(queue, table):
    queue.enqueue("a")
    queue.release(*queue.claim(), delay=-HOUR)
    assert table.row("a").due_in == about(0)
    assert len(queue.claim()) == 1


def test_a_released_item_is_due_again_at_once_unless_delayed(queue):
    queue.enqueue("a")
    queue.release(*queue.claim())
    assert [item.key for item in queue.claim()] == ["a"]


def test_release_keeps_the_attempts(queue):
    queue.enqueue("a")
    queue.release(*queue.claim())
    item = only(queue.claim())
    assert (item.attempts, item.reclaimed) == (2, False)


@pytest.mark.parametrize(
    ("error", "stored"),
    [
        (ValueError("no"), "ValueError: no"),
        (KeyError("k"), "KeyError: 'k'"),
        (SystemExit(3), "SystemExit: 3"),
        ("went wrong", "went wrong"),
        (ValueError("a\x00b\ud800c"), "ValueError: a\\x00b\\ud800c"),
    ],
)
def test_the_error_of_a_release_is_stored_as_type_and_message(queue, table, error, stored):
    queue.enqueue("a")
    queue.release(*queue.claim(), error=error)
    assert table.row("a").last_error == stored


@pytest.mark.parametrize("error", [ValueError("é" * 5000), "é" * 5000])
def test_a_stored_error_is_cut_to_2000_characters(queue, table, error):
    queue.enqueue("a")
    queue.release(*queue.claim(), error=error)
    assert len(table.row("a").last_error) == 2000


def test_an_error_that_cannot_be_printed_does_not_keep_its_item_from_being_released(queue, table):
    class Unprintable(Exception):
        def __str__(self):
            raise RuntimeError

    queue.enqueue("a")
    assert queue.release(*queue.claim(), error=Unprintable()) == 1
    assert table.row("a").last_error.startswith("Unprintable: ")


def test_release_without_an_error_keeps_the_last_one(queue, table):
    queue.enqueue("a")
    queue.release(*queue.claim(), error="no")
    queue.release(*queue.claim())
    assert table.row("a").last_error == "no"


@pytest.mark.parametrize("again", [False, True])
def test_a_stragglers_release_changes_nothing_and_reports_0(queue, table, again):
    queue.enqueue("a")
    stale = queue.claim()
    table.lapse("a")
    queue.claim()
    if again:
        queue.enqueue("a")
    before = table.row("a")
    assert queue.release(*stale, error="no") == 0
    after = table.row("a")
    assert (after.lease_until, after.lease_token, after.requeue_at, after.last_error) == (
        before.lease_until,
        before.lease_token,
        before.requeue_at,
        None,
    )


def test_release_never_resurrects_a_completed_item(queue, table):
    queue.enqueue("a")
    items = queue.claim()
    queue.complete("a")
    assert queue.release(*items) == 0
    assert queue.release("a") == 0
    assert table.state("a") == "completed"


def test_release_by_key_acts_on_whatever_lease_is_there_and_on_nothing_else(make_queue, table):
    queue = make_queue(max_attempts=1)
    queue.enqueue("stalled")
    queue.release(*queue.claim())
    queue.enqueue("live", "lapsed")
    queue.claim()
    table.lapse("lapsed")
    queue.enqueue("waiting", delay=HOUR)
    queue.enqueue("live", "lapsed")
    assert queue.release("live", "lapsed", "waiting", "stalled", "unknown") == 2
    assert table.state("stalled") == "stalled"
    assert table.row("waiting").due_in == about(3600)


def test_release_takes_items_of_several_claims_and_keys_together(queue, table):
    queue.enqueue("a", "b", "c")
    a, b = only(queue.claim(limit=1)), only(queue.claim(limit=1))
    queue.claim()
    assert queue.release(b, a, "c", error="no") == 3
    assert [table.row(key).last_error for key in "abc"] == ["no"] * 3


def test_the_last_attempt_stalls_when_released(make_queue, table):
    queue = make_queue(max_attempts=2)
    queue.enqueue("a")
    queue.release(*queue.claim(), error="one")
    assert table.state("a") == "waiting"
    assert queue.release(*queue.claim(), error="two", delay=MINUTE) == 1
    row = table.row("a")
    assert table.state("a") == "stalled"
    assert (row.last_error, row.attempts, row.leased) == ("two", 2, False)
    table.age("a")
    assert queue.claim() == []
    assert queue.stats().stalled == 1


def test_the_last_attempt_stalls_when_it_lapses(make_queue, table):
    queue = make_queue(max_attempts=1)
    queue.enqueue("a")
    stale = queue.claim()
    table.lapse("a")
    assert queue.stats().stalled == 1
    assert queue.reap() == 0
    assert table.state("a") == "stalled"
    assert queue.complete(*stale) == 0
    assert queue.release(*stale) == 0
    assert queue.stats().stalled == 1


def test_a_live_last_attempt_does_not_stall(make_queue, table):
    queue = make_queue(max_attempts=1)
    queue.enqueue("a")
    items = queue.claim()
    queue.reap()
    assert queue.claim() == []
    assert table.state("a") == "leased"
    assert queue.complete(*items) == 1


# Extend


def test_extend_lets_leases_end_no_sooner_than_the_lease_from_now(queue, table):
    queue.enqueue("a", "b")
    items = queue.claim(lease=MINUTE)
    assert queue.extend(*items, lease=HOUR) == items
    assert table.row("a").lease_left == about(3600)


def test_extend_never_shortens(queue, table):
    queue.enqueue("a")
    items = queue.claim(lease=HOUR)
    assert queue.extend(*items, lease=MINUTE) == items
    assert table.row("a").lease_left == about(3600)


def test_extend_reports_those_still_held(make_queue, table):
    queue = make_queue(max_attempts=2)
    queue.enqueue("held", "lapsed", "taken", "completed", "released", "removed")
    items = {item.key: item for item in queue.claim()}
    table.lapse("lapsed", "taken")
    queue.enqueue("lapsed", delay=HOUR)
    table.connection.execute(
        "UPDATE workqueue_item SET lease_token = 1, lease_until = statement_timestamp() + interval '1 hour'"
        " WHERE queue = %s AND key = 'taken'",
        [queue.name],
    )
    queue.complete(items["completed"])
    queue.release(items["released"])
    queue.remove("removed")
    assert [item.key for item in queue.extend(*items.values(), lease=HOUR)] == ["held", "lapsed"]
    assert table.row("lapsed").lease_left == about(3600)


def test_extend_takes_items_of_several_claims(queue, table):
    queue.enqueue("a", "b")
    first, second = only(queue.claim(limit=1)), only(queue.claim(limit=1))
    assert queue.extend(second, first, lease=HOUR) == [second, first]
    assert [table.row(key).lease_left for key in "ab"] == [about(3600)] * 2


def test_extend_of_a_row_that_is_held_for_a_moment_waits_for_it(queue, table, connect, aside, wait_until):
    queue.enqueue("a", "b")
    items = queue.claim(lease=MINUTE)
    holder = connect(autocommit=False)
    holder.execute("SELECT FROM workqueue_item WHERE queue = %s AND key = 'a' FOR UPDATE", [queue.name])
    extended = aside(queue.extend, *items, lease=HOUR)
    wait_until(lambda: table.row("b").lease_left == about(3600))
    holder.rollback()
    assert extended.result(timeout=10) == items


@pytest.mark.parametrize("lease", [timedelta(0), -MINUTE])
def test_extend_by_no_length_raises(queue, lease):
    with pytest.raises(ValueError, match="lease is positive"):
        queue.extend(lease=lease)
