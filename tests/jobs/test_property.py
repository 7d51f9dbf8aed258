"""Random sequences of calls on one job queue, from several connections, against a model of the promises.

Among them: exactly one terminal outcome for each job, never an attempt beyond the last, first in first out within a
priority.
"""

import contextlib
from datetime import timedelta

import psycopg
import pytest
from django.db import connections
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from django_workqueue import JobQueue, PermanentError, Retry, listed
from django_workqueue.database import Connection
from django_workqueue.engine import Outcome, Verb
from django_workqueue.leasing import apart
from tests import conftest as house
from tests.jobs.model import Job, Model
from tests.jobs.table import JobTable
from tests.keyed.test_property import Session

HOUR = timedelta(hours=1)
KINDS = ["mail", "sms"]
LAPSED_AT_ONCE = 2

options = st.fixed_dictionaries(
    {
        "kind": st.sampled_from(KINDS),
        "priority": st.integers(-1, 1),
        "hours": st.integers(0, 2),
        "count": st.integers(1, 3),
        "max_attempts": st.integers(1, 3),
    }
)
some_kinds = st.sampled_from([None, ["mail"], ["sms"], ["fax", "sms"]])


class Machine(RuleBasedStateMachine):
    """The queue and its model, step by step."""

    numbers = iter(range(10**9))
    retention = HOUR

    def __init__(self):
        super().__init__()
        self.name = f"property of jobs {self.retention} {next(self.numbers)}"
        self.queue = JobQueue(self.name, retention=self.retention)
        self.model = Model(keeps=bool(self.retention), lapsed_at_once=LAPSED_AT_ONCE)
        self.sessions = [Session(each) for each in range(2)]
        self.worker = Connection("default", application="a worker")
        self.holder = psycopg.connect(house.database_url())
        self.table = JobTable(psycopg.connect(house.database_url(), autocommit=True), self.name)
        self.claimed = []  # jobs ever claimed: live ones, stale ones, settled ones
        self.known = []  # ids ever committed

    def teardown(self):
        self.holder.rollback()
        self.model.held.clear()
        for session in self.sessions:
            session.close()
        with contextlib.ExitStack() as closing:
            closing.callback(connections.close_all)
            closing.callback(self.worker.close)
            closing.callback(self.table.connection.close)
            closing.callback(self.table.clear)
            closing.callback(self.holder.close)
            self.drain()

    def drain(self):
        """Every job comes to its end, and to one only."""
        for _ in range(4):
            leased = [number for number, job in self.model.jobs.items() if job.state == "leased"]
            self.table.lapse(*leased)
            for number in leased:
                self.model.jobs[number].lapsed = True
            while jobs := self.claim(None, limit=100):
                self.queue.complete(*jobs)
                for job in jobs:
                    self.model.complete(job.id, job._fence)
            self.pass_hour()
        outcomes = self.model.ended | {number: job.outcomes for number, job in self.model.jobs.items()}
        assert outcomes == dict.fromkeys(self.known, 1)

    @invariant()
    def the_table_is_as_the_model_says(self):
        rows = self.table.rows()
        assert set(rows) == set(self.model.jobs)
        for number, job in self.model.jobs.items():
            row = rows[number]
            assert self.table.state_of(row) == ("lapsed" if job.state == "leased" and job.lapsed else job.state)
            assert (row.kind, row.priority, row.max_attempts) == (job.kind, job.priority, job.max_attempts)
            assert (row.attempts, len(row.errors), len(row.worker_ids)) == (job.attempts, job.errors, job.workers)
            assert row.lease_token == (job.token.token if job.token else 0)
            if job.state == "leased":
                assert (row.started_at is not None) == job.started
            if job.state == "waiting":
                assert round(row.due_in / 3600) == job.due

    @invariant()
    def no_job_has_run_or_ended_too_often(self):
        for job in self.model.jobs.values():
            assert 0 <= job.runs <= job.attempts <= job.max_attempts
            assert job.outcomes == (job.state in ("completed", "dead", "cancelled"))

    # producing

    def enqueue_with(self, run, kind, priority, hours, count, max_attempts):
        tick = self.model.tick()
        delay = hours * HOUR if hours else None
        ids = run(
            self.queue.enqueue_many, kind, range(count), priority=priority, delay=delay, max_attempts=max_attempts
        )
        assert ids == sorted(set(ids))
        return [(number, Job(kind, priority, hours, tick, max_attempts)) for number in ids]

    def committed(self, made):
        self.model.add([number for number, _ in made], [job for _, job in made])
        self.known += [number for number, _ in made]

    @rule(options=options)
    def enqueue(self, options):
        self.committed(self.enqueue_with(lambda call, *args, **kwargs: call(*args, **kwargs), **options))

    @rule(session=st.integers(0, 1), options=options)
    def enqueue_from_a_session(self, session, options):
        session = self.sessions[session]
        made = self.enqueue_with(session.run, **options)
        if session.blocks:
            session.enqueued[-1] += made
        else:
            self.committed(made)

    @rule(session=st.integers(0, 1))
    def begin(self, session):
        if len(self.sessions[session].blocks) < 3:
            self.sessions[session].begin()

    @rule(session=st.integers(0, 1), undo=st.booleans())
    def end(self, session, undo):
        if self.sessions[session].blocks:
            self.committed(self.sessions[session].end(undo=undo))

    # consuming by hand

    @rule(limit=st.integers(1, 4), kinds=some_kinds, session=st.sampled_from([None, 0, 1]))
    def claim_by_hand(self, limit, kinds, session):
        session = None if session is None or self.sessions[session].blocks else self.sessions[session]
        self.claim(kinds, limit=limit, session=session)

    def claim(self, kinds, *, limit, session=None):
        call = self.queue.claim if session is None else lambda *args: session.run(self.queue.claim, *args)
        jobs = call(limit, HOUR, kinds)
        self.take(jobs, limit, kinds, mark=True)
        return jobs

    @rule(limit=st.integers(1, 7), kinds=st.sampled_from([KINDS, *([kind] for kind in KINDS)]))
    def claim_as_a_worker(self, limit, kinds):
        self.take(self.queue.source.claim_on(self.worker, limit, HOUR, kinds).works, limit, kinds, mark=False)

    def take(self, jobs, limit, kinds, *, mark):
        """The claim handed out just what it must, in order."""
        lapsed = {number for number, job in self.model.jobs.items() if job.state == "leased"}
        expected = self.model.claim(limit, kinds, mark=mark)
        assert [job.id for job in jobs] == expected
        for job in jobs:
            known = self.model.jobs[job.id]
            known.token = job._fence
            assert (job.attempts, job.priority, job.kind) == (known.attempts, known.priority, known.kind)
            assert job.reclaimed == (job.id in lapsed)
        self.claimed += jobs

    def some_claimed(self, data, most=4):
        """Jobs to settle, stale ones among them, but none that would wait for the holder."""
        able = [job for job in self.claimed if job.id not in self.model.held]
        return data.draw(st.lists(st.sampled_from(able), max_size=most, unique_by=id)) if able else []

    @precondition(lambda self: self.claimed)
    @rule(data=st.data())
    def complete(self, data):
        chosen = self.some_claimed(data)
        done = self.queue.complete(*chosen, result=1)
        assert done == sum(self.model.complete(job.id, job._fence) for job in chosen)

    @precondition(lambda self: self.claimed)
    @rule(
        data=st.data(),
        hours=st.integers(0, 2),
        error=st.sampled_from([ValueError("no"), PermanentError("never"), Retry(HOUR)]),
    )
    def fail(self, data, hours, error):
        for job in self.some_claimed(data, most=1):
            status = self.queue.fail(job, error, retry_in=hours * HOUR)
            final, counts = isinstance(error, PermanentError), not isinstance(error, Retry)
            assert status == self.model.fail(job.id, job._fence, delay=hours, final=final, counts=counts)

    @precondition(lambda self: self.claimed)
    @rule(data=st.data())
    def extend(self, data):
        chosen = self.some_claimed(data)
        kept = self.queue.extend(*chosen, lease=HOUR)
        assert kept == [job for job in chosen if self.model.extend(job.id, job._fence)]

    # consuming as a worker does

    @precondition(lambda self: self.claimed)
    @rule(data=st.data())
    def start(self, data):
        chosen = data.draw(st.lists(st.sampled_from(self.claimed), max_size=4, unique_by=lambda job: job.id))
        started = self.queue.source.start_on(self.worker, chosen)
        assert started == [job for job in chosen if self.model.start(job.id, job._fence)]

    @precondition(lambda self: self.claimed)
    @rule(data=st.data(), hours=st.integers(0, 1))
    def settle(self, data, hours):
        verbs = st.sampled_from(list(Verb))
        error = {Verb.FAIL: ValueError("no"), Verb.FINISH: PermanentError("never"), Verb.SNOOZE: Retry(HOUR)}
        outcomes = []
        for job in self.some_claimed(data):
            verb = data.draw(verbs)
            outcomes.append(Outcome(job, verb, hours * HOUR, error.get(verb)))
        settled = self.queue.source.settle_on(self.worker, outcomes)
        ends = [self.settle_model(outcome, hours) for outcome in self.in_the_order_of_settling(outcomes)]
        assert settled.completed == ends.count("completed")
        assert settled.dead == ends.count("dead")
        assert settled.lost == ends.count(None)

    def in_the_order_of_settling(self, outcomes):
        """Completions first. A statement, and so one time, for each piece that names no job twice."""
        completed = [outcome for outcome in outcomes if outcome.verb is Verb.COMPLETE]
        others = [outcome for outcome in outcomes if outcome.verb is not Verb.COMPLETE]
        for piece in (completed, *apart(others, lambda outcome: outcome.work.id)):
            tick = self.model.tick()
            for outcome in piece:
                self.model.clock = tick
                yield outcome
        self.model.tick()

    def settle_model(self, outcome, hours):
        number, token, verb = outcome.work.id, outcome.work._fence, outcome.verb
        if verb is Verb.COMPLETE:
            return "completed" if self.model.complete(number, token) else None
        counts = verb in (Verb.FAIL, Verb.FINISH)
        return self.model.fail(number, token, delay=hours, final=verb is Verb.FINISH, counts=counts)

    # by id

    @precondition(lambda self: self.known)
    @rule(data=st.data(), verb=st.sampled_from(["cancel", "retry"]))
    def by_id(self, data, verb):
        able = [number for number in self.known if number not in self.model.held]
        chosen = data.draw(st.lists(st.sampled_from(able), max_size=3)) if able else []
        self.model.tick()
        assert getattr(self.queue, verb)(*chosen) == sum(getattr(self.model, verb)(number) for number in set(chosen))

    @rule(hours=st.integers(0, 2))
    def prune(self, hours):
        assert self.queue.prune(hours * HOUR) == self.model.prune(hours)

    @rule()
    def bury(self):
        self.queue.source.table().bury(self.name, listed.LAPSED, limit=100)
        self.model.bury()

    # strangers and time

    @precondition(lambda self: self.known)
    @rule(data=st.data())
    def hold(self, data):
        """Somebody's open transaction locks rows."""
        chosen = data.draw(st.lists(st.sampled_from(self.known), max_size=3))
        self.holder.execute(
            "SELECT FROM workqueue_job WHERE queue = %s AND id = ANY (%s) FOR UPDATE", [self.name, chosen]
        )
        self.model.held |= set(chosen) & set(self.model.jobs)

    @rule()
    def let_go(self):
        self.holder.rollback()
        self.model.held.clear()

    @precondition(lambda self: self.known)
    @rule(data=st.data())
    def lapse(self, data):
        leased = [
            number for number, job in self.model.jobs.items() if job.state == "leased" and number not in self.model.held
        ]
        chosen = data.draw(st.lists(st.sampled_from(leased), max_size=3)) if leased else []
        self.table.lapse(*chosen)
        for number in chosen:
            self.model.jobs[number].lapsed = True

    @precondition(lambda self: not self.model.held)
    @rule()
    def pass_hour(self):
        self.table.age(*self.table.stored(), seconds=3600)
        self.model.pass_hour()
        for session in self.sessions:
            for block in session.enqueued:
                for number, job in block:
                    job.due -= 1
                    session.run(self.age_uncommitted, number)

    def age_uncommitted(self, number):
        self.queue.source.table().filter(queue=self.name, id=number).update(
            available_at=_an_hour_before("available_at")
        )


def _an_hour_before(column):
    from django.db.models import F

    return F(column) - HOUR


@pytest.mark.parametrize("retention", [HOUR, timedelta(0)])
def test_random_sequences_of_calls_do_what_the_model_says(db, monkeypatch, retention):
    monkeypatch.setattr(listed, "LAPSED_AT_ONCE", LAPSED_AT_ONCE)
    monkeypatch.setattr(listed, "LATE", 1e9)  # or a slow machine would stamp some anew
    machine = type("Machine", (Machine,), {"retention": retention})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=15, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck)
        ),
    )
