"""Cancelling, trying again, looking, counting and deleting."""

from datetime import datetime, timedelta

import pytest
from django.db import transaction

from django_workqueue import JobQueue, JobStatus, PermanentError
from django_workqueue.models import WorkJob
from django_workqueue.testing import drain
from tests.jobs.test_claim import ids
from tests.keyed.test_enqueue import HOUR, MINUTE, about

NOW = timedelta(0)
STATES = ["waiting", "delayed", "leased", "lapsed", "completed", "dead", "cancelled"]


@pytest.fixture
def in_state(queue, table):
    """`in_state(state)`: a job in that state, which is its kind as well; its id."""

    def make(state):
        number = queue.enqueue(state, delay=HOUR if state == "delayed" else None)
        if state in ("waiting", "delayed"):
            return number
        if state == "cancelled":
            queue.cancel(number)
            return number
        (job,) = queue.claim(kinds=[state])
        if state == "lapsed":
            table.lapse(number)
        elif state == "completed":
            queue.complete(job, result=1)
        elif state == "dead":
            queue.fail(job, PermanentError("never"))
        return number

    return make


# Cancel


@pytest.mark.parametrize("state", STATES)
def test_cancel_takes_what_is_pending_or_running_and_nothing_else(queue, table, in_state, state):
    number = in_state(state)
    ended = state in ("completed", "dead", "cancelled")
    before = table.row(number).finished_at
    assert queue.cancel(number) == (0 if ended else 1)
    assert table.state(number) == (state if ended else "cancelled")
    assert not ended or table.row(number).finished_at == before
    assert table.row(number).ended_ago == about(0)
    assert queue.claim() == []


def test_the_outcome_of_a_job_that_was_cancelled_while_it_ran_is_dropped(queue, table):
    number = queue.enqueue("mail")
    (job,) = queue.claim()
    queue.cancel(number)
    assert queue.complete(job, result="late") == 0
    assert queue.fail(job, ValueError("late")) is None
    row = queue.get(number)
    assert (row.status, row.result, row.errors) == (JobStatus.CANCELLED, None, [])


def test_many_are_cancelled_at_once_and_what_is_unknown_or_named_twice_is_not_counted(queue, make_queue, name):
    other = make_queue(name=f"{name}, another").enqueue("mail")
    made = queue.enqueue_many("mail", range(1500))
    assert queue.cancel(*made, *made, other, 2**62) == 1500
    assert queue.cancel() == 0
    assert queue.stats().pending == 0
    assert make_queue(name=f"{name}, another").get(other).status == JobStatus.PENDING


@pytest.mark.parametrize(("number", "error"), [("1", TypeError), (None, TypeError), (1.0, TypeError), (0, ValueError)])
def test_an_id_that_is_none_raises(queue, number, error):
    for call in (queue.cancel, queue.retry):
        with pytest.raises(error, match="a job's id"):
            call(1, number)


# Retry


@pytest.mark.parametrize("state", STATES)
def test_retry_lets_dead_and_cancelled_jobs_start_afresh_and_nothing_else(queue, table, in_state, state):
    number = in_state(state)
    again = state in ("dead", "cancelled")
    assert queue.retry(number) == (1 if again else 0)
    row = queue.get(number)
    if again:
        assert (row.status, row.attempts, row.finished_at, row.started_at) == (JobStatus.PENDING, 0, None, None)
        assert table.row(number).due_in == about(0)
        (job,) = queue.claim()
        assert (job.id, job.attempts) == (number, 1)
    else:
        assert table.state(number) == {"delayed": "waiting"}.get(state, state)


def test_a_dead_job_that_is_retried_keeps_its_history_and_has_all_its_attempts_again(make_queue):
    queue = make_queue(max_attempts=2)
    number = queue.enqueue("mail")
    for _ in range(2):
        queue.fail(queue.claim()[0], ValueError("no"), retry_in=NOW)
    assert queue.retry(number) == 1
    statuses = [queue.fail(queue.claim()[0], ValueError("again"), retry_in=NOW) for _ in range(2)]
    assert statuses == [JobStatus.PENDING, JobStatus.DEAD]
    assert [error["message"] for error in queue.get(number).errors] == ["no", "no", "again", "again"]


def test_a_job_that_was_cancelled_while_it_ran_and_retried_is_fenced_from_its_first_run(queue, table):
    number = queue.enqueue("mail")
    (first,) = queue.claim()
    queue.cancel(number)
    queue.retry(number)
    (second,) = queue.claim()
    assert queue.complete(first, result="first") == 0
    assert queue.complete(second, result="second") == 1
    assert queue.get(number).result == "second"


def test_retry_wakes_whoever_waits(queue):
    number = queue.enqueue("mail")
    queue.cancel(number)
    while queue.wait(timedelta(milliseconds=50)):
        pass
    assert queue.retry(number) == 1
    assert queue.wait(timedelta(seconds=10)) is True


# Get


def test_a_job_stands_in_one_of_five_places():
    assert JobStatus.values == ["pending", "running", "completed", "dead", "cancelled"]
    assert [str(label) for label in JobStatus.labels] == JobStatus.values


@pytest.mark.parametrize("state", STATES)
def test_get_is_the_row_with_its_status(queue, in_state, state):
    row = queue.get(in_state(state))
    assert isinstance(row, WorkJob)
    expected = {"waiting": "pending", "delayed": "pending", "leased": "running", "lapsed": "running"}.get(state, state)
    assert row.status is JobStatus(expected)
    assert (row.queue, row.kind) == (queue.name, state)


def test_get_knows_its_own_queues_jobs_only(queue, make_queue, name):
    other = make_queue(name=f"{name}, another").enqueue("mail")
    for number in (other, 2**62):
        with pytest.raises(WorkJob.DoesNotExist):
            queue.get(number)


# Stats


def test_stats_count_each_state(queue, in_state):
    for state in STATES:
        in_state(state)
    stats = queue.stats()
    assert (stats.ready, stats.scheduled, stats.leased, stats.stalled, stats.completed) == (2, 1, 1, 1, 1)
    assert stats.pending == 3


def test_kinds_nobody_handles_stay_and_are_counted(queue, table):
    @queue.handler("mail")
    def send(job): ...

    made = queue.enqueue_many("fax", range(3))
    assert drain(queue).completed == 0
    assert [table.state(number) for number in made] == ["waiting"] * 3
    assert queue.stats().ready == 3


# Deleting


def test_prune_deletes_what_ended_longer_ago_and_nothing_else(queue, table, in_state):
    made = {state: in_state(state) for state in STATES}
    for state in ("completed", "dead", "cancelled"):
        table.age(made[state], seconds=3600)
    assert queue.prune(2 * HOUR) == 0
    assert queue.prune(MINUTE * 59) == 3
    assert table.stored() == [made[state] for state in ("waiting", "delayed", "leased", "lapsed")]


def test_prune_deletes_more_than_one_statement_takes(queue):
    queue.enqueue_many("mail", range(2500))
    while jobs := queue.claim():
        queue.complete(*jobs)
    assert queue.prune(NOW) == 2500


@pytest.mark.parametrize(("older_than", "error"), [(-MINUTE, ValueError), (5, TypeError)])
def test_a_prune_of_what_is_to_come_raises(queue, older_than, error):
    with pytest.raises(error, match="older_than"):
        queue.prune(older_than)


def ended(queue, table, ago):
    """A completed, a cancelled and a dead job that ended so long ago: their ids."""
    made = queue.enqueue_many("mail", range(3))
    completed, cancelled, dead = queue.claim()
    queue.complete(completed)
    queue.cancel(cancelled.id)
    queue.fail(dead, PermanentError())
    table.age(*made, seconds=ago.total_seconds())
    return made


@pytest.mark.parametrize(
    ("options", "ago", "left"),
    [
        ({}, timedelta(hours=23), ["completed", "cancelled", "dead"]),
        ({}, timedelta(hours=25), ["dead"]),
        ({}, timedelta(days=29), ["dead"]),
        ({}, timedelta(days=31), []),
        ({"retention": MINUTE, "dead_retention": HOUR}, timedelta(seconds=30), ["completed", "cancelled", "dead"]),
        ({"retention": MINUTE, "dead_retention": HOUR}, 2 * MINUTE, ["dead"]),
        ({"retention": HOUR, "dead_retention": MINUTE}, 2 * MINUTE, ["completed", "cancelled"]),
        ({"retention": HOUR, "dead_retention": NOW}, timedelta(seconds=1), ["completed", "cancelled"]),
    ],
)
def test_completed_and_cancelled_jobs_are_kept_for_the_retention_and_dead_ones_for_theirs(
    make_queue, table, own, options, ago, left
):
    queue = make_queue(**options)
    made = ended(queue, table, ago)
    queue.source.maintain_on(own)
    assert [state for state in map(table.state, made) if state != "absent"] == left


def test_a_retention_of_0_deletes_on_completion_with_the_result(make_queue, table):
    queue = make_queue(retention=NOW)
    number = queue.enqueue("mail")
    (job,) = queue.claim()
    assert queue.complete(job, result="gone") == 1
    assert table.state(number) == "absent"
    assert queue.complete(job) == 0


def test_a_retention_of_0_is_fenced_too(make_queue, table):
    queue = make_queue(retention=NOW)
    number = queue.enqueue("mail")
    (late,) = queue.claim()
    table.lapse(number)
    (job,) = queue.claim()
    assert queue.complete(late) == 0
    assert table.state(number) == "leased"
    assert queue.complete(job) == 1


def test_maintenance_buries_what_lapsed_on_its_last_attempt(queue, table, own):
    started, unstarted = queue.enqueue_many("mail", range(2), max_attempts=1)
    source = queue.source
    claim = source.claim_on(own, 10, MINUTE, None)
    source.start_on(own, claim.works[:1])
    table.lapse(started, unstarted)
    source.maintain_on(own)
    assert (table.state(started), table.state(unstarted)) == ("dead", "lapsed")
    assert ids(queue.claim()) == [unstarted]


def test_an_entry_of_errors_is_as_documented_whether_it_failed_or_lapsed(queue, table):
    number = queue.enqueue("mail", max_attempts=2)
    (job,) = queue.claim()
    queue.fail(job, ValueError("no route"), retry_in=timedelta(0))
    queue.claim()
    table.lapse(number)
    queue.source.reap_here()
    failed, lapsed = queue.get(number).errors
    keys = {"attempt", "type", "message", "worker", "at", "started"}
    assert (set(failed), set(lapsed)) == (keys | {"traceback"}, keys)
    for entry in (failed, lapsed):
        assert datetime.fromisoformat(entry["started"]) <= datetime.fromisoformat(entry["at"])


@pytest.mark.parametrize("by", ["a worker's claim", "maintenance", "a claim", "reap", "a claim in a transaction"])
def test_whoever_buries_what_lapsed_on_its_last_attempt_says_so_as_an_error(make_queue, table, own, caplog, by):
    queue = make_queue(max_attempts=1)
    number = queue.enqueue("mail")
    queue.claim()
    table.lapse(number)
    bury = {
        "a worker's claim": lambda: queue.source.claim_on(own, 1, MINUTE, ["mail"]),
        "maintenance": lambda: queue.source.maintain_on(own),
        "a claim": queue.claim,
        "reap": queue.source.reap_here,
        "a claim in a transaction": transaction.atomic(queue.claim),
    }[by]
    bury()
    assert table.state(number) == "dead"
    bury()
    told = [(record.levelname, record.getMessage()) for record in caplog.records]
    words = f"{queue.name}: 1 job is a dead letter now, since the lease of its last attempt lapsed: {number} (mail)"
    assert told == [("ERROR", words)]


def test_what_is_buried_in_a_transaction_that_is_rolled_back_is_not_told_of(make_queue, table, caplog):
    queue = make_queue(max_attempts=1)
    number = queue.enqueue("mail")
    queue.claim()
    table.lapse(number)
    with transaction.atomic():
        queue.claim()
        assert queue.get(number).status == JobStatus.DEAD
        transaction.set_rollback(True)
    assert (table.state(number), caplog.records) == ("lapsed", [])


def test_of_many_that_are_buried_at_once_the_first_ten_are_named(make_queue, table, own, caplog):
    queue = make_queue(max_attempts=1)
    numbers = [queue.enqueue("odd" if each % 2 else "even") for each in range(12)]
    queue.claim()
    table.lapse(*numbers)
    queue.source.maintain_on(own)
    named = ", ".join(f"{number} ({'odd' if each % 2 else 'even'})" for each, number in enumerate(numbers[:10]))
    words = "12 jobs are dead letters now, since the leases of their last attempts lapsed"
    assert [record.getMessage() for record in caplog.records] == [f"{queue.name}: {words}: {named} and 2 more"]


def test_two_maintainers_at_once_do_no_harm(queue, table, aside):
    made = queue.enqueue_many("mail", range(50), max_attempts=1)
    queue.claim()
    table.lapse(*made)
    together = [aside(queue.source.reap_here) for _ in range(4)]
    for each in together:
        each.result(20)
    assert {table.state(number) for number in made} == {"dead"}
    assert {len(queue.get(number).errors) for number in made} == {1}


# Pausing is test_claim.py's; handlers and their registration


def test_a_kind_has_one_handler_and_a_second_is_refused(queue, name):
    @queue.handler("mail")
    def send(job): ...

    for face in (queue, JobQueue(name)):
        with pytest.raises(ValueError, match=r"kind 'mail' of queue '.*' has a handler already, .*send; .*other"):

            @face.handler("mail")
            def other(job): ...

    @queue.handler("sms")
    def text(job): ...


def test_a_handler_is_given_back_as_it_is(queue):
    def send(job): ...

    assert queue.handler("mail")(send) is send


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"lease": NOW}, ValueError),
        ({"lease": 5}, TypeError),
        ({"timeout": -MINUTE}, ValueError),
        ({"concurrency": 0}, ValueError),
        ({"concurrency": 1.5}, TypeError),
    ],
    ids=str,
)
def test_options_of_a_handler_that_make_no_sense_are_refused(queue, options, error):
    with pytest.raises(error, match=next(iter(options))):
        queue.handler("mail", **options)


def test_what_cannot_be_called_is_no_handler(queue):
    with pytest.raises(TypeError, match="a handler is a function, not 'send'"):
        queue.handler("mail")("send")
