"""Each writer of jobs against a concurrent writer of the same row, which was there first and then commits.

As for keys: what waited for a lock holds a row version that its own snapshot cannot see, and must neither do nothing
nor do it to what is no longer its own.
"""

from datetime import timedelta

import pytest

from django_workqueue.managers import NewJobs, Settling
from django_workqueue.models import WorkJob
from django_workqueue.sql import jobs
from tests import interleave
from tests.jobs.test_claim import ids
from tests.keyed.test_enqueue import HOUR, about

OURS, THEIRS = 11, 22  # lease tokens
HOUR_US = 3_600_000_000
EVERYWHERE = {"lo": [-(2**31) + 1], "since": [0], "after": [0], "hi": [2**31 - 1]}


class Other:
    """The other side: statements in one transaction, left open until `commit` or `rollback`."""

    def __init__(self, connection, queue):
        self.connection = connection
        self.queue = queue

    def send(self, statement, **params):
        return self.connection.execute(statement.of(self.queue), params).fetchall()

    def extend(self, *ids):
        self.send(jobs.EXTEND, ids=list(ids), token=OURS, lease=HOUR_US)

    def start(self, *ids):
        self.send(jobs.START, ids=list(ids), tokens=[OURS] * len(ids), worker="theirs")

    def claim(self, limit=500):
        *leased, _own = self.send(
            jobs.CLAIM,
            **EVERYWHERE,
            limit=limit,
            lease=HOUR_US,
            token=THEIRS,
            kinds=None,
            mark=True,
            worker="theirs",
            lapsed=10,
        )
        return leased

    def reclaim(self, *ids):
        """Let the lease lapse and claim it, as a second worker would."""
        self.set("lease_until = 'epoch'::timestamptz + interval '1 second'", *ids)
        self.claim()

    def settling(self, *ids):
        return {"ids": list(ids), "tokens": [OURS] * len(ids), "ran": [0] * len(ids), "worker": "theirs"}

    def complete(self, *ids):
        self.send(jobs.COMPLETE_KEEP, **self.settling(*ids), results=['"theirs"'] * len(ids))

    def complete_delete(self, *ids):
        self.send(jobs.COMPLETE_DELETE, ids=list(ids), tokens=[OURS] * len(ids))

    def fail(self, *ids, final=False):
        count = len(ids)
        self.send(
            jobs.FAIL,
            **self.settling(*ids),
            delays=[0] * count,
            errors=['{"message": "theirs"}'] * count,
            finals=[final] * count,
            uncounts=[0] * count,
        )

    def bury(self, *ids):
        self.fail(*ids, final=True)

    def cancel(self, *ids):
        self.send(jobs.CANCEL, ids=list(ids))

    def cancel_and_retry(self, *ids):
        self.cancel(*ids)
        self.retry(*ids)

    def retry(self, *ids):
        self.send(jobs.RETRY, ids=list(ids))

    def delete(self, *ids):
        self.connection.execute("DELETE FROM workqueue_job WHERE queue = %s AND id = ANY (%s)", [self.queue, list(ids)])

    def lock(self, *ids):
        self.connection.execute(
            "SELECT FROM workqueue_job WHERE queue = %s AND id = ANY (%s) FOR UPDATE", [self.queue, list(ids)]
        )

    def nothing(self, *ids):
        self.delete(*ids)
        self.connection.rollback()
        self.lock(*ids)

    def set(self, assignment, *ids):
        self.connection.execute(
            f"UPDATE workqueue_job SET {assignment} WHERE queue = %s AND id = ANY (%s)", [self.queue, list(ids)]
        )

    def commit(self):
        self.connection.commit()

    def rollback(self):
        self.connection.rollback()


@pytest.fixture
def other(connect, name):
    return Other(connect(autocommit=False), name)


@pytest.fixture
def leased(queue, table):
    """Three jobs, leased under one token of ours."""
    made = queue.enqueue_many("mail", range(3))
    queue.claim()
    table.set(f"lease_token = {OURS}, started_at = NULL, worker_ids = '[]'", *made)
    return made


def settling(made):
    return Settling(list(made), [OURS] * len(made), [0] * len(made), "ours")


def fail(name, made, *, final=False, uncount=0):
    count = len(made)
    return len(
        WorkJob.objects.fail(
            name,
            settling(made),
            delays=[60_000_000] * count,
            errors=[None if uncount else '{"message": "ours"}'] * count,
            finals=[final] * count,
            uncounts=[uncount] * count,
        )
    )


SETTLERS = {
    "complete, keeping": lambda name, made: WorkJob.objects.complete(
        name, settling(made), ["1"] * len(made), keep=True
    ),
    "complete, keeping no results": lambda name, made: WorkJob.objects.complete(
        name, settling(made), [None] * len(made), keep=True
    ),
    "complete, deleting": lambda name, made: WorkJob.objects.complete(
        name, settling(made), [None] * len(made), keep=False
    ),
    "fail": fail,
    "fail for good": lambda name, made: fail(name, made, final=True),
    "snooze": lambda name, made: fail(name, made, uncount=1),
}
ENDS = {
    "complete, keeping": "completed",
    "complete, keeping no results": "completed",
    "complete, deleting": "absent",
    "fail": "waiting",
    "fail for good": "dead",
    "snooze": "waiting",
}


@pytest.mark.parametrize("contested", [0, 2])
@pytest.mark.parametrize("concurrent", ["extend", "start", "nothing"])
@pytest.mark.parametrize("settler", SETTLERS)
def test_a_settlement_that_waited_for_a_harmless_writer_is_done(
    settler, concurrent, contested, name, table, leased, other, waiting
):
    getattr(other, concurrent)(leased[contested])
    pending = waiting(lambda: SETTLERS[settler](name, leased))
    other.commit()
    assert pending.result(10) == 3
    assert {table.state(number) for number in leased} == {ENDS[settler]}


@pytest.mark.parametrize("concurrent", ["reclaim", "cancel_and_retry"])
@pytest.mark.parametrize("settler", SETTLERS)
def test_a_settlement_that_waited_while_its_lease_was_lost_is_fenced_off(
    settler, concurrent, name, table, leased, other, waiting
):
    first, contested, last = leased
    getattr(other, concurrent)(contested)
    pending = waiting(lambda: SETTLERS[settler](name, leased))
    other.commit()
    assert pending.result(10) == 2
    assert table.state(first) == table.state(last) == ENDS[settler]
    row = table.row(contested)
    assert table.state(contested) == ("leased" if concurrent == "reclaim" else "waiting")
    assert row.lease_token == (THEIRS if concurrent == "reclaim" else 0)
    assert (row.errors, row.result) == ([], None)


@pytest.mark.parametrize("concurrent", ["complete", "complete_delete", "fail", "bury", "cancel", "delete"])
@pytest.mark.parametrize("settler", SETTLERS)
def test_a_settlement_that_waited_for_another_end_of_its_run_changes_nothing(
    settler, concurrent, name, table, leased, other, waiting
):
    first, contested, last = leased
    getattr(other, concurrent)(contested)
    pending = waiting(lambda: SETTLERS[settler](name, leased))
    other.commit()
    assert pending.result(10) == 2
    assert table.state(first) == table.state(last) == ENDS[settler]
    ends = {"complete": "completed", "fail": "waiting", "bury": "dead", "cancel": "cancelled"}
    assert table.state(contested) == ends.get(concurrent, "absent")
    if concurrent in ("fail", "bury"):
        assert [error["message"] for error in table.row(contested).errors] == ["theirs"]
    elif concurrent == "complete":
        assert table.row(contested).result == "theirs"


def test_a_settlement_whose_rival_is_rolled_back_is_done(name, table, leased, other, waiting):
    other.cancel(leased[1])
    pending = waiting(lambda: SETTLERS["complete, keeping"](name, leased))
    other.rollback()
    assert pending.result(10) == 3
    assert {table.state(number) for number in leased} == {"completed"}


# Cancel and retry wait, in the order of the ids


@pytest.mark.parametrize(
    ("concurrent", "count", "state"),
    [
        ("extend", 3, "cancelled"),
        ("start", 3, "cancelled"),
        ("reclaim", 3, "cancelled"),
        ("fail", 3, "cancelled"),
        ("cancel_and_retry", 3, "cancelled"),
        ("nothing", 3, "cancelled"),
        ("complete", 2, "completed"),
        ("complete_delete", 2, "absent"),
        ("bury", 2, "dead"),
        ("cancel", 2, "cancelled"),
        ("delete", 2, "absent"),
    ],
)
def test_a_cancel_that_waited_takes_what_is_still_pending_or_running(
    concurrent, count, state, queue, table, leased, other, waiting
):
    first, contested, last = leased
    getattr(other, concurrent)(contested)
    pending = waiting(lambda: queue.cancel(last, contested, first))
    other.commit()
    assert pending.result(10) == count
    assert table.state(contested) == state
    assert table.state(first) == table.state(last) == "cancelled"
    assert queue.source.table().held(queue.name, leased, OURS) == []


@pytest.mark.parametrize(
    ("concurrent", "count", "state"),
    [("retry", 2, "waiting"), ("delete", 2, "absent"), ("lock", 3, "waiting"), ("nothing", 3, "waiting")],
)
def test_a_retry_that_waited_lets_start_afresh_what_is_still_dead_or_cancelled(
    concurrent, count, state, queue, table, leased, other, waiting
):
    first, contested, last = leased
    queue.cancel(*leased)
    getattr(other, concurrent)(contested)
    pending = waiting(lambda: queue.retry(last, contested, first))
    other.commit()
    assert pending.result(10) == count
    assert [table.state(number) for number in leased] == ["waiting", state, "waiting"]
    assert {table.row(number).attempts for number in leased if table.row(number)} == {0}


def test_a_retry_that_waited_for_a_job_to_be_retried_and_claimed_leaves_the_run_alone(
    queue, table, leased, other, waiting
):
    contested = leased[1]
    queue.cancel(*leased)
    other.retry(contested)
    other.claim()
    pending = waiting(lambda: queue.retry(*leased))
    other.commit()
    assert pending.result(10) == 2
    assert table.row(contested).lease_token == THEIRS


def test_cancels_of_the_same_jobs_in_any_order_do_not_deadlock(queue, connect, aside):
    made = queue.enqueue_many("mail", range(200))

    def cancel(order):
        return queue.cancel(*order)

    together = [aside(cancel, made[::step]) for step in (1, -1, 3, -3, 7, -7)]
    assert sum(each.result(20) for each in together) == 200


# An insert that meets an id


@pytest.mark.parametrize(("end", "landed"), [("commit", []), ("rollback", [0])])
def test_an_insert_that_waited_for_another_of_its_id_lands_once(end, landed, name, queue, table, other, waiting):
    """As when a flush is repeated while the server still works on the first."""
    (number,) = WorkJob.objects.allot(1)
    new = NewJobs(["mail"], ["1"], [0], [5], [0], [0], ["{}"])
    other.send(jobs.ENQUEUE, ids=[number], **new.params())
    pending = waiting(lambda: WorkJob.objects.enqueue(name, [number], new))
    getattr(other, end)()
    assert pending.result(10) == [number for _ in landed]
    assert table.stored() == [number]


# Those that never wait


@pytest.mark.parametrize("concurrent", ["start", "extend", "lock"])
def test_extend_skips_a_row_that_is_held_and_renews_the_rest(concurrent, name, table, leased, other):
    first, contested, last = leased
    getattr(other, concurrent)(contested)
    assert sorted(WorkJob.objects.extend(name, leased, OURS, HOUR)) == [first, last]
    assert sorted(WorkJob.objects.held(name, leased, OURS)) == leased
    assert WorkJob.objects.tokens(name, leased) == dict.fromkeys(leased, OURS)
    other.commit()
    assert sorted(WorkJob.objects.extend(name, leased, OURS, HOUR)) == leased
    assert table.row(contested).lease_left == about(3600)


@pytest.mark.parametrize("concurrent", ["complete", "delete", "reclaim", "fail", "cancel"])
def test_extend_by_hand_waits_for_a_held_row_and_does_not_report_what_is_lost(concurrent, queue, table, other, aside):
    made = queue.enqueue_many("mail", range(3))
    held = queue.claim()
    table.set(f"lease_token = {OURS}", *made)
    for job in held:
        job._fence.token = OURS
    getattr(other, concurrent)(made[1])
    pending = aside(queue.extend, *held, lease=HOUR)
    interleave.wait_until(lambda: table.row(made[2]).lease_left == about(3600))
    other.commit()
    assert ids(pending.result(10)) == [made[0], made[2]]


@pytest.mark.parametrize("end", ["commit", "rollback"])
def test_claim_skips_what_another_is_claiming(end, queue, other):
    made = queue.enqueue_many("mail", range(3))
    assert len(other.claim(limit=2)) == 2
    assert ids(queue.claim()) == made[2:]
    getattr(other, end)()
    assert ids(queue.claim()) == ([] if end == "commit" else made[:2])


@pytest.mark.parametrize("concurrent", ["cancel", "delete", "lock"])
def test_claim_skips_a_row_that_is_held(concurrent, queue, other):
    made = queue.enqueue_many("mail", range(3))
    getattr(other, concurrent)(made[1])
    assert ids(queue.claim()) == [made[0], made[2]]
    other.commit()
    assert ids(queue.claim()) == ([made[1]] if concurrent == "lock" else [])


@pytest.mark.parametrize("concurrent", ["extend", "cancel", "complete", "reclaim", "lock"])
def test_a_start_skips_a_row_that_is_held_so_that_its_handler_does_not_begin(
    concurrent, name, queue, table, leased, other
):
    first, contested, last = leased
    table.set("attempts = max_attempts", *leased)
    getattr(other, concurrent)(contested)
    assert sorted(WorkJob.objects.start(name, leased, [OURS] * 3, "ours")) == [first, last]
    other.commit()
    again = WorkJob.objects.start(name, [contested], [OURS], "ours")
    assert set(again) == ({contested} if concurrent in ("extend", "lock") else set())


@pytest.mark.parametrize("concurrent", ["extend", "complete", "fail", "cancel", "lock"])
def test_bury_skips_a_row_that_is_being_ended_or_extended(concurrent, queue, table, leased, other):
    first, contested, last = leased
    table.set("attempts = max_attempts, started_at = now()", *leased)
    table.lapse(*leased)
    getattr(other, concurrent)(contested)
    queue.source.reap_here()
    assert table.state(first) == table.state(last) == "dead"
    assert table.state(contested) == "lapsed"
    other.commit()
    queue.source.reap_here()
    ends = {"extend": "leased", "complete": "completed", "fail": "dead", "cancel": "cancelled", "lock": "dead"}
    assert table.state(contested) == ends[concurrent]
    if concurrent in ("fail", "lock"):
        messages = [error["message"] for error in table.row(contested).errors]
        assert messages == ["theirs" if concurrent == "fail" else "the lease lapsed during the last attempt"]


def test_prune_skips_a_row_that_is_being_retried(queue, table, leased, other):
    contested = leased[1]
    queue.cancel(*leased)
    other.retry(contested)
    assert queue.prune(timedelta(0)) == 2
    other.commit()
    assert queue.prune(timedelta(0)) == 0
    assert table.stored() == [contested]


def test_stamping_anew_skips_a_row_that_is_being_claimed(queue, table, other):
    made = queue.enqueue_many("mail", range(3))
    table.age(*made)
    other.claim(limit=1)
    queue.source.table().restamp(queue.name, made)
    other.commit()
    assert [table.row(number).due_in for number in made] == [about(-3600), about(0), about(0)]


def test_a_claim_that_lapses_while_it_is_extended_is_not_lost_to_both(queue, table, other):
    """A renewal that comes just in time, and a claim of the lapsed lease: one of them has it."""
    number = queue.enqueue("mail")
    (job,) = queue.claim()
    table.lapse(number)
    table.set(f"lease_token = {OURS}", number)
    other.extend(number)
    assert queue.claim() == []  # held
    other.commit()
    assert queue.claim() == []  # renewed
    assert table.state(number) == "leased"
    assert job.attempts == 1
