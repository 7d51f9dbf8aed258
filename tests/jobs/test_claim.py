"""What a claim hands out, in which order, and what becomes of leases that lapse."""

import copy
import dataclasses
import pickle
import random
import time
from datetime import timedelta

import pytest
from asgiref.sync import async_to_sync
from django.utils import timezone

from django_workqueue import JobStatus
from django_workqueue.engine import Outcome, Verb
from tests.keyed.test_enqueue import HOUR, MINUTE, about

NOW = timedelta(0)


def ids(jobs):
    return [job.id for job in jobs]


def test_claim_leases_what_is_due(queue, table):
    number, later = queue.enqueue("mail"), queue.enqueue("mail", delay=HOUR)
    (job,) = queue.claim(lease=timedelta(minutes=2))
    assert job.id == number
    assert table.state(number) == "leased"
    assert table.row(number).lease_left == about(120)
    assert table.state(later) == "waiting"


def test_a_lease_is_a_minute_unless_said_otherwise(queue, table):
    number = queue.enqueue("mail")
    queue.claim()
    assert 30 < table.row(number).lease_left <= 60


def test_a_leased_job_is_not_handed_out_again(queue):
    queue.enqueue("mail")
    queue.claim()
    assert queue.claim() == []


def test_claim_takes_from_its_own_queue_only(queue, make_queue, name):
    theirs = make_queue(name=f"{name}, another")
    theirs.enqueue("mail")
    assert queue.claim() == []
    assert len(theirs.claim()) == 1


def test_two_claims_never_take_the_same_job(queue, aside):
    expected = queue.enqueue_many("mail", range(200))

    def take():
        taken = []
        while jobs := queue.claim(limit=7):
            taken += ids(jobs)
        return taken

    taken = [aside(take) for _ in range(4)]
    assert sorted(number for each in taken for number in each.result(20)) == expected


def test_claim_fills_its_batch_around_locked_rows(queue, connect):
    made = queue.enqueue_many("mail", range(100))
    holder = connect(autocommit=False)
    holder.execute(
        "SELECT FROM workqueue_job WHERE queue = %s AND id = ANY (%s) FOR UPDATE", [queue.name, made[:70][::2]]
    )
    taken = ids(queue.claim(limit=50))
    holder.rollback()
    assert taken == [*made[1:70:2], *made[70:85]]


@pytest.mark.parametrize(("limit", "count"), [(1, 1), (7, 7), (500, 500), (10_000, 500), (None, 500)])
def test_a_claim_is_at_most_its_limit_and_500(queue, limit, count):
    queue.enqueue_many("mail", range(600))
    assert len(queue.claim(limit=limit)) == count


@pytest.mark.parametrize("lease", [NOW, -MINUTE])
def test_a_lease_of_no_length_raises(queue, table, lease):
    number = queue.enqueue("mail")
    with pytest.raises(ValueError, match="lease is positive"):
        queue.claim(lease=lease)
    assert table.state(number) == "waiting"


@pytest.mark.parametrize(("limit", "error"), [(0, ValueError), (-1, ValueError), (2.5, TypeError), ("1", TypeError)])
def test_a_limit_that_is_none_raises(queue, limit, error):
    with pytest.raises(error, match="limit"):
        queue.claim(limit=limit)


def test_aclaim_is_claim_for_coroutines(queue):
    number = queue.enqueue("mail")
    queue.enqueue("another")
    assert ids(async_to_sync(queue.aclaim)(5, MINUTE, ["mail"])) == [number]


# Order


def test_jobs_start_in_the_order_of_priority_then_available_at_then_id(queue, table):
    first = queue.enqueue_many("mail", ["a", "b"])  # one statement, one time
    delayed = queue.enqueue("mail", "delayed", delay=MINUTE)
    loud = queue.enqueue_many("mail", ["loud", "loud too"], priority=5)
    second = queue.enqueue("mail", "c")
    quiet = queue.enqueue("mail", "quiet", priority=-5)
    old = queue.enqueue("mail", "old")
    table.age(old)
    table.set("available_at = now()", delayed)  # its time has come: now, not when it was enqueued
    assert ids(queue.claim()) == [*loud, old, *first, second, delayed, quiet]


def test_a_limited_claim_takes_the_first_of_that_order(queue, table):
    rng = random.Random(7)
    made = [
        (-priority, place, number)
        for place in range(6)
        for priority in (rng.randrange(3),)
        for number in queue.enqueue_many("mail", range(5), priority=priority)
    ]
    taken = []
    while jobs := queue.claim(limit=4):
        taken += ids(jobs)
    assert taken == [number for _, _, number in sorted(made)]


def test_a_deferred_job_never_jumps_ahead(queue, table):
    """Not of its priority's jobs that were due before it, however long ago it was enqueued."""
    deferred = queue.enqueue("mail", delay=HOUR)
    waiting = queue.enqueue("mail")
    table.set("available_at = available_at - interval '1 hour'", deferred)  # due now …
    table.set("available_at = available_at - interval '1 minute'", waiting)  # … and this one for a minute
    assert [ids(queue.claim(limit=1)) for _ in range(2)] == [[waiting], [deferred]]


def test_a_job_that_failed_waits_behind_those_that_came_meanwhile(queue):
    first = queue.enqueue("mail")
    (job,) = queue.claim()
    second = queue.enqueue("mail")
    queue.fail(job, ValueError(), retry_in=NOW)
    assert [ids(queue.claim(limit=1)) for _ in range(2)] == [[second], [first]]


# Kinds


def test_claims_take_only_the_kinds_they_name(queue):
    mail, sms = queue.enqueue("mail"), queue.enqueue("sms")
    assert ids(queue.claim(kinds=["sms", "sms", "fax"])) == [sms]
    assert ids(queue.claim(kinds=["sms", "fax"])) == []
    assert ids(queue.claim(kinds=[])) == []
    assert ids(queue.claim(kinds=["mail"])) == [mail]


def test_claims_that_name_no_kinds_take_any(queue):
    made = [queue.enqueue("mail"), queue.enqueue("sms")]
    assert ids(queue.claim()) == made


def test_a_claim_of_one_kind_is_filled_past_many_of_another(queue):
    queue.enqueue_many("sms", range(300))
    made = queue.enqueue_many("mail", range(20))
    assert ids(queue.claim(limit=15, kinds=["mail"])) == made[:15]


def test_the_end_of_one_kinds_jobs_leaves_the_other_kinds_in_sight(queue, table, monkeypatch):
    """Also where looking from the beginning is dear, and claims stand by how far they have got."""
    from django_workqueue import floors

    monkeypatch.setattr(floors, "CHEAP", -1)
    monkeypatch.setattr(floors, "CHEAP_PER_ROW", 0)
    made = {kind: queue.enqueue_many(kind, range(10)) for kind in ("mail", "sms")}
    table.age(*made["mail"], *made["sms"])
    for kind, expected in made.items():
        taken = [ids(queue.claim(limit=4, kinds=[kind])) for _ in range(4)]
        assert taken == [expected[:4], expected[4:8], expected[8:], []], kind


def test_a_process_remembers_how_far_it_got_for_a_bounded_number_of_kinds(queue):
    from django_workqueue import listed

    used = queue.source.floors_of(["mail"])
    for number in range(listed.MAX_KINDS + 20):
        queue.claim(kinds=[f"kind {number}"])
        assert queue.source.floors_of(["mail"]) is used
    assert len(queue.source._floors) == listed.MAX_KINDS


# Attempts and lapsed leases


def test_attempts_are_1_on_first_delivery_and_count_up(queue):
    queue.enqueue("mail")
    for attempt in (1, 2, 3):
        (job,) = queue.claim()
        assert job.attempts == attempt
        queue.fail(job, ValueError(), retry_in=NOW)


def test_a_lapsed_lease_is_handed_out_by_the_next_claim_and_counts_as_an_attempt(queue, wait_until):
    number = queue.enqueue("mail")
    claimed = time.monotonic()
    queue.claim(lease=timedelta(milliseconds=150))
    (job,) = wait_until(queue.claim)
    assert time.monotonic() - claimed >= 0.15
    assert (job.id, job.attempts, job.reclaimed) == (number, 2, True)


def test_a_lapsed_job_with_no_attempts_left_becomes_dead_and_is_not_run_again(make_queue, table):
    queue = make_queue(max_attempts=2)
    number = queue.enqueue("mail")
    queue.claim()
    table.lapse(number)
    assert ids(queue.claim()) == [number]
    table.lapse(number)
    assert queue.claim() == []
    row = queue.get(number)
    assert (row.status, row.attempts) == (JobStatus.DEAD, 2)
    assert table.row(number).ended_ago == about(0)
    (error,) = row.errors
    assert (error["type"], error["attempt"]) == ("django_workqueue.exceptions.LeaseLapsed", 2)
    assert error["message"] == "the lease lapsed during the last attempt"
    assert error["worker"] == row.worker_ids[-1]
    assert row.last_error == "LeaseLapsed: the lease lapsed during the last attempt"


def test_a_lapsed_last_attempt_that_never_started_gets_its_attempt_back(make_queue, table, own):
    """A worker's claims are no starts: those are marked one by one, just before."""
    queue = make_queue(max_attempts=1)
    started, unstarted = queue.enqueue_many("mail", range(2))
    source = queue.source
    claim = source.claim_on(own, 10, MINUTE, ["mail"])
    assert [job.attempts for job in claim.works] == [1, 1]
    assert source.start_on(own, claim.works[:1]) == claim.works[:1]
    table.lapse(started, unstarted)
    (job,) = queue.claim()
    assert (job.id, job.attempts, job.reclaimed) == (unstarted, 1, True)
    assert queue.get(started).status == JobStatus.DEAD


def test_a_start_is_refused_to_whom_the_lease_is_no_longer(queue, table, own):
    number = queue.enqueue("mail", max_attempts=1)
    source = queue.source
    (late,) = source.claim_on(own, 10, MINUTE, ["mail"]).works
    table.lapse(number)
    (job,) = source.claim_on(own, 10, MINUTE, ["mail"]).works
    assert source.start_on(own, [late]) == []
    assert source.start_on(own, [job]) == [job]
    assert queue.cancel(number) == 1
    assert source.start_on(own, [job]) == []


def test_worker_ids_grow_only_with_a_counted_start(make_queue, table, own):
    queue = make_queue(max_attempts=2)
    number = queue.enqueue("mail")
    source = queue.source

    def workers():
        return len(queue.get(number).worker_ids)

    def settle(verb, error=None):
        (work,) = source.claim_on(own, 10, MINUTE, ["mail"]).works
        return source.settle_on(own, [Outcome(work, verb, NOW, error)])

    settle(Verb.RETURN)  # a stop gave it back before it started
    assert workers() == 0
    settle(Verb.SNOOZE)
    assert workers() == 0
    settle(Verb.FAIL, ValueError())
    assert workers() == 1
    (work,) = source.claim_on(own, 10, MINUTE, ["mail"]).works
    source.start_on(own, [work])
    assert workers() == 2
    source.start_on(own, [work])  # the answer to the first was lost
    assert workers() == 2
    source.settle_on(own, [Outcome(work, Verb.RETURN)])  # a deploy gave it back after all
    assert workers() == 1
    (job,) = queue.claim()
    assert (job.attempts, workers()) == (2, 2)
    queue.complete(job)
    assert workers() == 2
    assert len(set(queue.get(number).worker_ids)) == 1  # one process was it all


@pytest.mark.parametrize("dear", [False, True])
def test_lapsed_work_is_re_claimed_in_small_batches_and_all_of_it_at_once(queue, table, monkeypatch, dear):
    """What kills its worker takes no more than a few leases of others with it, again and again."""
    from django_workqueue import floors

    if dear:
        monkeypatch.setattr(floors, "CHEAP", -1)
        monkeypatch.setattr(floors, "CHEAP_PER_ROW", 0)
    made = [*queue.enqueue_many("mail", range(25), priority=1), *queue.enqueue_many("mail", range(20))]
    table.age(*made)
    queue.claim()
    table.lapse(*made)
    queue.source.floors._rescan_at = 0.0
    taken = []
    while jobs := queue.claim():
        assert len(jobs) <= 10
        taken += ids(jobs)
    assert taken == made


def test_fresh_work_is_claimed_beside_lapsed_work(queue, table):
    lapsed = queue.enqueue_many("mail", range(30))
    queue.claim()
    table.lapse(*lapsed)
    fresh = queue.enqueue_many("mail", range(30))
    assert ids(queue.claim()) == [*lapsed[:10], *fresh]


def test_a_payload_that_python_does_not_take_fails_its_own_job_and_no_other(queue, table, caplog):
    """Another program has put it there."""
    before, bad, after = queue.enqueue_many("mail", range(3))
    table.set("payload = ('1' || repeat('0', 5000))::jsonb", bad)
    assert ids(queue.claim()) == [before, after]
    table.set("payload = '1'", bad)  # or the test could not read it either
    row = table.row(bad)
    assert table.state(bad) == "waiting"
    assert 1 < row.due_in < 3
    assert "Exceeds the limit" in row.errors[0]["message"]
    assert f"the JSON of job {bad} does not decode" in caplog.text


# Pausing


def test_a_pause_passes_nothing_by_where_looking_from_the_beginning_is_dear(queue, table, monkeypatch):
    from django_workqueue import floors

    monkeypatch.setattr(floors, "CHEAP", -1)
    monkeypatch.setattr(floors, "CHEAP_PER_ROW", 0)
    queue.claim()
    queue.claim()
    number = queue.enqueue("mail")
    table.age(number)
    queue.source.floors._floors = {0: (1, 0)}
    queue.pause()
    assert queue.claim() == []
    queue.resume()
    assert ids(queue.claim()) == [number]


def test_a_paused_queue_hands_out_nothing_until_it_is_resumed(queue, table):
    number = queue.enqueue("mail")
    assert not queue.is_paused()
    queue.pause()
    queue.pause()
    assert queue.is_paused()
    assert queue.claim() == queue.claim(kinds=["mail"]) == []
    queue.enqueue("mail")
    queue.resume()
    assert not queue.is_paused()
    assert len(queue.claim()) == 2
    assert table.state(number) == "leased"


def test_the_twins_of_pausing_for_coroutines(queue):
    async def main():
        await queue.apause()
        paused = await queue.ais_paused()
        await queue.aresume()
        return paused, await queue.ais_paused()

    assert async_to_sync(main)() == (True, False)


# Extending


def test_extend_lets_leases_end_no_sooner_and_never_shortens(queue, table):
    number = queue.enqueue("mail")
    jobs = queue.claim()
    assert queue.extend(*jobs, lease=HOUR) == jobs
    assert table.row(number).lease_left == about(3600)
    assert queue.extend(*jobs, lease=MINUTE) == jobs
    assert table.row(number).lease_left == about(3600)
    assert async_to_sync(queue.aextend)(*jobs, lease=2 * HOUR) == jobs
    assert table.row(number).lease_left == about(7200)


def test_extend_reports_only_what_is_still_held(queue, table):
    made = queue.enqueue_many("mail", range(5))
    completed, cancelled, lapsed, retaken, held = jobs = queue.claim()
    queue.complete(completed)
    queue.cancel(cancelled.id)
    table.lapse(retaken.id)
    queue.claim()
    table.lapse(lapsed.id)
    assert queue.extend(*jobs, lease=HOUR) == [lapsed, held]  # nobody has taken the lapsed one yet
    assert table.state(made[2]) == "leased"
    assert queue.extend(lease=HOUR) == []


@pytest.mark.parametrize("lease", [NOW, -MINUTE])
def test_an_extension_of_no_length_raises(queue, lease):
    with pytest.raises(ValueError, match="lease is positive"):
        queue.extend(lease=lease)


# What was claimed elsewhere


def test_only_jobs_claimed_from_this_queue_can_be_settled(queue, make_queue, name):
    other = make_queue(name=f"{name}, another")
    other.enqueue("mail")
    (job,) = other.claim()
    for call in (queue.complete, lambda job: queue.fail(job, ValueError()), lambda job: queue.extend(job, lease=HOUR)):
        with pytest.raises(ValueError, match=r"was claimed from queue '.*, another', not from"):
            call(job)
        for what in (job.id, None, "1"):
            with pytest.raises(TypeError, match="expected jobs that were claimed"):
                call(what)
    with pytest.raises(TypeError, match="error is an exception, not 'no'"):
        other.fail(job, "no")
    assert other.complete(job) == 1


def test_what_a_job_leaves_out_until_asked_is_there_like_the_rest(make_queue):
    queue = make_queue()
    queue.enqueue("mail", 1)
    (job,) = queue.claim()
    assert "run_at" not in job.__dict__
    assert job.run_at == job.enqueued_at
    assert abs((timezone.now() - job.run_at).total_seconds()) < 60
    assert (job.metadata, job.last_error, job.reclaimed) == ({}, None, False)
    assert copy.copy(job) == pickle.loads(pickle.dumps(job)) == job
    assert dataclasses.replace(job, attempts=2).run_at == job.run_at
    with pytest.raises(AttributeError, match="'Job' object has no attribute 'nothing'"):
        job.nothing  # noqa: B018
