"""What a claim hands out, in which order, and what it promises about it."""

import time
from datetime import timedelta

import pytest

from django_workqueue import Entry, Item
from tests.keyed.test_enqueue import HOUR, MINUTE, about


def keys(items):
    return [item.key for item in items]


def test_claim_leases_what_is_due(queue, table):
    queue.enqueue("a", priority=3)
    queue.enqueue("later", delay=HOUR)
    (item,) = queue.claim(lease=MINUTE)
    assert item == Item(key="a", queue=queue.name, priority=3, attempts=1, reclaimed=False)
    assert table.state("a") == "leased"
    assert table.row("a").lease_left == about(60)
    assert table.state("later") == "waiting"


def test_a_lease_is_thirty_seconds_unless_said_otherwise(queue, table):
    queue.enqueue("a")
    queue.claim()
    assert 5 < table.row("a").lease_left <= 30


def test_a_leased_item_is_not_handed_out_again(queue):
    queue.enqueue("a")
    queue.claim()
    assert queue.claim() == []


def test_claim_of_an_empty_queue_is_empty(queue):
    assert queue.claim() == []


def test_claim_takes_from_its_own_queue_only(make_queue, name):
    mine, theirs = make_queue(), make_queue(name=f"{name}, another")
    theirs.enqueue("a")
    assert mine.claim() == []
    assert keys(theirs.claim()) == ["a"]


def test_claim_hands_out_the_highest_priority_first_then_the_longest_waiting_then_by_key(queue, table):
    queue.enqueue_many([Entry("c", 0), Entry("b", 0), Entry("é", 0), Entry("Z", 0)])  # one statement, one time
    queue.enqueue("a", priority=0)
    queue.enqueue("loud", priority=10)
    queue.enqueue("louder", priority=2**31 - 1)
    queue.enqueue("quiet", priority=-(2**31) + 2)
    queue.enqueue("old")
    table.age("old")
    assert keys(queue.claim()) == ["louder", "loud", "old", "Z", "b", "c", "é", "a", "quiet"]


def test_a_limited_claim_takes_the_first_of_that_order(queue, table):
    queue.enqueue_many([Entry(f"{number:02}", number % 3) for number in range(30)])
    taken = [keys(queue.claim(limit=7)) for _ in range(5)]
    expected = [f"{number:02}" for rest in (2, 1, 0) for number in range(30) if number % 3 == rest]
    assert [key for batch in taken for key in batch] == expected
    assert [len(batch) for batch in taken] == [7, 7, 7, 7, 2]


def test_a_claim_is_at_most_max_claim_whatever_its_limit(make_queue):
    queue = make_queue(max_claim=5)
    queue.enqueue(*"abcdefghijklmn")
    assert keys(queue.claim()) == list("abcde")
    assert keys(queue.claim(limit=100)) == list("fghij")
    assert keys(queue.claim(limit=2)) == ["k", "l"]


def test_max_claim_is_500(queue):
    queue.enqueue(*map(str, range(600)))
    assert len(queue.claim()) == 500
    assert len(queue.claim(limit=10_000)) == 100


def test_the_limit_counts_leased_items_those_that_will_not_decode_included(make_queue, table):
    queue = make_queue(key=int)
    queue.enqueue(*range(1, 6))
    table.spoil("1", "0 no number")
    assert keys(queue.claim(limit=3)) == [2, 3]
    assert keys(queue.claim(limit=3)) == [4, 5]


@pytest.mark.parametrize("lease", [timedelta(0), -MINUTE, -timedelta.resolution])
def test_a_lease_of_no_length_raises(queue, table, lease):
    queue.enqueue("a")
    with pytest.raises(ValueError, match="lease is positive"):
        queue.claim(lease=lease)
    assert table.state("a") == "waiting"


def test_attempts_are_1_on_first_delivery_and_count_up(queue):
    queue.enqueue("a")
    for attempt in (1, 2, 3):
        (item,) = queue.claim()
        assert item.attempts == attempt
        queue.release(item)


# Lapsed leases


def test_a_lapsed_lease_is_handed_out_by_the_next_claim(queue, wait_until):
    queue.enqueue("a")
    queue.claim(lease=timedelta(milliseconds=80))
    end = time.monotonic() + 0.08
    wait_until(lambda: time.monotonic() > end)
    (item,) = queue.claim()
    assert (item.key, item.attempts, item.reclaimed) == ("a", 2, True)


def test_a_live_lease_is_not_handed_out_to_its_very_end(queue, wait_until):
    queue.enqueue("a")
    claimed = time.monotonic()
    queue.claim(lease=timedelta(milliseconds=250))
    (item,) = wait_until(queue.claim)
    assert time.monotonic() - claimed >= 0.25
    assert item.reclaimed


def test_reclaimed_is_true_only_when_an_earlier_lease_lapsed(queue, table):
    queue.enqueue("released")
    queue.release(*queue.claim(), delay=timedelta(microseconds=1))
    queue.enqueue("lapsed", priority=1)
    queue.enqueue("fresh", priority=-1)
    queue.claim(limit=1)
    table.lapse("lapsed")
    assert {item.key: item.reclaimed for item in queue.claim()} == {"released": False, "lapsed": True, "fresh": False}


def test_a_lapsed_lease_keeps_its_place_in_the_order(queue, table):
    queue.enqueue("first")
    queue.claim()
    queue.enqueue("second")
    table.lapse("first")
    assert keys(queue.claim()) == ["first", "second"]


# Other claimers


def test_two_claims_never_take_the_same_item(queue, aside):
    queue.enqueue(*(f"{number:03}" for number in range(200)))

    def take():
        taken = []
        while items := queue.claim(limit=7):
            taken += keys(items)
        return taken

    together = [aside(take) for _ in range(4)]
    taken = [key for each in together for key in each.result(timeout=20)]
    assert sorted(taken) == [f"{number:03}" for number in range(200)]


def test_claim_fills_its_batch_around_locked_rows(queue, table, connect):
    queue.enqueue(*(f"{number:03}" for number in range(200)))
    holder = connect(autocommit=False)
    holder.execute(
        "SELECT FROM workqueue_item WHERE queue = %s AND key < '150' AND key NOT LIKE '%%7' FOR UPDATE", [queue.name]
    )
    taken = keys(queue.claim(limit=50))
    holder.rollback()
    assert taken == [f"{number:03}" for number in range(150) if number % 10 == 7] + [
        f"{number:03}" for number in range(150, 185)
    ]


def test_claim_fills_its_batch_around_leased_rows(queue):
    queue.enqueue(*(f"{number:03}" for number in range(100)))
    queue.claim(limit=40)
    assert keys(queue.claim(limit=50)) == [f"{number:03}" for number in range(40, 90)]


def test_a_claim_locks_no_more_rows_than_it_leases(queue, connect):
    """Or other claimers would come up short while work remains."""
    queue.enqueue_many([Entry(f"{priority} {number:02}", priority) for priority in range(5) for number in range(20)])
    queue.claim(limit=1)  # learns the priorities
    holder, other = connect(autocommit=False), connect()
    statement, params = _claim_of(queue, limit=10)
    holder.execute(statement, params)
    free = other.execute(
        "SELECT count(*) FROM (SELECT FROM workqueue_item WHERE queue = %s FOR UPDATE SKIP LOCKED) free", [queue.name]
    ).fetchone()
    holder.rollback()
    assert free == (90,)


def _claim_of(queue, limit):
    """The claim that the queue would send now, for another connection."""
    from django_workqueue.sql import items

    lo, since, after, hi = map(list, zip(*queue.source.floors.look().intervals, strict=True))
    assert len(lo) > 5
    return items.CLAIM.of(queue.name), {
        "lo": lo,
        "since": since,
        "after": after,
        "hi": hi,
        "limit": limit,
        "lease": 60_000_000,
        "token": 1,
        "max": 0,
        "ask": True,
    }


# Out of attempts


def test_a_lapsed_last_attempt_is_never_claimed_and_stalls(make_queue, table):
    queue = make_queue(max_attempts=2)
    queue.enqueue("a")
    queue.claim()
    table.lapse("a")
    (item,) = queue.claim()
    assert item.attempts == 2
    table.lapse("a")
    assert queue.claim() == []
    assert table.state("a") == "stalled"
    assert queue.claim() == []


def test_without_max_attempts_an_item_never_runs_out_of_them(queue, table):
    queue.enqueue("a")
    for _ in range(50):
        (item,) = queue.claim()
        table.lapse("a")
    assert item.attempts == 50
    assert queue.claim()[0].attempts == 51


def test_a_waiting_item_whose_attempts_exceed_a_lowered_max_attempts_still_runs(make_queue, table, name):
    """A producer's acknowledged enqueue must be worked, whatever number its row has collected under older settings."""
    queue = make_queue(max_attempts=2)
    queue.enqueue("a")
    table.connection.execute("UPDATE workqueue_item SET attempts = 7 WHERE queue = %s", [name])
    queue.enqueue("a")
    assert queue.stats().ready == 1
    (item,) = queue.claim()
    assert item.attempts == 8
    queue.release(item)
    assert table.state("a") == "stalled"


# Pausing


def test_a_paused_queue_hands_out_nothing_until_it_is_resumed(queue, table):
    queue.enqueue("a")
    assert not queue.is_paused()
    queue.pause()
    queue.pause()
    assert queue.is_paused()
    assert queue.claim() == []
    queue.resume()
    queue.resume()
    assert not queue.is_paused()
    assert keys(queue.claim()) == ["a"]


def test_a_pause_is_durable_and_for_everybody(queue, connect):
    queue.pause()
    row = (
        connect().execute("SELECT paused_at IS NOT NULL FROM workqueue_queue WHERE name = %s", [queue.name]).fetchone()
    )
    assert row == (True,)


def test_a_paused_queue_takes_enqueues_and_completions(queue, table):
    queue.enqueue("a")
    items = queue.claim()
    queue.pause()
    queue.enqueue("b")
    assert queue.complete(*items) == 1
    assert table.state("a") == "completed"
    queue.resume()
    assert keys(queue.claim()) == ["b"]


def test_a_pause_does_not_lift_a_lapsed_lease(queue, table):
    queue.enqueue("a")
    queue.claim()
    queue.pause()
    table.lapse("a")
    assert queue.claim() == []
    queue.resume()
    assert keys(queue.claim()) == ["a"]


def test_pausing_one_queue_pauses_no_other(make_queue, name):
    one, other = make_queue(), make_queue(name=f"{name}, another")
    one.pause()
    other.enqueue("a")
    assert keys(other.claim()) == ["a"]
