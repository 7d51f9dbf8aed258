"""Each writer against a concurrent writer of the same row, which was there first and then commits.

A statement that waited for a lock holds a row version that its own snapshot cannot see: joined on ctid it would do
nothing and say nothing. The writers here are the statements themselves, on a thread of their own; the other side is a
statement in a transaction that the test keeps open.
"""

import itertools
from datetime import timedelta

import pytest

from django_workqueue import inbox
from django_workqueue.managers import new_token
from django_workqueue.models import WorkItem
from django_workqueue.sql import items
from tests import interleave
from tests.keyed.test_enqueue import HOUR, MINUTE, about

OURS, THEIRS = 11, 22  # lease tokens
HOUR_US = 3_600_000_000


class Other:
    """The other side: statements in one transaction, left open until `commit` or `rollback`."""

    def __init__(self, connection, queue):
        self.connection = connection
        self.queue = queue

    def send(self, statement, **params):
        return self.connection.execute(statement.of(self.queue), params).fetchall() if params else None

    def enqueue(self, *keys, priority=0, delay=0):
        self.connection.execute(
            items.ENQUEUE.of(self.queue),
            {"keys": list(keys), "priorities": [priority] * len(keys), "delays": [delay] * len(keys)},
        )

    def extend(self, *keys):
        self.send(items.EXTEND, keys=list(keys), token=OURS, lease=HOUR_US)

    def reclaim(self, *keys):
        """Let the lease lapse and claim it, as a second worker would."""
        self.connection.execute(
            "UPDATE workqueue_item SET lease_until = 'epoch'::timestamptz + interval '1 second'"
            " WHERE queue = %s AND key = ANY (%s)",
            [self.queue, list(keys)],
        )
        self.claim()

    def claim(self, limit=500):
        self.send(
            items.CLAIM,
            lo=[-(2**31) + 1],
            since=[0],
            after=[""],
            hi=[2**31 - 1],
            limit=limit,
            lease=HOUR_US,
            token=THEIRS,
            max=0,
            ask=False,
        )

    def complete(self, *keys):
        self.send(items.COMPLETE_KEEP_ANY, keys=list(keys))

    def complete_delete(self, *keys):
        self.send(items.COMPLETE_DELETE_ANY, keys=list(keys))

    def release(self, *keys, max_attempts=0):
        count = len(keys)
        self.send(
            items.RELEASE_ANY,
            keys=list(keys),
            delays=[0] * count,
            errors=[None] * count,
            uncounts=[0] * count,
            max=max_attempts,
            tokens=[0] * count,
        )

    def remove(self, *keys):
        self.connection.execute(
            "DELETE FROM workqueue_item WHERE queue = %s AND key = ANY (%s)", [self.queue, list(keys)]
        )

    def lock(self, *keys):
        self.connection.execute(
            "SELECT FROM workqueue_item WHERE queue = %s AND key = ANY (%s) FOR UPDATE", [self.queue, list(keys)]
        )

    def nothing(self, *keys):
        self.remove(*keys)
        self.connection.rollback()
        self.lock(*keys)

    def commit(self):
        self.connection.commit()

    def rollback(self):
        self.connection.rollback()


@pytest.fixture
def other(connect, name):
    return Other(connect(autocommit=False), name)


@pytest.fixture
def leased(db, name, queue):
    """`a`, `b` and `c`, leased under one token of ours."""

    def lease(*keys, token=OURS, max_attempts=0):
        WorkItem.objects.enqueue(name, sorted(keys), [0] * len(keys), [0] * len(keys))
        WorkItem.objects.claim(name, 500, MINUTE, token=token, max_attempts=max_attempts)

    lease("a", "b", "c")
    return lease


def complete(name, *, tokens, keep):
    return WorkItem.objects.complete(name, ["a", "b", "c"], tokens, keep=keep).number


def release(name, *, tokens, error=None):
    return WorkItem.objects.release(
        name, ["a", "b", "c"], tokens, delays=[60_000_000] * 3, errors=[error] * 3, uncounts=[0] * 3
    ).number


MANY = [OURS] * 3
SETTLERS = {
    "complete, keeping, by one token": lambda name: complete(name, tokens=OURS, keep=True),
    "complete, keeping, by tokens": lambda name: complete(name, tokens=MANY, keep=True),
    "complete, keeping, by key": lambda name: complete(name, tokens=None, keep=True),
    "complete, deleting, by one token": lambda name: complete(name, tokens=OURS, keep=False),
    "complete, deleting, by tokens": lambda name: complete(name, tokens=MANY, keep=False),
    "complete, deleting, by key": lambda name: complete(name, tokens=None, keep=False),
    "finish": lambda name: WorkItem.objects.finish(name, ["a", "b", "c"], MANY, ["no"] * 3).number,
    "release, by tokens": lambda name: release(name, tokens=MANY),
    "release, by key": lambda name: release(name, tokens=None),
    "release, with an error": lambda name: release(name, tokens=MANY, error="no"),
}


def settled(settler):
    """The state in which the settler leaves a row that is its own."""
    if settler.startswith("release"):
        return "waiting"
    return "absent" if "deleting" in settler else "completed"


@pytest.mark.parametrize("contested", ["a", "b", "c"])
@pytest.mark.parametrize("settler", SETTLERS)
def test_a_settlement_that_waited_for_an_enqueue_lets_it_run_once_more(
    settler, contested, name, table, leased, other, waiting
):
    other.enqueue(contested)
    pending = waiting(lambda: SETTLERS[settler](name))
    other.commit()
    assert pending.result(10) == 3
    row = table.row(contested)
    assert table.state(contested) == "waiting"
    assert (row.requeue_at, row.lease_token) == (None, 0)
    assert row.due_in == about(60 if settler == "release, with an error" else 0)
    assert {table.state(key) for key in "abc" if key != contested} == {settled(settler)}


@pytest.mark.parametrize("concurrent", ["extend", "nothing"])
@pytest.mark.parametrize("settler", SETTLERS)
def test_a_settlement_that_waited_for_a_harmless_writer_is_done(
    settler, concurrent, name, table, leased, other, waiting
):
    getattr(other, concurrent)("b")
    pending = waiting(lambda: SETTLERS[settler](name))
    other.commit()
    assert pending.result(10) == 3
    assert {table.state(key) for key in "abc"} == {settled(settler)}


@pytest.mark.parametrize("settler", SETTLERS)
def test_a_settlement_that_waited_for_a_lapsed_lease_to_be_taken_over_is_fenced_off(
    settler, name, table, leased, other, waiting
):
    other.reclaim("b")
    pending = waiting(lambda: SETTLERS[settler](name))
    other.commit()
    by_key = settler.endswith("by key")
    assert pending.result(10) == (3 if by_key else 2)
    assert table.state("b") == (settled(settler) if by_key else "leased")
    if not by_key:
        assert table.row("b").lease_token == THEIRS
        assert table.row("b").last_error is None


@pytest.mark.parametrize("concurrent", ["complete", "complete_delete", "remove", "release"])
@pytest.mark.parametrize("settler", SETTLERS)
def test_a_settlement_that_waited_for_another_end_of_its_run_changes_nothing(
    settler, concurrent, name, table, leased, other, waiting
):
    getattr(other, concurrent)("b")
    pending = waiting(lambda: SETTLERS[settler](name))
    other.commit()
    assert pending.result(10) == 2
    ends = {"complete": "completed", "complete_delete": "absent", "remove": "absent", "release": "waiting"}
    assert table.state("b") == ends[concurrent]
    if concurrent == "release":
        assert table.row("b").due_in == about(0)
        assert table.row("b").last_error is None


# Enqueue: the statement waits; the batcher, which must not, is in test_transactions.py


def enqueue(name, *keys, priority=0, delay=0):
    WorkItem.objects.enqueue(name, sorted(keys), [priority] * len(keys), [delay] * len(keys))


@pytest.mark.parametrize(
    ("concurrent", "state", "again"),
    [
        ("extend", "leased", True),
        ("complete", "waiting", False),
        ("complete_delete", "waiting", False),
        ("remove", "waiting", False),
        ("release", "waiting", False),
        ("reclaim", "leased", True),
        ("nothing", "leased", True),
    ],
)
def test_an_enqueue_that_waited_leaves_a_run_to_come(concurrent, state, again, name, table, leased, other, waiting):
    getattr(other, concurrent)("b")
    pending = waiting(lambda: enqueue(name, "a", "b", "c"))
    other.commit()
    pending.result(10)
    assert table.state("b") == state
    assert (table.row("b").requeue_at is not None) == again
    if state == "waiting":
        assert table.row("b").due_in == about(0)


def test_an_enqueue_that_waited_for_a_stall_revives(name, table, leased, other, waiting):
    other.release("b", max_attempts=1)
    pending = waiting(lambda: enqueue(name, "b"))
    other.commit()
    pending.result(10)
    assert table.state("b") == "waiting"
    assert table.row("b").attempts == 0


def test_an_enqueue_that_waited_for_a_claim_of_the_waiting_item_leaves_a_run_to_come(
    name, table, leased, other, waiting
):
    enqueue(name, "d")
    other.claim()
    pending = waiting(lambda: enqueue(name, "d"))
    other.commit()
    pending.result(10)
    assert table.state("d") == "leased"
    assert table.row("d").requeue_at is not None


def test_an_enqueue_that_gains_nothing_waits_all_the_same_for_a_claim_that_it_might_be_late_for(
    name, table, leased, other, waiting
):
    enqueue(name, "d", priority=5)
    other.claim()
    pending = waiting(lambda: enqueue(name, "d", delay=HOUR_US))
    other.commit()
    pending.result(10)
    assert table.row("d").again_in == about(3600)


@pytest.mark.parametrize("end", ["commit", "rollback"])
def test_an_enqueue_that_waited_for_another_of_the_same_new_key_merges_or_inserts(
    end, name, table, queue, other, waiting
):
    other.enqueue("new", priority=1, delay=HOUR_US)
    pending = waiting(lambda: enqueue(name, "new", priority=0))
    getattr(other, end)()
    pending.result(10)
    assert table.state("new") == "waiting"
    assert table.row("new").priority == (1 if end == "commit" else 0)
    assert table.row("new").due_in == about(0)


# Remove


@pytest.mark.parametrize(
    ("concurrent", "count"),
    [
        ("enqueue", 3),
        ("extend", 3),
        ("reclaim", 3),
        ("release", 3),
        ("complete", 3),
        ("nothing", 3),
        ("remove", 2),
        ("complete_delete", 2),
    ],
)
def test_a_remove_that_waited_removes(concurrent, count, name, table, queue, leased, other, waiting):
    getattr(other, concurrent)("b")
    pending = waiting(lambda: queue.remove("c", "b", "a"))
    other.commit()
    assert pending.result(10) == count
    assert table.stored() == []


def test_a_remove_that_waited_for_a_fold_removes_what_was_folded(name, table, queue, other, waiting):
    WorkItem.objects.enqueue_later(name, ["a", "b"], [0, 0], [0, 0], 1)
    other.send(items.FOLD, since=0, limit=100, aside=[], patience="1s")
    pending = waiting(lambda: queue.remove("a", "b"))
    other.commit()
    assert pending.result(10) == 2
    assert table.stored() == []
    assert table.inbox() == []


def test_two_removes_of_the_same_inbox_rows_do_not_deadlock(name, table, queue, other, waiting, connect):
    """In the order of their ids, whatever the order of the keys."""
    WorkItem.objects.enqueue_later(name, ["b", "a"], [0, 0], [0, 0], 1)
    other.connection.execute("SELECT FROM workqueue_inbox WHERE queue = %s AND key = 'b' FOR UPDATE", [name])
    pending = waiting(lambda: queue.remove("a", "b"))
    free = connect().execute("SELECT key FROM workqueue_inbox WHERE queue = %s FOR UPDATE SKIP LOCKED", [name])
    assert free.fetchall() == [("a",)]
    other.rollback()
    assert pending.result(10) == 2


# Those that never wait


@pytest.mark.parametrize("concurrent", ["enqueue", "extend", "lock"])
def test_extend_skips_a_row_that_is_held_and_renews_the_rest(concurrent, name, table, leased, other):
    getattr(other, concurrent)("b")
    assert sorted(WorkItem.objects.extend(name, ["a", "b", "c"], OURS, HOUR)) == ["a", "c"]
    assert sorted(WorkItem.objects.held(name, ["a", "b", "c"], OURS)) == ["a", "b", "c"]
    other.commit()
    assert sorted(WorkItem.objects.extend(name, ["a", "b", "c"], OURS, HOUR)) == ["a", "b", "c"]
    assert table.row("b").lease_left == about(3600)


@pytest.mark.parametrize("concurrent", ["complete", "remove", "reclaim", "release"])
def test_extend_by_hand_waits_for_a_held_row_and_does_not_report_what_is_lost(concurrent, queue, table, other, aside):
    queue.enqueue("a", "b", "c")
    held = queue.claim()
    getattr(other, concurrent)("b")
    pending = aside(queue.extend, *held, lease=HOUR)
    interleave.wait_until(lambda: table.row("c").lease_left == about(3600))
    other.commit()
    assert [item.key for item in pending.result(10)] == ["a", "c"]


def test_claim_skips_a_row_that_is_held_and_a_later_claim_takes_it(name, table, queue, other):
    queue.enqueue("a", "b", "c")
    other.enqueue("b", priority=5)
    assert [item.key for item in queue.claim()] == ["a", "c"]
    other.commit()
    assert [(item.key, item.priority) for item in queue.claim()] == [("b", 5)]


@pytest.mark.parametrize("end", ["commit", "rollback"])
def test_claim_skips_what_another_is_claiming(end, queue, table, other):
    queue.enqueue("a", "b", "c")
    other.claim(limit=2)
    assert [item.key for item in queue.claim()] == ["c"]
    getattr(other, end)()
    assert [item.key for item in queue.claim()] == ([] if end == "commit" else ["a", "b"])


def test_stall_skips_a_row_that_is_being_asked_for_again(make_queue, table, other):
    queue = make_queue(max_attempts=1)
    queue.enqueue("a", "b")
    queue.claim()
    table.lapse("a", "b")
    other.enqueue("b")
    queue.reap()
    assert (table.state("a"), table.state("b")) == ("stalled", "lapsed")
    other.commit()
    queue.reap()
    assert table.state("b") == "lapsed"
    assert [(item.key, item.attempts) for item in queue.claim()] == [("b", 1)]


def test_reap_skips_a_row_that_is_being_revived(make_queue, table, other):
    queue = make_queue(retention=MINUTE)
    queue.enqueue("a", "b")
    queue.complete(*queue.claim())
    table.age("a", "b")
    other.enqueue("b")
    assert queue.reap() == 1
    other.commit()
    assert queue.reap() == 0
    assert table.state("b") == "waiting"


@pytest.mark.parametrize("concurrent", ["enqueue", "extend", "complete", "complete_delete", "remove", "lock"])
def test_the_fold_skips_a_row_that_is_held_and_a_later_fold_takes_it(concurrent, name, table, queue, leased, other):
    WorkItem.objects.enqueue_later(name, ["a", "b", "c", "d"], [7] * 4, [0] * 4, 1)
    getattr(other, concurrent)("b")
    assert [item.key for item in queue.claim()] == ["d"]
    assert table.inbox() == ["b"]
    assert [table.row(key).requeue_at is not None for key in "ac"] == [True, True]
    other.commit()
    queue.claim()
    assert table.inbox() == []
    if concurrent in ("enqueue", "extend", "lock"):
        assert table.row("b").requeue_at is not None
    else:
        assert table.row("b").lease_token not in (0, OURS)  # a new run of it


def test_the_fold_takes_the_rest_of_the_keys_when_one_is_being_inserted_by_an_open_transaction(
    name, table, queue, other, aside
):
    """Nobody can see, and so skip, a row that is not committed: a fold must not wait for its transaction's end."""
    other.enqueue("b")
    WorkItem.objects.enqueue_later(name, ["a", "b", "c"], [0] * 3, [0] * 3, 1)
    claimed = []
    interleave.wait_until(lambda: claimed.extend(aside(queue.claim).result(5)) or len(claimed) == 2)
    assert [item.key for item in claimed] == ["a", "c"]
    assert table.inbox() == ["b"]
    other.commit()
    assert [item.key for item in queue.claim()] == ["b"]


def test_what_a_fold_went_around_is_folded_when_its_time_has_come(name, table, queue, other, monkeypatch):
    monkeypatch.setattr(inbox, "ASIDE", 0.2)
    other.enqueue("a", delay=HOUR_US)
    WorkItem.objects.enqueue_later(name, ["a"], [5], [0], 1)
    interleave.wait_until(lambda: queue.claim() == [] and queue.source.inbox._aside)
    other.commit()
    assert [item.priority for item in interleave.wait_until(queue.claim)] == [5]
    assert table.inbox() == []


# The order of locks


WAITERS = SETTLERS | {
    "enqueue": lambda name: enqueue(name, "c", "b", "a"),
    "remove": lambda name: WorkItem.objects.remove(name, ["c", "b", "a"]),
}


@pytest.mark.parametrize("contested", ["a", "b", "c"])
@pytest.mark.parametrize("writer", WAITERS)
def test_every_writer_that_waits_locks_its_rows_in_key_order(writer, contested, name, leased, other, waiting, connect):
    other.lock(contested)
    pending = waiting(lambda: WAITERS[writer](name))
    free = connect().execute(
        "SELECT key FROM workqueue_item WHERE queue = %s ORDER BY key FOR UPDATE SKIP LOCKED", [name]
    )
    assert [key for (key,) in free] == [key for key in "abc" if key > contested]
    other.rollback()
    pending.result(10)


def test_keys_that_the_databases_own_collation_would_sort_otherwise_are_locked_in_byte_order(
    name, queue, other, waiting, connect
):
    keys = ["B", "a", "Ä", "é", "z", "_"]
    enqueue(name, *keys)
    other.lock("a")
    pending = waiting(lambda: enqueue(name, *keys, priority=3))
    free = connect().execute(
        "SELECT key FROM workqueue_item WHERE queue = %s ORDER BY key FOR UPDATE SKIP LOCKED", [name]
    )
    assert [key for (key,) in free] == ["z", "Ä", "é"]
    other.rollback()
    pending.result(10)


def test_writers_of_the_same_rows_in_every_order_never_deadlock(queue, aside):
    """Eight threads enqueue, complete, release and remove overlapping keys by hand, for half a second."""
    keys = [f"{number:02}" for number in range(20)]
    stop = interleave.time.monotonic() + 0.5

    def churn(seed):
        turns = itertools.cycle([queue.enqueue, queue.complete, queue.release, queue.remove])
        order = keys[seed:] + keys[:seed]
        if seed % 2:
            order.reverse()
        while interleave.time.monotonic() < stop:
            next(turns)(*order)
            queue.claim(limit=5 + seed, lease=timedelta(milliseconds=5))

    with interleave.noting_deadlocks() as met:
        for each in [aside(churn, seed) for seed in range(8)]:
            each.result(30)
    assert met == []


def test_a_lease_token_is_never_0_and_never_met_again():
    tokens = {new_token() for _ in range(10_000)}
    assert len(tokens) == 10_000
    assert min(tokens) > 0
    assert max(tokens) < 2**63
