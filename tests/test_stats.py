"""What a queue holds, by state: exact counts, and what a bounded look tells of a queue that is too large for them."""

import copy
import dataclasses
import itertools
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytest
from django.db import OperationalError, connection, transaction
from django.test.utils import CaptureQueriesContext

from django_workqueue import JobQueue, Queue, stats
from django_workqueue.database import CANCELLED, brief, sqlstate
from django_workqueue.models import WorkItem, WorkJob

pytestmark = pytest.mark.django_db

QUEUE = "counted"
MAX_ATTEMPTS = 3
NOTHING = stats.QueueStats(0, 0, 0, 0, 0, 0, timedelta(0))

# The columns of an item; what it counts as; and what as, once it was asked for at once, or for an hour from now.
ITEMS = {
    "absent": (None, "nothing", "ready", "scheduled"),
    "ready": ({}, "ready", "ready", "ready"),
    "scheduled": ({"available_at": "{now} + interval '2 hours'"}, "scheduled", "ready", "scheduled"),
    "waiting with more attempts than there are now": ({"attempts": "7"}, "ready", "ready", "ready"),
    "leased": ({"attempts": "1", "lease_until": "{now} + interval '1 hour'"}, "leased", "leased", "leased"),
    "leased at last": ({"attempts": "3", "lease_until": "{now} + interval '1 hour'"}, "leased", "leased", "leased"),
    "lapsed": ({"attempts": "1", "lease_until": "{now} - interval '1 second'"}, "ready", "ready", "ready"),
    "lapsed at last": ({"attempts": "3", "lease_until": "{now} - interval '1 second'"}, "stalled", "ready", "ready"),
    "lapsed at last, but asked for since": (
        {"attempts": "3", "lease_until": "{now} - interval '1 second'", "requeue_at": "{now} + interval '1 hour'"},
        "ready",
        "ready",
        "ready",
    ),
    "stalled": ({"attempts": "3", "stalled_at": "{now}"}, "stalled", "ready", "scheduled"),
    "completed": ({"attempts": "1", "completed_at": "{now}"}, "completed", "ready", "scheduled"),
}
ASKED = {"not": [], "for now": [0], "for later": [3600], "for later and for now": [3600, 0]}
STATES = [(item, asked) for item in ITEMS for asked in ASKED]

JOBS = {
    "ready": ({}, "ready"),
    "scheduled": ({"available_at": "{now} + interval '1 hour'"}, "scheduled"),
    "leased": ({"attempts": "1", "lease_until": "{now} + interval '1 hour'"}, "leased"),
    "lapsed": ({"attempts": "1", "lease_until": "{now} - interval '1 hour'", "started_at": "{now}"}, "ready"),
    "lapsed at last, started": (
        {"attempts": "3", "lease_until": "{now} - interval '1 hour'", "started_at": "{now}"},
        "stalled",
    ),
    "lapsed at last, never started": ({"attempts": "3", "lease_until": "{now} - interval '1 hour'"}, "ready"),
    "completed": ({"outcome": "'completed'", "finished_at": "{now}"}, "completed"),
    "dead": ({"outcome": "'dead'", "finished_at": "{now}"}, "stalled"),
    "cancelled": ({"outcome": "'cancelled'", "finished_at": "{now}"}, "nothing"),
}

_prefixes = itertools.count(1)


def execute(sql: str, *params: Any) -> None:
    with connection.cursor() as cursor:
        cursor.execute(sql.replace("{now}", "statement_timestamp()"), params or None)


def setting(name: str) -> str:
    with connection.cursor() as cursor:
        cursor.execute("SELECT current_setting(%s)", [name])
        return str(cursor.fetchone()[0])


def add(
    count: int, *, queue: str = QUEUE, since: str = "3 hours", table: str = "workqueue_item", **columns: str
) -> None:
    """So many rows, available one millisecond after the other."""
    columns = {"queue": "%s", "available_at": f"{{now}} - interval '{since}' + g * interval '1 ms'"} | columns
    if table == "workqueue_job":
        columns |= {"kind": "'k'", "max_attempts": str(MAX_ATTEMPTS)}
    else:
        columns = {"key": f"'{next(_prefixes)}/' || md5(g::text)"} | columns
    names, values = ", ".join(columns), ", ".join(columns.values())
    execute(f"INSERT INTO {table} ({names}) SELECT {values} FROM generate_series(1, %s) g", queue, count)


def exact(queue: str = QUEUE, *, max_attempts: int = 0) -> stats.QueueStats:
    return stats.exact(WorkItem.objects.all(), queue, max_attempts=max_attempts)


def bounded(queue: str = QUEUE, *, max_attempts: int = 0) -> stats.QueueStats:
    return stats.bounded(WorkItem.objects.all(), queue, max_attempts=max_attempts)


def counts(found: stats.QueueStats) -> Counter[str]:
    assert found.pending == found.ready + found.scheduled
    states = ("ready", "scheduled", "leased", "stalled", "completed")
    return Counter({state: getattr(found, state) for state in states if getattr(found, state)})


def seconds(found: stats.QueueStats) -> float:
    return found.oldest_ready_age.total_seconds()


def ask(key: str, *delays: int) -> None:
    """Put the key into the inbox, as an enqueue inside a transaction does."""
    for delay in delays:
        WorkItem.objects.enqueue_later(QUEUE, [key], [0], [delay * 1_000_000], 7)


# Which state


@pytest.mark.parametrize("read", [exact, bounded])
@pytest.mark.parametrize(("item", "asked"), STATES)
def test_every_item_counts_once_and_as_what_a_fold_would_make_of_it(item, asked, read):
    columns, otherwise, at_once, later = ITEMS[item]
    if columns is not None:
        add(1, **columns | {"key": "'a'"})
    ask("a", *ASKED[asked])
    expected = otherwise if not ASKED[asked] else at_once if 0 in ASKED[asked] else later
    expected = Counter([expected] if expected != "nothing" else [])
    assert counts(read(max_attempts=MAX_ATTEMPTS)) == expected
    WorkItem.objects.fold(QUEUE, since=0, limit=10)
    assert counts(read(max_attempts=MAX_ATTEMPTS)) == expected


@pytest.mark.parametrize("read", [exact, bounded])
def test_items_of_all_states_together_are_counted_as_one_by_one(read):
    expected: Counter[str] = Counter()
    for number, (item, asked) in enumerate(STATES):
        columns, otherwise, at_once, later = ITEMS[item]
        if columns is not None:
            add(1, **columns | {"key": f"'k{number}'"})
        ask(f"k{number}", *ASKED[asked])
        expected[otherwise if not ASKED[asked] else at_once if 0 in ASKED[asked] else later] += 1
    del expected["nothing"]
    assert counts(read(max_attempts=MAX_ATTEMPTS)) == expected


@pytest.mark.parametrize("read", [stats.exact, stats.bounded])
@pytest.mark.parametrize("job", JOBS)
def test_every_job_counts_once(job, read):
    columns, state = JOBS[job]
    add(1, table="workqueue_job", **columns)
    expected = Counter([state] if state != "nothing" else [])
    assert counts(read(WorkJob.objects.all(), QUEUE)) == expected


@pytest.mark.parametrize("read", [exact, bounded])
def test_without_a_limit_of_attempts_nothing_is_spent(read):
    add(1, attempts="9", lease_until="{now} - interval '1 second'")
    assert counts(read()) == Counter(ready=1)


@pytest.mark.parametrize("read", [exact, bounded])
def test_a_queue_that_nobody_knows_holds_nothing(read):
    add(3, queue="another")
    assert read("never heard of") == NOTHING


@pytest.mark.parametrize("read", [exact, bounded])
def test_ready_is_what_a_claim_hands_out(read):
    for columns, *_ in ITEMS.values():
        if columns is not None:
            add(2, **columns)
    ready = read(max_attempts=MAX_ATTEMPTS).ready
    assert len(Queue(QUEUE, max_attempts=MAX_ATTEMPTS).claim()) == ready


@pytest.mark.parametrize("read", [exact, bounded])
def test_what_the_open_transaction_enqueued_is_counted(read):
    queue = Queue(QUEUE)
    with transaction.atomic():
        queue.enqueue("a", "b", delay=timedelta(hours=1))
        queue.enqueue("b", "c")
        assert counts(read()) == Counter(ready=2, scheduled=1)
        transaction.set_rollback(True)
    assert read() == NOTHING


# How old


@pytest.mark.parametrize("read", [exact, bounded])
def test_the_oldest_age_is_that_of_the_ready_item_due_for_longest(read):
    add(1, available_at="{now} - interval '40 seconds'", priority="9")
    add(1, available_at="{now} - interval '90 seconds'", priority="-9")
    add(1, available_at="{now} - interval '2 hours'", lease_until="{now} + interval '1 hour'")
    add(1, available_at="{now} - interval '2 hours'", completed_at="{now}")
    add(1, available_at="{now} + interval '2 hours'")
    assert seconds(read()) == pytest.approx(90, abs=20)


@pytest.mark.parametrize("read", [exact, bounded])
def test_a_lapsed_item_has_been_waiting_since_its_lease_lapsed(read):
    add(1, available_at="{now} - interval '2 hours'", lease_until="{now} - interval '60 seconds'")
    assert seconds(read()) == pytest.approx(60, abs=20)


@pytest.mark.parametrize("read", [exact, bounded])
def test_an_entry_of_the_inbox_has_been_waiting_since_it_was_asked_for(read):
    ask("a", 0)
    execute("UPDATE workqueue_inbox SET available_at = {now} - interval '60 seconds'")
    assert seconds(read()) == pytest.approx(60, abs=20)


@pytest.mark.parametrize("read", [exact, bounded])
def test_without_a_ready_item_the_age_is_zero(read):
    add(1, available_at="{now} + interval '2 hours'")
    add(1, lease_until="{now} + interval '1 hour'")
    assert read().oldest_ready_age == timedelta(0)


# A bounded look: what it tells


@pytest.fixture
def shortsighted(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bounded look sees a hundredth of what it usually does, so that a test's queue is too large for it."""
    for name, value in {"EXACT_TO": 100, "NEAR": 300, "FRONT": 30, "BACK": 10, "PAGES": 40}.items():
        assert getattr(stats, name) >= value * 20
        monkeypatch.setattr(stats, name, value)


@contextmanager
def sampling() -> Iterator[None]:
    """A block in which a sample is taken. An estimate alone does not tell: it can come out right to the row."""
    with CaptureQueriesContext(connection) as sent:
        yield
    assert any("TABLESAMPLE" in query["sql"] for query in sent.captured_queries), "nothing was estimated"


@pytest.fixture(autouse=True)
def fresh_tables(db: None) -> None:
    """Tables as large as what the test puts into them: what other tests rolled back stays in their files."""
    execute("TRUNCATE workqueue_item, workqueue_job, workqueue_inbox")


CROWDS: dict[str, Callable[[int], None]] = {
    "ready": add,
    "leased": lambda count: add(count, lease_until="{now} + interval '1 hour'"),
    "scheduled": lambda count: add(count, since="-3 hours", priority="5"),
    "completed": lambda count: add(count, completed_at="{now}"),
    "stalled": lambda count: add(count, stalled_at="{now}"),
    "of other queues": lambda count: add(count, queue="another"),
}
FEW: dict[str, Callable[[], None]] = {
    "ready": lambda: add(8, since="1 hour"),
    "leased": lambda: add(25, since="5 hours", lease_until="{now} + interval '1 hour'"),
    "scheduled": lambda: add(60, since="-5 hours"),
    "stalled": lambda: add(60, stalled_at="{now}"),
    "completed": lambda: add(60, completed_at="{now}"),
}


@pytest.mark.parametrize(("few", "crowd"), [(few, crowd) for few in FEW for crowd in CROWDS if few != crowd])
def test_few_are_counted_exactly_beside_many_others(few, crowd, shortsighted):
    CROWDS[crowd](3000)
    FEW[few]()
    assert counts(bounded())[few] == counts(exact())[few]


@pytest.mark.parametrize("crowd", ["scheduled", "completed", "stalled", "of other queues"])
def test_ready_items_of_several_priorities_are_counted_exactly_beside_many_that_are_not(crowd, shortsighted):
    CROWDS[crowd](3000)
    add(90, since="1 hour", priority="CASE WHEN g < 80 THEN 9 ELSE g END")
    assert counts(bounded())["ready"] == 90


@pytest.mark.parametrize("crowd", ["ready", "leased", "scheduled", "completed", "stalled"])
def test_many_are_estimated(crowd, shortsighted):
    CROWDS[crowd](6000)
    CROWDS["of other queues"](2000)
    with sampling():
        found = counts(bounded())
    assert found == {crowd: pytest.approx(6000, rel=0.5)}  # from some 40 pages, 15 % more or less: 3 deviations


def test_what_is_mixed_is_estimated_state_by_state(shortsighted):
    for add_some in CROWDS.values():
        add_some(3000)
    found, there = counts(bounded()), counts(exact())
    assert set(found) == set(there)
    for state in there:
        assert found[state] == pytest.approx(there[state], rel=0.7)


def test_a_table_of_few_pages_is_counted_exactly_whatever_it_holds(monkeypatch):
    monkeypatch.setattr(stats, "EXACT_TO", 10)
    for add_some in CROWDS.values():
        add_some(300)
    assert counts(bounded()) == counts(exact())


def test_what_was_looked_at_briefly_is_not_undone_in_a_hurry():
    """Or it could be given up half-way, and the caller's transaction with it."""
    undone = []

    def watch(execute, sql, params, many, context):
        if sql.startswith("ROLLBACK"):
            with context["cursor"].connection.cursor() as cursor:
                undone.append(cursor.execute("SHOW statement_timeout").fetchone()[0])
        return execute(sql, params, many, context)

    before = setting("statement_timeout")
    with connection.execute_wrapper(watch), brief("default", timedelta(seconds=7)):
        assert setting("statement_timeout") == "7s"
    assert undone == ["0"]
    assert setting("statement_timeout") == before


def test_time_that_is_up_when_all_was_seen_costs_the_look_and_nothing_else():
    def dawdle(execute, sql, params, many, context):
        return execute("SELECT pg_sleep(9)" if sql.startswith("SET LOCAL") else sql, params, many, context)

    look = brief("default", timedelta(milliseconds=20))
    with pytest.raises(OperationalError) as refused, connection.execute_wrapper(dawdle), look:
        pass
    assert sqlstate(refused.value) == CANCELLED
    assert setting("server_version_num")  # the caller's transaction goes on


def test_an_estimate_is_never_less_than_what_was_seen(shortsighted, monkeypatch):
    monkeypatch.setattr(stats, "PAGES", 1)
    CROWDS["completed"](3000)
    add(101, since="5 minutes")
    found = bounded()
    assert found.ready >= 101
    assert found.completed >= 101


def test_more_priorities_than_can_be_looked_at_one_by_one_are_estimated_together(shortsighted, monkeypatch):
    monkeypatch.setattr(stats, "RANKS", 8)
    add(3000, priority="g %% 50")
    assert bounded().ready == pytest.approx(3000, rel=0.35)


def test_a_large_inbox_is_estimated(shortsighted):
    execute(
        "INSERT INTO workqueue_inbox (queue, key, priority, available_at, tx)"
        " SELECT 'counted', md5(g::text), 0, {now}, 7 FROM generate_series(1, 9000) g"
    )
    with sampling():
        found = bounded()
    assert found.ready == pytest.approx(9000, rel=0.35)


def test_the_oldest_age_is_found_at_each_priority_beside_many_others(shortsighted):
    CROWDS["ready"](3000)
    CROWDS["scheduled"](3000)
    add(1, since="30 hours", priority="-4")
    assert seconds(bounded()) == pytest.approx(30 * 3600, rel=0.01)


def test_the_oldest_age_is_found_behind_many_leases(shortsighted):
    CROWDS["leased"](3000)
    add(5, since="1 hour")
    assert seconds(bounded()) == pytest.approx(3600, rel=0.05)


def test_an_estimated_age_is_never_too_high(shortsighted):
    CROWDS["leased"](3000)
    add(3000, since="1 hour")
    assert 0 < seconds(bounded()) <= seconds(exact()) + 10


def test_the_same_queue_is_estimated_the_same_way_twice(shortsighted):
    CROWDS["ready"](3000)
    assert counts(bounded()) == counts(bounded())


def test_jobs_are_estimated_as_items_are(shortsighted):
    add(3000, table="workqueue_job")
    add(3000, table="workqueue_job", outcome="'dead'", finished_at="{now}")
    add(20, table="workqueue_job", since="5 hours", lease_until="{now} + interval '1 hour'", attempts="1")
    found = stats.bounded(WorkJob.objects.all(), QUEUE)
    assert found.leased == 20
    assert found.ready == pytest.approx(3000, rel=0.35)
    assert found.stalled == pytest.approx(3000, rel=0.35)


def test_jobs_whose_states_alternate_with_their_ids_are_estimated_as_well(shortsighted):
    """As a request that enqueues four jobs, of which one is bound to die, makes them."""
    fourth = "CASE WHEN mod(g, 4) = 0 THEN"
    add(6000, table="workqueue_job", outcome=f"{fourth} 'dead' END", finished_at=f"{fourth} {{now}} END")
    found = stats.bounded(WorkJob.objects.all(), QUEUE)
    assert found.stalled == pytest.approx(1500, rel=0.5)
    assert found.ready == pytest.approx(4500, rel=0.35)


# A bounded look: what it costs


class Costs:
    """What statements touch, as EXPLAIN has it."""

    def __init__(self) -> None:
        self.rows = 0
        self.pages = 0
        self.statements = 0

    def __call__(self, run: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        if "workqueue_" in sql:
            run(f"EXPLAIN (ANALYZE, BUFFERS, TIMING OFF, FORMAT JSON) {sql}", params, many, context)
            plan = context["cursor"].fetchone()[0][0]["Plan"]
            self.statements += 1
            self.pages += plan["Shared Hit Blocks"] + plan["Shared Read Blocks"]
            self._add_rows(plan)
        return run(sql, params, many, context)

    def _add_rows(self, plan: dict[str, Any]) -> None:
        if "Relation Name" in plan:
            passed = plan["Actual Rows"] + plan.get("Rows Removed by Filter", 0)
            self.rows += round(passed * plan["Actual Loops"])
        for child in plan.get("Plans", []):
            self._add_rows(child)


@contextmanager
def costs() -> Iterator[Costs]:
    counted = Costs()
    with connection.execute_wrapper(counted):
        yield counted


def crowd_of_inbox(count: int) -> None:
    execute(
        "INSERT INTO workqueue_inbox (queue, key, priority, available_at, tx)"
        " SELECT 'counted', md5(g::text), 0, {now}, 7 FROM generate_series(1, %s) g",
        count,
    )


@pytest.mark.parametrize("crowd", [*CROWDS, "in the inbox", "mixed"])
def test_a_look_touches_a_bounded_number_of_rows_and_pages(crowd, shortsighted):
    ways = {"in the inbox": [crowd_of_inbox], "mixed": [*CROWDS.values(), crowd_of_inbox]}
    for add_some in ways.get(crowd) or [CROWDS[crowd]]:
        add_some(12_000)
    add(50, since="10 minutes")
    with costs() as counted:
        bounded()
    assert counted.statements <= 6
    # 101 of each kind, 30 and 10 at the ends, and what stands on 40 pages of items and of the inbox.
    assert counted.rows <= 6 * 101 + 40 + 40 * 40 + 40 * 100
    assert counted.pages <= 2_000
    with costs() as counted:
        exact()
    assert counted.rows >= (12_000 if crowd != "of other queues" else 50), "this is no crowd"


# Where counting takes too long


@pytest.fixture
def counting_never_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """The statement that counts is given up, as it is behind a million entries of rows that are gone."""
    never = copy.copy(stats.sql.ITEMS.count)
    never.text = "SELECT pg_sleep(600)"
    monkeypatch.setattr(stats.sql, "ITEMS", dataclasses.replace(stats.sql.ITEMS, count=never))
    monkeypatch.setattr(stats, "PATIENCE", timedelta(milliseconds=50))


def test_what_takes_too_long_to_count_is_estimated(counting_never_ends, monkeypatch):
    monkeypatch.setattr(stats, "PAGES", 100)
    for add_some in CROWDS.values():
        add_some(3000)
    found, there = counts(bounded()), counts(exact())
    for state in there:
        assert found[state] == pytest.approx(there[state], rel=0.7)


def test_what_is_given_up_leaves_the_callers_transaction_as_it_was(counting_never_ends):
    def setting(name: str) -> str:
        with connection.cursor() as cursor:
            cursor.execute(f"SHOW {name}")
            return cursor.fetchone()[0]

    with transaction.atomic():
        add(3)
        before = [setting(name) for name in ("statement_timeout", "jit", "enable_sort")]
        assert bounded().ready == 3
        assert [setting(name) for name in ("statement_timeout", "jit", "enable_sort")] == before
    assert exact().ready == 3


@pytest.mark.django_db(transaction=True)
def test_a_look_outside_a_transaction_leaves_none_open():
    add(3)
    assert bounded().ready == 3
    assert connection.get_autocommit()
    assert not connection.in_atomic_block


@pytest.mark.django_db(transaction=True)
def test_a_look_on_a_connection_of_our_own_tells_the_same():
    from django_workqueue.database import Connection

    add(3)
    own = Connection("default", application="test_stats")
    try:
        assert counts(stats.bounded(WorkItem.objects.all().on(own), QUEUE)) == Counter(ready=3)
    finally:
        own.close()


@pytest.mark.parametrize("name", ["plain", "it's", 'quo"te', "back\\slash", "ünï", "per%cent", "brace{Q}"])
def test_the_partition_of_a_queue_is_found_by_its_name(name):
    add(50)
    with connection.cursor() as cursor:
        cursor.execute("CREATE TABLE workqueue_item_own PARTITION OF workqueue_item FOR VALUES IN (%s)", [name])
        assert WorkItem.objects.all().send(stats.sql.ITEMS.pages, name, {}) == [(0,)]
        cursor.execute("INSERT INTO workqueue_item (queue, key) SELECT %s, g FROM generate_series(1, 200) g", [name])
        assert WorkItem.objects.all().send(stats.sql.ITEMS.pages, name, {})[0][0] > 0
    assert counts(bounded(name)) == Counter(ready=200)


# The faces


def test_both_faces_tell_exactly_or_at_a_bounded_cost(shortsighted):
    items, jobs = Queue(QUEUE), JobQueue("jobs")
    add(3000)
    add(3000, table="workqueue_job", queue="jobs")
    for queue in (items, jobs):
        assert queue.stats().ready == 3000
        with sampling():
            assert queue.stats(exact=False).ready == pytest.approx(3000, rel=0.35)
