"""Enqueue inside transactions: the inbox, and what it promises to the transaction, to others and to claims."""

import contextlib
import threading
import time
from datetime import timedelta

import pytest
from asgiref.sync import async_to_sync, sync_to_async
from django.db import connection, connections, transaction
from django.http import HttpResponse
from django.test import AsyncClient, Client, SimpleTestCase, TestCase, TransactionTestCase, override_settings
from django.urls import path

from django_workqueue import Entry, JobQueue, Queue, QueueClosed, Worker, inbox, metrics
from django_workqueue.database import Connection
from django_workqueue.models import WorkItem
from django_workqueue.notify import Waker
from tests import interleave
from tests.keyed.table import Table
from tests.keyed.test_enqueue import HOUR, MINUTE, about


class Undo(Exception):
    """Rolls a block back."""


@contextlib.contextmanager
def undone():
    """A transaction or savepoint that is rolled back."""
    with contextlib.suppress(Undo), transaction.atomic():
        yield
        raise Undo


def keys(items):
    return [item.key for item in items]


# It exists if and only if the transaction commits


def test_an_enqueue_inside_atomic_exists_once_the_transaction_commits(queue, table):
    with transaction.atomic():
        queue.enqueue("a")
        assert table.inbox() == []
        assert table.stored() == []
    assert table.inbox() == ["a"]
    assert keys(queue.claim()) == ["a"]
    assert table.inbox() == []


def test_an_enqueue_inside_atomic_never_exists_if_the_transaction_is_rolled_back(queue, table):
    with undone():
        queue.enqueue("a")
    assert queue.claim() == []
    assert table.inbox() == []
    assert table.stored() == []


def test_savepoints_decide_for_what_was_enqueued_inside_them(queue):
    with transaction.atomic():
        queue.enqueue("outer")
        with undone():
            queue.enqueue("undone")
            with transaction.atomic():
                queue.enqueue("undone as well")
        with transaction.atomic():
            queue.enqueue("inner")
            with undone():
                queue.enqueue("undone too")
        queue.enqueue("after")
    assert sorted(keys(queue.claim())) == ["after", "inner", "outer"]


def test_what_was_enqueued_in_a_released_savepoint_goes_with_the_block_around_it(queue):
    with transaction.atomic():
        with undone(), transaction.atomic():
            queue.enqueue("a")
        queue.enqueue("b")
    assert keys(queue.claim()) == ["b"]


def test_priorities_and_delays_go_through_the_inbox(queue, table):
    with transaction.atomic():
        queue.enqueue("a", priority=7, delay=MINUTE)
        queue.enqueue_many([Entry("b", -3), Entry("c", delay=HOUR)])
        queue.enqueue("a", priority=2, delay=HOUR)
    assert keys(queue.claim()) == ["b"]
    assert (table.row("a").priority, table.row("a").due_in) == (7, about(60))
    assert (table.row("c").priority, table.row("c").due_in) == (0, about(3600))


def test_a_folded_item_is_due_from_the_fold_not_from_before(queue, table):
    with transaction.atomic():
        queue.enqueue("a")
    table.connection.execute(
        "UPDATE workqueue_inbox SET available_at = available_at - interval '1 hour' WHERE queue = %s", [queue.name]
    )
    queue.claim()
    assert table.row("a").due_in == about(0)


@pytest.mark.parametrize("state", ["waiting", "delayed", "leased", "lapsed", "completed", "stalled"])
def test_the_fold_merges_as_an_enqueue_does(make_queue, table, name, state):
    queue = make_queue(max_attempts=1, name=name)
    queue.enqueue("a", priority=1, delay=HOUR if state == "delayed" else timedelta(0))
    if state in ("leased", "lapsed", "completed", "stalled"):
        items = queue.claim()
        if state == "completed":
            queue.complete(*items)
        elif state == "stalled":
            queue.release(*items)
        elif state == "lapsed":
            table.lapse("a")
    with transaction.atomic():
        queue.enqueue("a", priority=3, delay=MINUTE)
    queue.source.inbox.fold(queue.source.table())
    row = table.row("a")
    assert table.inbox() == []
    assert row.priority == 3
    if state in ("leased", "lapsed"):
        assert table.state("a") == state
        assert row.again_in == about(60)
    else:
        assert table.state("a") == "waiting"
        assert row.due_in == about(0 if state == "waiting" else 60)
        assert row.attempts == 0


def test_an_enqueue_in_a_transaction_that_commits_during_a_run_makes_it_run_once_more(queue, table):
    queue.enqueue("a")
    with transaction.atomic():
        queue.enqueue("a")
        items = async_claim(queue)
    queue.claim()
    assert queue.complete(*items) == 1
    assert keys(queue.claim()) == ["a"]


def async_claim(queue):
    """A claim by another thread, outside this one's transaction."""
    return interleave.aside(queue.claim).result(10)


# It never waits for, blocks or deadlocks with another transaction


def test_an_enqueue_inside_atomic_takes_no_lock_that_another_enqueue_could_want(queue, second):
    other = WorkItem.objects
    queue.enqueue("a")
    with transaction.atomic():
        queue.enqueue("a", "b")
        done = interleave.aside(other.enqueue, queue.name, ["a", "b"], [5, 5], [0, 0])
        done.result(10)
        locks = second.execute(
            "SELECT mode FROM pg_locks WHERE relation::regclass::text LIKE 'workqueue_item%%' AND pid = %s",
            [connection.connection.info.backend_pid],
        ).fetchall()
        assert locks == []


@pytest.mark.parametrize("state", ["waiting", "leased", "completed"])
def test_an_enqueue_inside_atomic_does_not_wait_for_a_row_that_another_transaction_holds(queue, connect, state):
    queue.enqueue("a")
    if state != "waiting":
        items = queue.claim()
        if state == "completed":
            queue.complete(*items)
    holder = connect(autocommit=False)
    holder.execute("SELECT FROM workqueue_item WHERE queue = %s FOR UPDATE", [queue.name])
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SET LOCAL lock_timeout = '1ms'")
        queue.enqueue("a", "b")


def test_transactions_that_enqueue_the_same_keys_in_opposite_orders_do_not_meet(queue):
    barrier = threading.Barrier(2, timeout=10)

    def work(first, then):
        with transaction.atomic():
            queue.enqueue(first)
            barrier.wait()
            queue.enqueue(then)
            barrier.wait()

    one, other = interleave.aside(work, "a", "b"), interleave.aside(work, "b", "a")
    one.result(10)
    other.result(10)
    assert keys(queue.claim()) == ["a", "b"]


def test_an_open_transaction_that_enqueued_holds_nobody_up(queue, table):
    queue.enqueue("a", "b")
    with transaction.atomic():
        queue.enqueue("a", "b", "c")
        assert keys(async_claim(queue)) == ["a", "b"]
        assert interleave.aside(queue.complete, "a").result(10) == 1
        assert interleave.aside(queue.release, "b").result(10) == 1
        interleave.aside(queue.enqueue, "a", "b", "c").result(10)
        assert keys(async_claim(queue)) == ["b", "a", "c"]
        assert interleave.aside(queue.remove, "a", "b", "c").result(10) == 3
    assert keys(queue.claim()) == ["a", "b", "c"]


# The batcher does not wait for strangers either


def hold(connect, queue, *held):
    holder = connect(autocommit=False)
    holder.execute(
        "SELECT FROM workqueue_item WHERE queue = %s AND key = ANY (%s) FOR UPDATE", [queue.name, list(held)]
    )
    return holder


def test_a_batch_with_a_row_that_an_open_transaction_holds_goes_to_the_inbox(queue, table, connect):
    queue.enqueue("a", "b")
    holder = hold(connect, queue, "a")
    started = time.monotonic()
    queue.enqueue("a", "c", priority=9)
    assert time.monotonic() - started < 5
    assert sorted(table.inbox()) == ["a", "c"]
    assert keys(queue.claim()) == ["c", "b"]
    assert table.inbox() == ["a"]
    holder.rollback()
    assert [(item.key, item.priority) for item in queue.claim()] == [("a", 9)]


def test_after_a_batch_went_to_the_inbox_the_next_does_not(queue, table, connect):
    queue.enqueue("a")
    holder = hold(connect, queue, "a")
    queue.enqueue("a", priority=1)
    queue.enqueue("b")
    assert table.inbox() == ["a"]
    assert table.stored() == ["a", "b"]
    holder.rollback()


def test_a_complete_in_somebodys_open_transaction_does_not_hold_enqueues_up_and_loses_none(queue, table):
    queue.enqueue("a")
    items = queue.claim()
    with transaction.atomic():
        assert queue.complete(*items) == 1
        interleave.aside(queue.enqueue, "a", "b").result(10)
        assert keys(async_claim(queue)) == ["b"]
    assert table.state("a") == "completed"
    assert keys(queue.claim()) == ["a"]


def test_a_complete_that_is_rolled_back_leaves_the_run_and_what_was_asked_for_since(queue, table):
    queue.enqueue("a")
    items = queue.claim()
    with undone():
        queue.complete(*items)
        interleave.aside(queue.enqueue, "a").result(10)
    queue.claim()
    assert table.state("a") == "leased"
    assert queue.complete(*items) == 1
    assert keys(queue.claim()) == ["a"]


# The fold


def test_a_fold_skips_held_rows_and_takes_the_rest(queue, table, connect):
    queue.enqueue("a", "b", "c", delay=HOUR)
    with transaction.atomic():
        queue.enqueue("a", "b", "c", "d")
    holder = hold(connect, queue, "b")
    assert keys(queue.claim()) == ["a", "c", "d"]
    assert table.inbox() == ["b"]
    holder.rollback()
    assert keys(queue.claim()) == ["b"]


def test_more_than_one_folds_limit_of_held_rows_does_not_hide_others(queue, table, connect, monkeypatch):
    monkeypatch.setattr(inbox, "FOLD_LIMIT", 10)
    held = [f"{number:03}" for number in range(95)]
    queue.enqueue(*held, delay=HOUR)
    with transaction.atomic():
        queue.enqueue(*held)
        queue.enqueue("z")
    holder = hold(connect, queue, *held)
    assert keys(queue.claim()) == ["z"]
    assert table.inbox() == held
    holder.rollback()
    assert keys(queue.claim()) == held


def test_in_the_same_transaction_held_rows_do_not_hide_others_either(queue, connect, monkeypatch):
    monkeypatch.setattr(inbox, "FOLD_LIMIT", 10)
    held = [f"{number:03}" for number in range(35)]
    queue.enqueue(*held, delay=HOUR)
    holder = hold(connect, queue, *held)
    with transaction.atomic():
        queue.enqueue(*held)
        queue.enqueue("z")
        claimed = keys(queue.claim())
    holder.rollback()
    assert claimed == ["z"]


def test_what_a_fold_could_not_take_is_not_lost_when_its_row_is_gone(queue, table, connect):
    queue.enqueue("a", delay=HOUR)
    with transaction.atomic():
        queue.enqueue("a")
    holder = hold(connect, queue, "a")
    holder.execute("DELETE FROM workqueue_item WHERE queue = %s", [queue.name])
    assert queue.claim() == []
    holder.commit()
    assert keys(queue.claim()) == ["a"]


def test_many_claims_fold_one_inbox_and_no_enqueue_is_folded_twice(queue, table):
    names = [f"{number:03}" for number in range(300)]
    for start in range(0, 300, 50):
        with transaction.atomic():
            queue.enqueue(*names[start : start + 50])
    taken = [interleave.aside(queue.claim, 100) for _ in range(5)]
    claimed = [item for each in taken for item in each.result(20)]
    while more := queue.claim():
        claimed += more
    assert sorted(keys(claimed)) == names
    assert {item.attempts for item in claimed} == {1}
    assert queue.complete(*claimed) == 300
    assert queue.stats().pending == 0
    assert table.inbox() == []


def test_a_key_that_is_asked_for_inside_and_outside_a_transaction_is_one_piece_of_work(queue, table):
    ran = []
    queue.handler(ran.append)
    with transaction.atomic():
        queue.enqueue("a", "b")
    queue.enqueue("a", "c")
    with transaction.atomic():
        queue.enqueue("c")
    assert Worker([queue]).drain().completed == 3
    assert sorted(item.key for item in ran) == ["a", "b", "c"]


def test_a_workers_claim_folds_the_inbox_before_it_looks(queue, table):
    with contextlib.closing(Connection("default", application="test")) as connection:
        for number in range(4):
            with transaction.atomic():
                queue.enqueue(f"inside {number}", priority=1)
            queue.enqueue(f"outside {number}")
            claim = queue.source.claim_on(connection, 100, MINUTE)
            assert keys(claim.works) == [f"inside {number}", f"outside {number}"]


def test_a_claim_is_one_statement_unless_there_is_something_to_fold(queue, monkeypatch):
    with contextlib.closing(Connection("default", application="test")) as connection:
        queue.source.claim_on(connection, 100, MINUTE)  # asks for the priorities in use, once in a while
        sent = []
        execute = connection.execute

        def recorded(text, *rest, **how):
            sent.append(text)
            return execute(text, *rest, **how)

        monkeypatch.setattr(connection, "execute", recorded)
        queue.enqueue("a")
        assert keys(queue.source.claim_on(connection, 100, MINUTE).works) == ["a"]
        assert len(sent) == 1
        with transaction.atomic():
            queue.enqueue("b")
        assert keys(queue.source.claim_on(connection, 100, MINUTE).works) == ["b"]
        assert len(sent) == 1 + 3  # a claim that finds it, the fold, the claim
        with transaction.atomic():
            queue.enqueue("c")
        assert keys(queue.source.claim_on(connection, 100, MINUTE).works) == ["c"]
        assert len(sent) == 4 + 2  # more was to be expected
        assert keys(queue.source.claim_on(connection, 100, MINUTE).works) == []
        assert len(sent) == 6 + 2
        assert keys(queue.source.claim_on(connection, 100, MINUTE).works) == []
        assert len(sent) == 8 + 1


def test_where_it_is_dear_to_ask_whether_there_is_something_to_fold_claims_fold_unasked(queue, table, monkeypatch):
    monkeypatch.setattr(queue.source.inbox._sparing, "may", lambda: False)
    with transaction.atomic():
        queue.enqueue("a")
    queue.enqueue("a", "b")
    assert keys(queue.claim()) == ["a", "b"]
    assert table.inbox() == []


def test_a_claim_that_is_told_to_ask_takes_nothing_before_the_inbox_is_folded(queue, table):
    queue.enqueue("a")
    with transaction.atomic():
        queue.enqueue("b")
    rows = queue.source.table()
    claimed = rows.claim(queue.name, 10, MINUTE, token=7, ask=True)
    assert (claimed.rows, claimed.unfolded, claimed.paused) == ([], True, False)
    assert table.state("a") == "waiting"
    queue.source.inbox.fold(rows)
    claimed = rows.claim(queue.name, 10, MINUTE, token=7, ask=True)
    assert ({row[0] for row in claimed.rows}, claimed.unfolded) == ({"a", "b"}, False)


# Claims in the same transaction


def test_claim_in_the_same_transaction_sees_its_own_rows_and_takes_nobody_elses_out_of_the_inbox(queue, table, second):
    WorkItem.objects.enqueue_later(queue.name, ["theirs"], [0], [0], 12345)
    with transaction.atomic():
        queue.enqueue("ours")
        assert keys(queue.claim()) == ["ours"]
        assert table.inbox() == ["theirs"]
        with transaction.atomic():
            queue.enqueue("ours as well")
        assert keys(queue.claim()) == ["ours as well"]
    assert keys(queue.claim()) == ["theirs"]


def test_claim_in_the_same_transaction_takes_what_is_in_the_set_already(queue):
    queue.enqueue("a")
    with transaction.atomic():
        queue.enqueue("b")
        assert keys(queue.claim()) == ["a", "b"]


def test_what_an_open_transaction_claimed_from_its_inbox_is_nobody_elses(queue):
    with transaction.atomic():
        queue.enqueue("a")
        items = queue.claim()
        assert async_claim(queue) == []
        assert queue.complete(*items) == 1
    assert queue.claim() == []


def test_a_claim_that_is_rolled_back_leaves_the_items_to_others_at_once(queue):
    queue.enqueue("a")
    with undone():
        assert keys(queue.claim()) == ["a"]
    (item,) = queue.claim()
    assert (item.key, item.attempts, item.reclaimed) == ("a", 1, False)


def test_a_transaction_that_follows_another_is_another(queue, table):
    with transaction.atomic():
        queue.enqueue("first")
    with transaction.atomic():
        queue.enqueue("second")
        assert keys(queue.claim()) == ["second"]
        assert table.inbox() == ["first"]


def test_in_a_long_transaction_leases_are_not_born_lapsed_and_time_goes_on(queue, table, wait_until):
    """`now()` stands still in a transaction, and in every TestCase."""
    with transaction.atomic():
        with connection.cursor() as cursor:
            cursor.execute("SELECT now()")
        wait_until(lambda: _seconds_since_begin() > 0.2)
        queue.enqueue("a")
        items = queue.claim(lease=timedelta(milliseconds=100))
        assert queue.claim() == []
        assert queue.extend(*items, lease=MINUTE) == items
        queue.enqueue("b", delay=timedelta(milliseconds=30))
        wait_until(lambda: keys(queue.claim()) == ["b"])


def _seconds_since_begin():
    with connection.cursor() as cursor:
        cursor.execute("SELECT extract(epoch FROM clock_timestamp() - now())")
        return cursor.fetchone()[0]


def test_everything_else_works_in_the_same_transaction(make_queue, table):
    queue = make_queue(max_attempts=1)
    with transaction.atomic():
        queue.enqueue("a", "b", "c", "d")
        assert queue.stats().ready == 4
        a, b, _c, _d = queue.claim()
        assert queue.complete(a) == 1
        assert queue.release(b) == 1
        assert queue.extend(a, b, lease=HOUR) == []
        assert queue.remove("c") == 1
        queue.enqueue("c", "a")
        assert queue.remove("c") == 1
        assert queue.reap() == 0
        stats = queue.stats()
        assert (stats.ready, stats.leased, stats.stalled, stats.completed) == (1, 1, 1, 0)
        queue.pause()
        assert queue.is_paused()
        assert queue.claim() == []
        queue.resume()
        assert keys(queue.claim()) == ["a"]
    assert (table.state("a"), table.state("b"), table.state("d")) == ("leased", "stalled", "leased")


# Stats and remove reach into the inbox


def test_stats_count_the_inbox_once_for_each_key(queue, table):
    queue.enqueue("waiting")
    queue.enqueue("completed", priority=1)
    queue.complete(*queue.claim(limit=1))
    with transaction.atomic():
        queue.enqueue("waiting", "completed", "new")
        queue.enqueue("new", "later", delay=HOUR)
    assert sorted(set(table.inbox())) == ["completed", "later", "new", "waiting"]
    stats = queue.stats()
    assert (stats.pending, stats.ready, stats.scheduled, stats.completed) == (4, 3, 1, 0)


def test_the_oldest_ready_age_counts_the_inbox(queue, table):
    with transaction.atomic():
        queue.enqueue("a")
    table.connection.execute(
        "UPDATE workqueue_inbox SET available_at = available_at - interval '1 hour' WHERE queue = %s", [queue.name]
    )
    assert queue.stats().oldest_ready_age.total_seconds() == about(3600)


def test_remove_reaches_into_the_inbox(queue, table):
    queue.enqueue("both")
    with transaction.atomic():
        queue.enqueue("both", "inbox", "kept")
        queue.enqueue("inbox")
    assert queue.remove("both", "inbox", "unknown") == 2
    assert table.inbox() == ["kept"]
    assert keys(queue.claim()) == ["kept"]


# What is "inside"


def test_with_autocommit_off_rows_ride_the_callers_transaction(queue, table):
    transaction.set_autocommit(False)
    try:
        queue.enqueue("a")
        assert table.inbox() == []
        assert keys(queue.claim()) == ["a"]
        transaction.rollback()
        queue.enqueue("b")
        queue.enqueue("c")
        assert keys(queue.claim(limit=1)) == ["b"]
        transaction.commit()
        assert table.state("b") == "leased"
        queue.enqueue("d")
        assert keys(queue.claim()) == ["c", "d"]
        transaction.rollback()
    finally:
        transaction.set_autocommit(True)
    assert table.state("a") == table.state("d") == "absent"
    assert keys(queue.claim()) == ["c"]


def test_an_alias_with_autocommit_off_in_its_settings_is_inside(queue, table, monkeypatch):
    connections.close_all()
    monkeypatch.setitem(connection.settings_dict, "AUTOCOMMIT", False)
    try:
        queue.enqueue("a")
        assert table.inbox() == []
        connection.commit()
        assert table.inbox() == ["a"]
    finally:
        connections.close_all()


def test_what_fails_after_a_commit_fails_nobodys_callbacks(queue, table, monkeypatch, caplog):
    def fail(*_):
        raise RuntimeError("cannot wake")

    monkeypatch.setattr(Waker, "wake_later", fail)
    monkeypatch.setattr(metrics.Ledger, "count", fail)
    seen = []
    with transaction.atomic():
        queue.enqueue("a")
        JobQueue(f"{queue.name} jobs").enqueue("mail")
        transaction.on_commit(lambda: seen.append("ours"))
    assert seen == ["ours"]
    assert "cannot wake" in caplog.text
    assert table.inbox() == ["a"]


def test_on_commit_callbacks_enqueue_outside_and_in_their_order(queue, table):
    seen = []

    def enqueue_more():
        queue.enqueue("from on_commit")
        seen.append(table.stored())

    with transaction.atomic():
        transaction.on_commit(lambda: seen.append(table.inbox()))
        queue.enqueue("a")
        transaction.on_commit(enqueue_more)
        assert seen == []
    assert seen == [["a"], ["from on_commit"]]


@pytest.mark.django_db(transaction=True, databases=["default", "other"])
def test_a_queue_on_another_database_than_the_open_transactions_is_committed_at_once(make_queue, connect, name):
    queue = make_queue(using="other")
    theirs = Table(connect("other"), name)
    with undone():
        queue.enqueue("a")
        assert theirs.stored() == ["a"]
    assert keys(queue.claim()) == ["a"]
    with transaction.atomic(using="other"):
        queue.enqueue("b")
        assert theirs.inbox() == []
    assert keys(queue.claim()) == ["b"]


def test_a_thread_beside_the_transaction_is_outside(queue, table):
    with transaction.atomic():
        interleave.aside(queue.enqueue, "a").result(10)
        assert table.stored() == ["a"]


def test_a_wake_is_sent_after_the_commit_and_never_before(queue):
    queue.wait(timedelta(milliseconds=1))
    with transaction.atomic():
        queue.enqueue("a")
        assert queue.wait(timedelta(milliseconds=50)) is False
    assert queue.wait(timedelta(seconds=10)) is True


def test_a_closed_queue_refuses_inside_a_transaction_too(queue):
    queue.close()
    with transaction.atomic(), pytest.raises(QueueClosed):
        queue.enqueue("a")


def test_a_bad_key_leaves_the_transaction_usable(queue, table):
    with transaction.atomic():
        with pytest.raises(ValueError, match="line break"):
            queue.enqueue("a", "b\n")
        queue.enqueue("c")
    assert table.inbox() == ["c"]


# Async


def test_aenqueue_under_async_to_sync_inside_atomic_rides_that_transaction(queue, table):
    async def produce():
        await queue.aenqueue("a")
        await queue.aenqueue_many(["b", Entry("c", 4)])

    with undone():
        async_to_sync(produce)()
        assert table.inbox() == []
        assert table.stored() == []
    assert queue.claim() == []
    with transaction.atomic():
        async_to_sync(produce)()
        assert keys(queue.claim()) == ["c", "a", "b"]


def test_aenqueue_under_async_to_sync_outside_a_transaction_is_committed_at_once(queue, table):
    async_to_sync(queue.aenqueue)("a")
    assert table.stored() == ["a"]


def test_aenqueue_in_sync_code_in_async_code_rides_the_sync_codes_transaction(queue, table):
    def block():
        with transaction.atomic():
            async_to_sync(queue.aenqueue)("a")
            return table.inbox(), table.stored()

    async def main():
        inside = await sync_to_async(block)()
        connections_closed = sync_to_async(connections.close_all)
        await connections_closed()
        return inside

    assert async_to_sync(main)() == ([], [])
    assert keys(queue.claim()) == ["a"]


# Views


def _views(queue):
    def create(request):
        queue.enqueue("a")
        if request.GET.get("fail"):
            raise Undo
        return HttpResponse(",".join(keys(queue.claim())))

    async def acreate(request):
        await queue.aenqueue("a")
        return HttpResponse("done")

    return type("urls", (), {"urlpatterns": [path("create", create), path("acreate", acreate)]})


def test_an_enqueue_in_a_view_under_atomic_requests_lives_and_dies_with_the_request(queue, table, monkeypatch):
    monkeypatch.setitem(connection.settings_dict, "ATOMIC_REQUESTS", True)
    with override_settings(ROOT_URLCONF=_views(queue), MIDDLEWARE=[]):
        client = Client(raise_request_exception=False)
        assert client.get("/create?fail=1").status_code == 500
        assert table.inbox() == table.stored() == []
        assert client.get("/create").content == b"a"
    assert table.state("a") == "leased"


def test_an_enqueue_in_a_plain_view_is_committed_at_once(queue, table):
    with override_settings(ROOT_URLCONF=_views(queue), MIDDLEWARE=[]):
        Client(raise_request_exception=False).get("/create?fail=1")
    assert table.stored() == ["a"]


def test_an_enqueue_in_an_async_view_is_committed_at_once(queue, table):
    with override_settings(ROOT_URLCONF=_views(queue), MIDDLEWARE=[]):
        response = async_to_sync(AsyncClient().get)("/acreate")
    assert response.status_code == 200
    assert table.stored() == ["a"]


# Django's test cases


class TestInATestCase(TestCase):
    """Each test is a transaction that is rolled back."""

    @classmethod
    def setUpTestData(cls):
        cls.tests = Queue("in a TestCase")
        cls.tests.enqueue("of the class")

    def test_claims_see_what_the_test_enqueued(self):
        self.tests.enqueue("a", "b")
        items = self.tests.claim()
        assert sorted(keys(items)) == ["a", "b", "of the class"]
        assert self.tests.complete(*items) == 3
        assert self.tests.claim() == []

    def test_and_nothing_of_another_tests(self):
        assert self.tests.stats().pending == 1
        assert keys(self.tests.claim()) == ["of the class"]

    async def test_async_tests_ride_the_tests_transaction(self):
        await self.tests.aenqueue("a")
        items = await self.tests.aclaim()
        assert sorted(keys(items)) == ["a", "of the class"]
        assert await self.tests.acomplete(*items) == 2

    def test_nothing_reaches_the_database(self):
        import psycopg

        from tests.conftest import database_url

        self.tests.enqueue("a")
        self.tests.claim()
        with psycopg.connect(database_url()) as other:
            assert Table(other, "in a TestCase").stored() == []
            assert Table(other, "in a TestCase").inbox() == []

    def test_on_commit_callbacks_can_be_captured(self):
        done = []
        with self.captureOnCommitCallbacks(execute=True):
            transaction.on_commit(lambda: done.append(1))
            self.tests.enqueue("a")
        assert done == [1]
        assert sorted(keys(self.tests.claim())) == ["a", "of the class"]

    def test_claims_in_a_savepoint_of_the_test(self):
        with undone():
            self.tests.enqueue("a")
            assert sorted(keys(self.tests.claim())) == ["a", "of the class"]
        assert keys(self.tests.claim()) == ["of the class"]

    def test_another_database_is_refused_as_django_refuses_it(self):
        with pytest.raises(AssertionError, match="'other' are not allowed"):
            Queue("in a TestCase", using="other").enqueue("a")


def test_a_test_case_that_forbade_the_database_leaves_the_next_ones_transaction_alone(queue, table, monkeypatch):
    """When it ends, Django puts the real method on the connection object, where its guard was."""
    monkeypatch.setattr(connections["default"], "connect", connections["default"].connect)
    with transaction.atomic():
        session = connection.connection
        queue.enqueue("a")
        assert connection.connection is session
        assert table.stored() == table.inbox() == []
    assert table.inbox() == ["a"]


class TestInATransactionTestCase(TransactionTestCase):
    """The database is flushed after each test."""

    def test_enqueues_are_committed(self):
        queue = Queue("in a TransactionTestCase")
        queue.enqueue("a")
        with transaction.atomic():
            queue.enqueue("b")
        assert keys(queue.claim()) == ["a", "b"]

    def test_and_flushed(self):
        assert Queue("in a TransactionTestCase").claim() == []


class TestInASimpleTestCase(SimpleTestCase):
    """The database is out of bounds."""

    def test_the_guard_holds_for_enqueues(self):
        queue = Queue("in a SimpleTestCase")
        with pytest.raises(AssertionError, match="not allowed in SimpleTestCase"):
            queue.enqueue("a")
        with pytest.raises(AssertionError, match="not allowed in SimpleTestCase"):
            async_to_sync(queue.aenqueue)("a")

    def test_the_guard_holds_for_claims_and_the_rest(self):
        queue = Queue("in a SimpleTestCase")
        for call in (queue.claim, queue.reap, queue.stats, queue.pause, lambda: queue.complete("a")):
            with pytest.raises(AssertionError, match="not allowed in SimpleTestCase"):
                call()
