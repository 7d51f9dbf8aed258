"""A flush that is repeated because its connection was lost never doubles a job, and never loses one."""

import contextlib
import json

import pytest
from asgiref.sync import async_to_sync

from django_workqueue import JobQueue, metrics
from django_workqueue.database import Connection
from django_workqueue.insertion import Waiting
from django_workqueue.models import WorkJob
from tests.keyed.test_enqueue import HOUR
from tests.relay import relayed

ENQUEUES = {
    "one": lambda queue: [queue.enqueue("mail", 0)],
    "many": lambda queue: queue.enqueue_many("mail", range(50)),
    "many that are delayed": lambda queue: queue.enqueue_many("mail", range(50), delay=HOUR),
    "from a coroutine": lambda queue: async_to_sync(queue.aenqueue_many)("mail", range(50)),
}


@pytest.fixture
def relay(db):
    with relayed() as relay:
        yield relay


@pytest.fixture
def far(relay, queue, table, settings, monkeypatch):
    """The queue as producers reach it through the relay, with their connection open and ids in stock.

    Nothing else is sent on that connection, or its answer would be waited for instead: no wake, no counters, and no
    statement to be prepared.
    """
    settings.WORKQUEUE_NOTIFY = False
    monkeypatch.setattr(metrics.Ledger, "due_in", lambda self: 3600.0)
    far = JobQueue(queue.name, using="other")
    far.enqueue("first", delay=HOUR)
    far.enqueue("second")  # is written after all that follows the first
    table.clear()
    yield far
    relay.cut()
    far.close(10)


@pytest.mark.parametrize("form", ENQUEUES)
def test_a_flush_repeated_after_its_answer_was_lost_never_doubles_a_job(far, table, relay, aside, wait_until, form):
    relay.swallow()
    pending = aside(ENQUEUES[form], far)
    landed = wait_until(table.stored)
    assert not pending.done()
    relay.cut()
    assert pending.result(20) == landed == table.stored()
    payloads = table.connection.execute(
        "SELECT payload FROM workqueue_job WHERE queue = %s ORDER BY id", [far.name]
    ).fetchall()
    assert payloads == [(number,) for number in range(len(landed))]


@pytest.mark.parametrize("form", ENQUEUES)
def test_a_flush_whose_connection_is_lost_before_it_landed_is_repeated(
    far, table, relay, aside, wait_until, connect, form
):
    holder = connect(autocommit=False)
    holder.execute("LOCK TABLE workqueue_job IN SHARE MODE")
    pending = aside(ENQUEUES[form], far)
    observer = connect()
    waits = "SELECT pid FROM pg_locks WHERE NOT granted AND relation = 'workqueue_job'::regclass"
    ((pid,),) = wait_until(lambda: observer.execute(waits).fetchall())
    observer.execute("SELECT pg_terminate_backend(%s)", [pid])
    holder.rollback()
    assert pending.result(20) == table.stored() != []


def test_enqueues_lined_up_meanwhile_land_once_too(far, queue, table, relay, aside, wait_until):
    relay.swallow()
    pending = [aside(far.enqueue, "mail", number) for number in range(10)]
    wait_until(table.stored)
    relay.cut()
    ids = [each.result(20) for each in pending]
    assert sorted(ids) == table.stored()
    assert [queue.get(number).payload for number in ids] == list(range(10))


def test_a_job_that_landed_and_was_worked_before_the_repetition_is_not_added_again(
    far, queue, table, relay, aside, wait_until
):
    """Its row is there still: it is kept for the retention."""
    relay.swallow()
    pending = aside(far.enqueue, "mail")
    (number,) = wait_until(table.stored)
    table.set("outcome = 'completed', finished_at = now()", number)
    relay.cut()
    assert pending.result(20) == number
    assert table.state(number) == "completed"
    assert queue.claim() == []


def test_an_id_that_somebody_else_was_given_meanwhile_is_no_sign_that_a_job_has_landed(far, queue, table, wait_until):
    """A server that took over without the last of the sequence gives ids out twice."""
    lane = far.source.lane
    mine, landed = (Waiting("mail", json.dumps(number), 0, 0.0, 0, 5, "{}") for number in range(2))
    for entry in (mine, landed):
        (entry.id,) = WorkJob.objects.allot(1)
    theirs = Waiting("mail", '"theirs"', 0, 0.0, 0, 5, "{}", id=mine.id)
    with contextlib.closing(Connection("default", application="test")) as connection:
        for entry in (theirs, landed):
            lane.write_on(connection, [entry])
        ids = lane.write_on(connection, [mine, landed, Waiting("mail", "2", 0, 0.0, 0, 5, "{}")])
    assert ids[0] != theirs.id
    assert ids[1] == landed.id
    assert [queue.get(number).payload for number in ids] == [0, 1, 2]
    assert queue.get(theirs.id).payload == "theirs"
    assert len(table.stored()) == 4
