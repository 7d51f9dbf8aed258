"""Jobs and the caller's transactions: an enqueue lives and dies with it, and so does everything done by hand."""

from datetime import timedelta

import pytest
from asgiref.sync import async_to_sync, sync_to_async
from django.db import connection, connections, transaction
from django.test import SimpleTestCase, TestCase, TransactionTestCase
from django.utils import timezone

from django_workqueue import InvalidPayload, JobQueue, JobStatus, QueueClosed, floors, insertion, listed
from django_workqueue.managers import WorkJobQuerySet
from tests.interleave import aside
from tests.jobs.table import JobTable
from tests.jobs.test_enqueue import payloads
from tests.keyed.test_enqueue import HOUR, MINUTE, about
from tests.keyed.test_transactions import undone

# It exists if and only if the transaction commits


def test_an_enqueue_inside_atomic_exists_once_the_transaction_commits(queue, table):
    with transaction.atomic():
        number = queue.enqueue("mail", 1)
        assert table.stored() == []
        assert aside(queue.claim).result(10) == []
    assert table.stored() == [number]
    assert [job.id for job in queue.claim()] == [number]


def test_an_enqueue_inside_atomic_never_exists_if_the_transaction_is_rolled_back(queue, table):
    with undone():
        queue.enqueue("mail")
        queue.enqueue_many("mail", range(5))
    assert table.stored() == []
    assert queue.claim() == []


def test_savepoints_decide_for_what_was_enqueued_inside_them(queue):
    with transaction.atomic():
        queue.enqueue("mail", "outer")
        with undone():
            queue.enqueue("mail", "undone")
            with transaction.atomic():
                queue.enqueue("mail", "undone as well")
        with transaction.atomic():
            queue.enqueue("mail", "inner")
            with undone():
                queue.enqueue("mail", "undone too")
        queue.enqueue("mail", "after")
    assert payloads(queue.claim()) == ["outer", "inner", "after"]


def test_ids_inside_a_transaction_are_in_order_also_of_more_than_one_statement(queue, table):
    with transaction.atomic():
        ids = queue.enqueue_many("mail", range(2100))
        more = queue.enqueue("mail", "more")
    assert [*ids, more] == sorted({*ids, more}) == table.stored()
    taken = []
    while jobs := queue.claim():
        taken += payloads(jobs)
    assert taken == [*range(2100), "more"]


def test_options_hold_inside_a_transaction(queue, table):
    with transaction.atomic():
        number = queue.enqueue("mail", priority=7, delay=MINUTE, max_attempts=2)
        late = queue.enqueue("mail", run_at=timezone.now() + 24 * HOUR)
    assert (table.row(number).priority, table.row(number).due_in, table.row(number).max_attempts) == (7, about(60), 2)
    assert table.row(late).due_in == about(86_400)


def test_an_enqueue_inside_waits_for_no_other_transaction(queue, connect):
    holder = connect(autocommit=False)
    queue.enqueue("mail")
    holder.execute("SELECT FROM workqueue_job WHERE queue = %s FOR UPDATE", [queue.name])
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SET LOCAL lock_timeout = '1ms'")
        queue.enqueue_many("mail", range(5))
    holder.rollback()


def test_a_bad_payload_leaves_the_transaction_usable(queue, table):
    with transaction.atomic():
        with pytest.raises(InvalidPayload):
            queue.enqueue_many("mail", [1, {2}])
        number = queue.enqueue("mail")
    assert table.stored() == [number]


def test_a_closed_queue_refuses_inside_a_transaction_too(queue):
    queue.close()
    with transaction.atomic(), pytest.raises(QueueClosed):
        queue.enqueue("mail")


def test_a_queue_on_another_database_than_the_open_transactions_is_committed_at_once(make_queue, connect, name):
    queue = make_queue(using="other")
    theirs = JobTable(connect("other"), name)
    with undone():
        number = queue.enqueue("mail")
        assert theirs.stored() == [number]
    assert len(queue.claim()) == 1
    with transaction.atomic(using="other"):
        number = queue.enqueue("mail")
        assert number not in theirs.stored()


def test_with_autocommit_off_jobs_ride_the_callers_transaction(queue, table):
    transaction.set_autocommit(False)
    try:
        queue.enqueue("mail", "a")
        assert table.stored() == []
        transaction.rollback()
        number = queue.enqueue("mail", "b")
        assert payloads(queue.claim()) == ["b"]
        transaction.commit()
    finally:
        transaction.set_autocommit(True)
    assert table.state(number) == "leased"


def test_a_transaction_after_one_without_autocommit_is_another(queue, table):
    """On one connection: its wakes and stamps are its own."""
    transaction.set_autocommit(False)
    try:
        queue.enqueue("mail")
        transaction.commit()
    finally:
        transaction.set_autocommit(True)
    queue.wait(timedelta(milliseconds=1))
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SELECT 1")
        queue.enqueue("mail")
    assert queue.wait(timedelta(seconds=10)) is True


def test_a_thread_beside_the_transaction_is_outside(queue, table):
    with undone():
        number = aside(queue.enqueue, "mail").result(10)
        assert table.stored() == [number]


# Wakes


def test_a_wake_is_sent_after_the_commit_and_never_before(queue):
    queue.wait(timedelta(milliseconds=1))
    with transaction.atomic():
        queue.enqueue("mail")
        assert queue.wait(timedelta(milliseconds=50)) is False
    assert queue.wait(timedelta(seconds=10)) is True


@pytest.mark.parametrize("call", ["retry", "resume"])
def test_what_lets_jobs_be_worked_again_wakes_after_the_commit_and_never_before(queue, call):
    number = queue.enqueue("mail")
    queue.cancel(number)
    queue.pause()
    while queue.wait(timedelta(milliseconds=300)):  # the enqueue's own wake may still be on its way
        pass
    with transaction.atomic():
        assert queue.retry(number) == 1 if call == "retry" else queue.resume() is None
        assert queue.wait(timedelta(milliseconds=50)) is False
    assert queue.wait(timedelta(seconds=10)) is True


# A transaction that stays open for long


@pytest.fixture
def dear(monkeypatch):
    """Looking from the beginning is dear: claims stand by their floors."""
    monkeypatch.setattr(floors, "CHEAP", -1)
    monkeypatch.setattr(floors, "CHEAP_PER_ROW", 0)


def _enqueue_an_hour_ago(queue):
    """As a transaction leaves a job that was open for as long."""
    number = queue.enqueue("mail")
    with connection.cursor() as cursor:
        cursor.execute(
            "UPDATE workqueue_job SET available_at = available_at - interval '1 hour' WHERE id = %s AND queue = %s",
            [number, queue.name],
        )
    return number


def test_the_jobs_of_a_long_transaction_are_stamped_anew_so_that_no_floor_is_past_them(
    queue, table, dear, monkeypatch, wait_until
):
    monkeypatch.setattr(listed, "LATE", -1)
    queue.enqueue("first")  # or there would be no floors
    with transaction.atomic():
        number = _enqueue_an_hour_ago(queue)
        for _ in range(3):
            aside(queue.claim).result(10)
        assert queue.source.floors.dear
    wait_until(lambda: table.row(number).due_in == about(0))
    assert [job.id for job in queue.claim()] == [number]


def test_however_many_jobs_a_long_transaction_has_all_are_stamped_anew(queue, table, monkeypatch, wait_until):
    monkeypatch.setattr(listed, "LATE", -1)
    with transaction.atomic():
        ids = queue.enqueue_many("mail", range(12_000))  # more than the batcher takes on ahead
        with connection.cursor() as cursor:
            cursor.execute(
                "UPDATE workqueue_job SET available_at = available_at - interval '1 hour' WHERE queue = %s",
                [queue.name],
            )
    late = "SELECT count(*) FROM workqueue_job WHERE queue = %s AND available_at < now() - interval '30 minutes'"
    wait_until(lambda: table.connection.execute(late, [queue.name]).fetchone() == (0,), 30)
    assert len(table.stored()) == len(ids)


def test_without_that_a_floor_would_be_past_them(queue, table, dear):
    """Or the test above could not fail."""
    queue.enqueue("first")
    with transaction.atomic():
        _enqueue_an_hour_ago(queue)
        for _ in range(3):
            aside(queue.claim).result(10)
    assert queue.claim() == []


def test_the_jobs_of_a_short_transaction_keep_their_stamp(queue, table):
    with transaction.atomic():
        number = queue.enqueue("mail")
    queue.close(10)
    assert table.row(number).available_at == table.row(number).enqueued_at


def test_stamping_anew_leaves_alone_what_is_later_leased_or_ended(queue, table):
    later = queue.enqueue("mail", delay=HOUR)
    leased, cancelled, waiting = queue.enqueue_many("mail", range(3))
    queue.claim(limit=1)
    queue.cancel(cancelled)
    table.age(leased, cancelled, waiting)
    before = {number: table.row(number).available_at for number in (later, leased, cancelled)}
    queue.source.table().restamp(queue.name, [later, leased, cancelled, waiting])
    assert {number: table.row(number).available_at for number in (later, leased, cancelled)} == before
    assert table.row(waiting).due_in == about(0)


def test_stamping_anew_waits_for_nobody(queue, table, connect):
    held, free = queue.enqueue_many("mail", range(2))
    table.age(held, free)
    holder = connect(autocommit=False)
    holder.execute("SELECT FROM workqueue_job WHERE queue = %s AND id = %s FOR UPDATE", [queue.name, held])
    queue.source.table().restamp(queue.name, [held, free])
    holder.rollback()
    assert (table.row(held).due_in, table.row(free).due_in) == (about(-3600), about(0))


# A sequence that was set back


def _set_back(table, number):
    table.connection.execute("SELECT setval('workqueue_job_id_seq', %s, false)", [number])


@pytest.fixture
def taken(queue, table):
    """Many ids that are taken, to which the sequence is set back."""
    ids = queue.enqueue_many("taken", range(500))
    yield ids
    _set_back(table, max(table.connection.execute("SELECT COALESCE(max(id), 0) + 1 FROM workqueue_job").fetchone()))


def test_ids_that_are_taken_are_passed_over_after_the_sequence_was_set_back(queue, table, taken):
    queue.source.lane._pool.clear()
    _set_back(table, taken[0])
    ids = [queue.enqueue("mail", 0), *queue.enqueue_many("mail", [1, 2]), queue.enqueue("mail", 3, delay=MINUTE)]
    assert len({*ids, *taken}) == 504
    assert [queue.get(number).payload for number in ids] == [0, 1, 2, 3]
    assert [queue.get(number).kind for number in taken] == ["taken"] * 500


def test_a_sequence_that_was_set_back_by_far_is_passed_over_without_a_list_of_it(queue, table, taken, monkeypatch):
    asked = []
    allot = WorkJobQuerySet.allot
    monkeypatch.setattr(WorkJobQuerySet, "allot", lambda table, count: asked.append(count) or allot(table, count))
    queue.source.lane._pool.clear()
    _set_back(table, taken[0])
    queue.enqueue("mail")
    assert max(asked) <= insertion.ALLOT_AT_LEAST


def test_ids_that_are_taken_are_passed_over_inside_a_transaction_too_and_stay_in_order(queue, table, taken):
    _set_back(table, taken[-3])  # in the middle of the statement
    with transaction.atomic():
        ids = queue.enqueue_many("mail", range(10))
    assert ids == sorted(ids)
    assert not {*ids} & {*taken}
    assert [queue.get(number).payload for number in ids] == list(range(10))
    assert len(table.stored()) == 510


# By hand, inside


def test_claims_inside_take_what_is_there_and_what_the_transaction_added(queue):
    queue.enqueue("mail", "before")
    with transaction.atomic():
        queue.enqueue("mail", "inside")
        assert payloads(queue.claim()) == ["before", "inside"]
        assert aside(queue.claim).result(10) == []


def test_a_claim_that_is_rolled_back_leaves_the_jobs_to_others_at_once(queue):
    queue.enqueue("mail")
    with undone():
        assert len(queue.claim()) == 1
    (job,) = queue.claim()
    assert (job.attempts, job.reclaimed) == (1, False)


def test_what_is_settled_inside_is_so_with_the_commit(queue, table):
    ids = queue.enqueue_many("mail", range(3))
    done, failed, _ = queue.claim()
    with undone():
        assert queue.complete(done, result=1) == 1
        assert queue.fail(failed, ValueError("no")) == JobStatus.PENDING
        assert queue.cancel(ids[2]) == 1
    assert [table.state(number) for number in ids] == ["leased"] * 3
    with transaction.atomic():
        assert queue.complete(done, result=1) == 1
        assert queue.fail(failed, ValueError("no")) == JobStatus.PENDING
        assert queue.cancel(ids[2]) == 1
        assert table.state(ids[0]) == "leased"
    assert [table.state(number) for number in ids] == ["completed", "waiting", "cancelled"]


def test_in_a_long_transaction_leases_are_not_born_lapsed_and_time_goes_on(queue, table, wait_until):
    """`now()` stands still in a transaction, and in every TestCase."""
    with transaction.atomic():
        with connection.cursor() as cursor:
            cursor.execute("SELECT now()")
        wait_until(lambda: _seconds_since_begin() > 0.2)
        number = queue.enqueue("mail")
        jobs = queue.claim(lease=timedelta(milliseconds=100))
        assert queue.claim() == []
        assert queue.extend(*jobs, lease=MINUTE) == jobs
        assert queue.fail(*jobs, ValueError(), retry_in=timedelta(milliseconds=30)) == JobStatus.PENDING
        (job,) = wait_until(queue.claim)
        assert (job.id, job.attempts) == (number, 2)
        assert queue.get(number).errors[0]["at"] > job.enqueued_at.isoformat()


def _seconds_since_begin():
    with connection.cursor() as cursor:
        cursor.execute("SELECT extract(epoch FROM clock_timestamp() - now())")
        return cursor.fetchone()[0]


def test_everything_else_works_in_the_same_transaction(make_queue, table):
    queue = make_queue(max_attempts=1)
    with transaction.atomic():
        ids = queue.enqueue_many("mail", range(4))
        assert queue.stats().ready == 4
        done, dead, running, _ = queue.claim()
        assert queue.complete(done) == 1
        assert queue.fail(dead, ValueError()) == JobStatus.DEAD
        assert queue.cancel(running.id) == 1
        assert queue.retry(*ids) == 2
        assert queue.prune(timedelta(0)) == 1
        queue.pause()
        assert queue.is_paused()
        assert queue.claim() == []
        queue.resume()
        assert [job.id for job in queue.claim()] == [dead.id, running.id]
    assert [table.state(number) for number in ids] == ["absent", "leased", "leased", "leased"]


# Async


def test_aenqueue_under_async_to_sync_inside_atomic_rides_that_transaction(queue, table):
    async def produce():
        return [await queue.aenqueue("mail", "a"), *await queue.aenqueue_many("mail", ["b", "c"])]

    with undone():
        async_to_sync(produce)()
        assert table.stored() == []
    assert queue.claim() == []
    with transaction.atomic():
        ids = async_to_sync(produce)()
    assert table.stored() == ids
    assert payloads(queue.claim()) == ["a", "b", "c"]


def test_aenqueue_in_sync_code_in_async_code_rides_the_sync_codes_transaction(queue, table):
    def block():
        with transaction.atomic():
            async_to_sync(queue.aenqueue)("mail")
            return table.stored()

    async def main():
        inside = await sync_to_async(block)()
        await sync_to_async(connections.close_all)()
        return inside

    assert async_to_sync(main)() == []
    assert len(queue.claim()) == 1


# Django's test cases


class TestInATestCase(TestCase):
    """Each test is a transaction that is rolled back."""

    @classmethod
    def setUpTestData(cls):
        cls.tests = JobQueue("in a TestCase of jobs")
        cls.number = cls.tests.enqueue("mail", "of the class")

    def test_claims_see_what_the_test_enqueued(self):
        self.tests.enqueue_many("mail", ["a", "b"])
        jobs = self.tests.claim()
        assert payloads(jobs) == ["of the class", "a", "b"]
        assert self.tests.complete(*jobs) == 3
        assert self.tests.claim() == []

    def test_and_nothing_of_another_tests(self):
        assert payloads(self.tests.claim()) == ["of the class"]
        assert self.tests.get(self.number).status == JobStatus.RUNNING

    async def test_async_tests_ride_the_tests_transaction(self):
        await self.tests.aenqueue("mail", "a")
        jobs = await self.tests.aclaim()
        assert payloads(jobs) == ["of the class", "a"]
        assert await self.tests.acomplete(*jobs, result=1) == 2
        assert (await self.tests.aget(self.number)).result == 1

    def test_nothing_reaches_the_database(self):
        self.tests.enqueue("mail")
        self.tests.claim()
        assert aside(self.tests.source.table().filter(queue=self.tests.name).count).result(10) == 0

    def test_another_database_is_refused_as_django_refuses_it(self):
        with pytest.raises(AssertionError, match="'other' are not allowed"):
            JobQueue("in a TestCase of jobs", using="other").enqueue("mail")


class TestInATransactionTestCase(TransactionTestCase):
    """The database is flushed after each test, sequences and all."""

    reset_sequences = True
    databases = {"default", "other"}  # also makes pytest-django set up the second one, for the functions above

    def test_enqueues_are_committed(self):
        queue = JobQueue("in a TransactionTestCase of jobs")
        queue.enqueue("mail", "a")
        with transaction.atomic():
            queue.enqueue("mail", "b")
        assert payloads(queue.claim()) == ["a", "b"]

    def test_and_flushed(self):
        queue = JobQueue("in a TransactionTestCase of jobs")
        assert queue.claim() == []
        with transaction.atomic():
            queue.enqueue_many("mail", range(300))
        queue.enqueue_many("mail", range(300))
        assert len(queue.claim()) == 500


class TestInASimpleTestCase(SimpleTestCase):
    """The database is out of bounds."""

    def test_the_guard_holds(self):
        queue = JobQueue("in a SimpleTestCase of jobs")
        calls = (
            lambda: queue.enqueue("mail"),
            lambda: async_to_sync(queue.aenqueue)("mail"),
            queue.claim,
            lambda: queue.cancel(1),
            lambda: queue.get(1),
            queue.stats,
            queue.pause,
        )
        for call in calls:
            with pytest.raises(AssertionError, match="not allowed in SimpleTestCase"):
                call()
