"""Random sequences, from several connections, against a model of the promises; and merging, proven equal."""

import contextlib
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import psycopg
import pytest
from django.db import connections, transaction
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from django_workqueue import Entry, Queue
from django_workqueue.keyed import merged
from django_workqueue.lanes import due_after
from django_workqueue.sql import items as sql
from tests import conftest as house
from tests.keyed.model import Model
from tests.keyed.table import Table

HOUR = timedelta(hours=1)
KEYS = list("abcdef")

some_keys = st.lists(st.sampled_from(KEYS), min_size=1, max_size=4)
entries = st.lists(st.tuples(st.sampled_from(KEYS), st.integers(-2, 2), st.integers(0, 2)), min_size=1, max_size=5)


class Session:
    """A thread with a Django connection of its own, and perhaps an open transaction with savepoints."""

    def __init__(self, number):
        self.thread = ThreadPoolExecutor(1, thread_name_prefix=f"session-{number}")
        self.blocks = []
        self.enqueued = []  # for each block, what was enqueued in it

    def run(self, call, *args, **kwargs):
        return self.thread.submit(call, *args, **kwargs).result(30)

    def begin(self):
        block = transaction.atomic()
        self.run(block.__enter__)
        self.blocks.append(block)
        self.enqueued.append([])

    def end(self, *, undo):
        """Leave the innermost block; what became durable by that."""
        block, enqueued = self.blocks.pop(), self.enqueued.pop()
        if undo:
            error = RuntimeError()
            self.run(block.__exit__, RuntimeError, error, None)
            return []
        self.run(block.__exit__, None, None, None)
        if self.enqueued:
            self.enqueued[-1] += enqueued
            return []
        return enqueued

    def close(self):
        while self.blocks:
            self.end(undo=True)
        self.run(connections.close_all)
        self.thread.shutdown()


class Machine(RuleBasedStateMachine):
    """The queue and its model, step by step."""

    numbers = iter(range(10**9))
    max_attempts = 0
    retention = HOUR

    def __init__(self):
        super().__init__()
        number = next(self.numbers)
        self.name = f"property {self.max_attempts} {self.retention} {number}"
        self.queue = Queue(self.name, max_attempts=self.max_attempts, retention=self.retention)
        self.model = Model(self.max_attempts, keeps=bool(self.retention))
        self.sessions = [Session(each) for each in range(2)]
        self.holder = psycopg.connect(house.database_url())
        self.table = Table(psycopg.connect(house.database_url(), autocommit=True), self.name)
        self.claimed = []  # items ever claimed: live ones, stale ones, settled ones

    def teardown(self):
        self.holder.rollback()
        self.model.held.clear()
        for session in self.sessions:
            session.close()
        with contextlib.ExitStack() as closing:
            closing.callback(connections.close_all)
            closing.callback(self.table.connection.close)
            closing.callback(self.table.clear)
            closing.callback(self.holder.close)
            self.drain()

    def drain(self):
        """Nothing that was acknowledged and not removed is left without a run that started after it."""
        for _ in range(4):
            self.lapse_everything()
            while claimed := self.queue.claim():
                self.take(claimed, limit=500)
                self.queue.complete(*claimed)
                for item in claimed:
                    self.model.complete(item.key, item._fence)
            self.pass_hour()
        assert self.model.forgotten() == set()
        assert self.table.inbox() == []

    def lapse_everything(self):
        leased = [key for key, item in self.model.items.items() if item.state == "leased"]
        self.table.lapse(*leased)
        for key in leased:
            self.model.lapse(key)

    @invariant()
    def the_table_is_as_the_model_says(self):
        assert self.table.stored() == sorted(self.model.items)
        assert sorted(self.table.inbox()) == sorted(self.inbox_keys())
        for key, item in self.model.items.items():
            row = self.table.row(key)
            state = "lapsed" if item.state == "leased" and item.lapsed else item.state
            assert self.table.state(key) == state
            assert (row.priority, row.attempts, row.last_error) == (item.priority, item.attempts, item.error)
            assert row.lease_token == (item.token.token if item.token else 0)
            assert hours(row.again_in) == item.again
            if item.state == "waiting":
                assert hours(row.due_in) == item.due

    def inbox_keys(self):
        """One entry a call and key: calls that repeat a key are merged on their way in."""
        return [key for key, _, _ in self.model.inbox]

    # producing

    @rule(entries=entries)
    def enqueue(self, entries):
        self.queue.enqueue_many(as_entries(entries))
        self.model.enqueue(merged_entries(entries))

    @rule(session=st.integers(0, 1), entries=entries)
    def enqueue_from_a_session(self, session, entries):
        session = self.sessions[session]
        session.run(self.queue.enqueue_many, as_entries(entries))
        if session.blocks:
            session.enqueued[-1] += merged_entries(entries)
        else:
            self.model.enqueue(merged_entries(entries))

    @rule(session=st.integers(0, 1))
    def begin(self, session):
        if len(self.sessions[session].blocks) < 3:
            self.sessions[session].begin()

    @rule(session=st.integers(0, 1), undo=st.booleans())
    def end(self, session, undo):
        if self.sessions[session].blocks:
            self.model.commit(self.sessions[session].end(undo=undo))

    # consuming

    @rule(limit=st.integers(1, 7), session=st.sampled_from([None, 0, 1]))
    def claim(self, limit, session):
        session = None if session is None else self.sessions[session]
        if session is None or session.blocks:
            claimed = self.queue.claim(limit, HOUR)
        else:
            claimed = session.run(self.queue.claim, limit, HOUR)
        self.take(claimed, limit)

    def take(self, claimed, limit):
        """The claim handed out the first of what it could have, in order."""
        due = self.model.claimable()
        keys = [item.key for item in claimed]
        assert len(keys) == len(set(keys)) == min(limit, len(due))
        assert set(keys) <= due
        order = [self.model.items[key].priority for key in keys]
        assert order == sorted(order, reverse=True)
        left = [self.model.items[key].priority for key in due - set(keys)]
        assert not left or not order or max(left) <= order[-1]
        token = claimed[0]._fence if claimed else None
        told = self.model.claim(keys, token, full=len(keys) == limit)
        assert {item.key: (item.priority, item.attempts, item.reclaimed) for item in claimed} == told
        self.claimed += claimed

    def some_claimed(self, data):
        """Items to settle, stale ones among them, but none that would wait for the holder."""
        able = [item for item in self.claimed if item.key not in self.model.held]
        return data.draw(st.lists(st.sampled_from(able), max_size=4, unique_by=id)) if able else []

    @precondition(lambda self: self.claimed)
    @rule(data=st.data())
    def complete(self, data):
        chosen = self.some_claimed(data)
        done = self.queue.complete(*chosen)
        assert done == sum(self.model.complete(item.key, item._fence) for item in chosen)

    @precondition(lambda self: self.claimed)
    @rule(data=st.data(), delay=st.integers(0, 2), error=st.sampled_from([None, "no"]))
    def release(self, data, delay, error):
        chosen = self.some_claimed(data)
        done = self.queue.release(*chosen, delay=delay * HOUR, error=error)
        assert done == sum(self.model.release(item.key, item._fence, delay=delay, error=error) for item in chosen)

    @precondition(lambda self: self.claimed)
    @rule(data=st.data())
    def extend(self, data):
        chosen = self.some_claimed(data)
        kept = self.queue.extend(*chosen, lease=HOUR)
        assert kept == [item for item in chosen if self.model.extend(item.key, item._fence)]

    @rule(keys=some_keys, verb=st.sampled_from(["complete", "release", "remove"]))
    def by_key(self, keys, verb):
        keys = [key for key in keys if key not in self.model.held]
        done = getattr(self.queue, verb)(*keys)
        assert done == sum(getattr(self.model, verb)(key) for key in set(keys))

    @rule()
    def reap(self):
        assert self.queue.reap() == self.model.reap()

    # strangers and time

    @rule(keys=some_keys)
    def hold(self, keys):
        """Somebody's open transaction locks rows."""
        self.holder.execute(
            "SELECT FROM workqueue_item WHERE queue = %s AND key = ANY (%s) FOR UPDATE", [self.name, keys]
        )
        self.model.held |= set(keys) & set(self.model.items)

    @rule()
    def let_go(self):
        self.holder.rollback()
        self.model.held.clear()

    @rule(keys=some_keys)
    def lapse(self, keys):
        leased = [key for key in keys if self.model.leased(key, None) and key not in self.model.held]
        self.table.lapse(*leased)
        for key in leased:
            self.model.lapse(key)

    @precondition(lambda self: not self.model.held)
    @rule()
    def pass_hour(self):
        self.table.age(*self.table.stored(), seconds=3600)
        self.table.connection.execute(
            "UPDATE workqueue_inbox SET available_at = available_at - interval '1 hour' WHERE queue = %s", [self.name]
        )
        self.model.pass_hour()


def hours(seconds):
    """Whole hours from now; what is due already counts as now."""
    return None if seconds is None else max(round(seconds / 3600), 0)


def as_entries(entries):
    return [Entry(key, priority, due * HOUR) for key, priority, due in entries]


def merged_entries(entries):
    """A call's entries as one for each key: the louder priority, the earlier time."""
    merged = {}
    for key, priority, due in entries:
        known = merged.get(key, (priority, due))
        merged[key] = (max(known[0], priority), min(known[1], due))
    return [(key, priority, due) for key, (priority, due) in sorted(merged.items())]


@pytest.mark.parametrize(("max_attempts", "retention"), [(0, HOUR), (2, timedelta(0)), (1, HOUR)])
def test_random_sequences_of_calls_do_what_the_model_says(db, max_attempts, retention):
    machine = type("Machine", (Machine,), {"max_attempts": max_attempts, "retention": retention})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=25,
            stateful_step_count=30,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            phases=[Phase.generate],  # to make a failure smaller takes minutes, and thirty steps can be read
        ),
    )


# Merging


START = {
    "absent": None,
    "waiting": "priority 1",
    "scheduled": "priority 1, available_at {later}",
    "leased": "priority 1, lease_until {later}, lease_token 7, attempts 1",
    "leased and asked for again": "priority 1, lease_until {later}, lease_token 7, attempts 1, requeue_at {later}",
    "leased and asked for at once": "priority 1, lease_until {later}, lease_token 7, attempts 1, requeue_at {before}",
    "lapsed": "priority 1, lease_until {before}, lease_token 7, attempts 3",
    "completed": "priority 1, completed_at {before}, attempts 2",
    "stalled": "priority 1, stalled_at {before}, attempts 2, last_error 'no'",
}
waiting_entries = st.lists(
    st.tuples(st.sampled_from(list(START)), st.integers(-2, 3), st.sampled_from([0, 600, 3600, 90_000])),
    min_size=1,
    max_size=12,
)


@given(entries=waiting_entries)
@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
def test_merging_inside_a_batch_and_merging_against_the_table_give_the_same_rows(connect_once, entries):
    """The keys are named after the state they start in. One statement a message: all of a message share its time."""
    together, one_by_one = Table(connect_once, "merged together"), Table(connect_once, "merged one by one")
    for table in (together, one_by_one):
        table.clear()
        begin(table)
    now = send(
        together, [merged([(key, priority, due_after(timedelta(seconds=delay))) for key, priority, delay in entries])]
    )
    expected = rows(together, now)
    now = send(one_by_one, [([key], [priority], [delay * 1_000_000]) for key, priority, delay in entries])
    assert rows(one_by_one, now) == expected


@pytest.fixture
def connect_once(db):
    with psycopg.connect(house.database_url(), autocommit=True, cursor_factory=psycopg.ClientCursor) as connection:
        yield connection
        for queue in ("merged together", "merged one by one"):
            Table(connection, queue).clear()


def begin(table):
    """The rows that are there."""
    times = {"later": "timestamptz '2100-01-01'", "before": "timestamptz '2020-01-01'"}
    for key, start in START.items():
        if start is None:
            continue
        columns = dict(each.split(" ", 1) for each in start.format(**times).split(", "))
        columns = {"available_at": "timestamptz '2020-02-02'", "enqueued_at": "timestamptz '2020-02-02'"} | columns
        table.connection.execute(
            f"INSERT INTO workqueue_item (queue, key, {', '.join(columns)})"
            f" VALUES (%s, %s, {', '.join(columns.values())})",
            [table.queue, key],
        )


def send(table, batches):
    """One message with an enqueue for each batch; its time."""
    cursor = psycopg.ClientCursor(table.connection)
    texts = [
        cursor.mogrify(
            sql.ENQUEUE.of(table.queue),
            dict(zip(("keys", "priorities", "delays"), map(list, batch), strict=True)),
        )
        for batch in batches
    ]
    cursor.execute("; ".join([*texts, "SELECT statement_timestamp()"]).replace("%", "%%"), {})
    while cursor.nextset():
        pass
    return cursor.fetchone()[0]


def rows(table, now):
    """The rows, their times from `now` where they are not those of the beginning."""
    found = {}
    for key in table.stored():
        row = vars(table.row(key))
        found[key] = {
            name: round((value - now).total_seconds()) if value and 2020 < value.year < 2100 else value
            for name, value in row.items()
            if name.endswith(("_at", "_until"))
        } | {name: row[name] for name in ("priority", "attempts", "lease_token", "last_error")}
    return found
