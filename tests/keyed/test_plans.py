"""Plans and costs that the design stands on, pinned by EXPLAIN on the real server.

Costs are counted in buffers, which a busy machine does not change. The rows that lie around are inserted by the test;
the table's statistics know nothing of them unless the test says so.
"""

import contextlib
import json
from contextlib import contextmanager
from datetime import timedelta

import psycopg
import pytest
from django.db import connection as django_connection
from django.db import connections, transaction

from django_workqueue import planner
from django_workqueue.database import BY_INDEX, Connection
from django_workqueue.floors import Floors
from django_workqueue.models import WorkItem
from django_workqueue.sql import Statement, items
from django_workqueue.sql import planner as sql_planner
from tests.keyed import parsed
from tests.keyed.table import Table

PLANNED = "workqueue_item_planned"
MANY = 20_000
SEVENTEEN = 170_000
LEASE = 60_000_000
PEOPLE = {name for name, statement in parsed.every().items() if statement.for_people}


@contextmanager
def quiet(connect, partition):
    """A connection that neither autovacuum of the partition nor an earlier test's statistics disturb."""
    connection = connect(cursor_factory=psycopg.ClientCursor)
    connection.execute(f"ALTER TABLE {partition} SET (autovacuum_enabled = off)")
    yield connection
    connection.execute(f"ALTER TABLE {partition} RESET (autovacuum_enabled)")
    connection.execute(f"VACUUM (ANALYZE, TRUNCATE OFF) {partition}")


@pytest.fixture
def session(connect, make_queue, name):
    """A connection, and a partition that nothing was in before."""
    make_queue()
    connection = connect(cursor_factory=psycopg.ClientCursor)
    connection.execute(
        f"CREATE TABLE {PLANNED} PARTITION OF workqueue_item FOR VALUES IN (%s, 'known')"
        " WITH (fillfactor = 50, autovacuum_enabled = off)",
        [name],
    )
    connection.execute(f"ALTER TABLE {PLANNED} ALTER COLUMN queue SET STATISTICS 0")
    yield connection
    connection.execute(f"DROP TABLE {PLANNED}")


@pytest.fixture
def around(session, name):
    """Fill the queue: `around(count, available_at="...", priority=0, ...)`, values as SQL; `i` counts."""

    def fill(count, **columns):
        columns = {"key": "'k' || i", "available_at": "now() - interval '1 hour'"} | columns
        session.execute(
            f"INSERT INTO workqueue_item (queue, {', '.join(columns)})"
            f" SELECT %s, {', '.join(map(str, columns.values()))} FROM generate_series(1, {count}) i",
            [name],
        )

    return fill


def explain(session, text, params=None, *, ordered=False):
    """The plan that ran, and its buffers. Rolled back."""
    with session.transaction(force_rollback=True):
        if ordered:
            session.execute(BY_INDEX)
        (found,) = session.execute(f"EXPLAIN (ANALYZE, BUFFERS, TIMING OFF, FORMAT JSON) {text}", params).fetchone()
    (plan,) = found if isinstance(found, list) else json.loads(found)
    return plan["Plan"]


def scans(plan):
    """Every node that reads a table or index, with its relation."""
    found = [plan] if "Relation Name" in plan or "Index Name" in plan else []
    for child in plan.get("Plans", ()):
        found += scans(child)
    return found


def found_by(plan):
    """The part of a claim's plan that finds what is due."""
    (due,) = (child for child in plan["Plans"] if child.get("Subplan Name") == "CTE due")
    return due


def leased(plan):
    """How many rows a claim has taken: its last tells of itself."""
    return plan["Actual Rows"] - 1


def buffers(plan):
    return plan["Shared Hit Blocks"] + plan["Shared Read Blocks"]


def claim(session, name, floors, limit=100):
    return explain(session, items.CLAIM.of(name), claim_params(floors, limit), ordered=items.CLAIM.ordered)


def claim_params(floors, limit=100):
    lo, since, after, hi = map(list, zip(*floors.look().intervals, strict=True))
    place = {"lo": lo, "since": since, "after": after, "hi": hi}
    return place | {"limit": limit, "lease": LEASE, "token": 1, "max": 0, "ask": True}


def floors_at(floors):
    """Floors that know these positions by rank, and are not about to look from the beginning."""
    made = Floors("")
    made.discovered(list(floors))
    made._floors.update(floors)
    made._dear, made._rescan_at, made._recent_at = True, float("inf"), float("inf")
    return made


def two_seconds_ago(session):
    """As floors have it."""
    row = session.execute("SELECT (extract(epoch FROM now() - interval '2 seconds') * 1000000)::bigint").fetchone()
    return row[0]


def index_of(session, parent):
    """The name that an index of the partitioned table has on the partition."""
    rows = session.execute(
        "SELECT i.inhrelid::regclass::text FROM pg_inherits i JOIN pg_index x ON x.indexrelid = i.inhrelid"
        " WHERE i.inhparent = %s::regclass AND x.indrelid = %s::regclass",
        [parent, PLANNED],
    ).fetchall()
    return rows[0][0]


@pytest.fixture
def alone(session, around, name):
    """The buffers of a claim of 100 with nothing around."""
    around(200, key="'due' || i", available_at="now() - interval '1 second'")
    plan = claim(session, name, floors_at({0: (0, "")}))
    Table(session, name).clear()
    return buffers(plan)


FRONT = {
    "delayed items of higher priority": {"priority": "5", "available_at": "now() + interval '1 day'"},
    "live leases": {"lease_until": "now() + interval '1 hour'", "lease_token": "7", "attempts": "1"},
    "live leases of higher priority": {
        "priority": "5",
        "lease_until": "now() + interval '1 hour'",
        "lease_token": "7",
        "attempts": "1",
    },
    "completed items": {"completed_at": "now()"},
    "stalled items": {"stalled_at": "now()"},
}


@pytest.mark.parametrize("front", FRONT)
def test_a_claim_from_its_floors_costs_the_same_whatever_lies_in_front(session, alone, around, name, front):
    around(MANY, **FRONT[front])
    around(200, key="'due' || i", available_at="now() - interval '1 second'")
    passed = two_seconds_ago(session)
    plan = claim(session, name, floors_at({-5: (passed, ""), 0: (passed, "")}))
    assert leased(plan) == 100
    assert buffers(plan) < 3 * alone


def test_a_claim_from_its_floors_costs_the_same_with_everything_processed_under_a_held_snapshot(
    session, alone, around, name, connect
):
    around(MANY)
    holder = connect(autocommit=False)
    holder.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
    holder.execute("SELECT count(*) FROM workqueue_item")
    Table(session, name).clear()
    around(200, key="'due' || i", available_at="now() - interval '1 second'")
    passed = two_seconds_ago(session)
    from_floor = claim(session, name, floors_at({0: (passed, "")}))
    from_the_beginning = claim(session, name, floors_at({0: (0, "")}))
    holder.rollback()
    assert leased(from_floor) == leased(from_the_beginning) == 100
    assert buffers(from_floor) < 3 * alone
    assert buffers(from_the_beginning) > 10 * alone  # or this test could not fail


def test_floors_are_pairs_so_that_equal_times_do_not_pile_up(session, alone, around, name):
    around(MANY, key="lpad(i::text, 6, '0')", available_at="date_trunc('minute', now()) - interval '1 hour'")
    session.execute(
        "UPDATE workqueue_item SET lease_until = now() + interval '1 hour' WHERE queue = %s AND key < '025000'", [name]
    )
    ((at,),) = session.execute(
        "SELECT DISTINCT (extract(epoch FROM available_at) * 1000000)::bigint FROM workqueue_item WHERE queue = %s",
        [name],
    ).fetchall()
    plan = claim(session, name, floors_at({0: (at, "024999")}))
    assert buffers(plan) < 3 * alone


@pytest.mark.parametrize("known", ["nothing", "another queue"])
def test_a_claim_walks_the_claim_index_and_sorts_nothing(session, around, name, known):
    if known == "another queue":
        session.execute(
            "INSERT INTO workqueue_item (queue, key) SELECT 'known', 'k' || i FROM generate_series(1, 5000) i"
        )
        session.execute("ANALYZE workqueue_item")
        session.execute("DELETE FROM workqueue_item WHERE queue = 'known'")
    around(MANY, priority="i %% 7")
    floors = floors_at({-rank: (0, "") for rank in range(7)})
    plan = claim(session, name, floors)
    due = found_by(plan)
    walked = [scan for scan in scans(due) if scan.get("Relation Name") == PLANNED]
    assert {scan["Node Type"] for scan in walked} == {"Index Scan"}
    assert {scan["Index Name"] for scan in walked} == {index_of(session, "workqueue_item_claim")}
    assert leased(plan) == 100
    assert sum(scan["Actual Rows"] * scan["Actual Loops"] for scan in walked) < 150  # locked, so as good as leased


@pytest.fixture
def forgotten(session, around, name, connect):
    """Statistics of a nearly empty queue, taken while a snapshot kept everything that had been in it; and 200 due."""
    holder = connect(autocommit=False)
    holder.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
    holder.execute("SELECT count(*) FROM workqueue_item")
    around(MANY)
    Table(session, name).clear()
    around(8, key="'few' || i")
    session.execute("VACUUM (ANALYZE, TRUNCATE OFF) " + PLANNED)
    around(200, key="'due' || i", available_at="now() - interval '1 second'")
    yield
    holder.rollback()


def test_a_claim_keeps_to_its_index_when_the_planner_believes_that_the_queue_is_nearly_empty(
    session, alone, forgotten, name
):
    """It would rather read the smaller index, and that is all of the queue's past."""
    passed = two_seconds_ago(session)
    floors = floors_at({0: (passed, "")})
    plan = claim(session, name, floors)
    due = found_by(plan)
    assert leased(plan) == 100
    assert buffers(due) < alone
    if session.info.server_version >= SEVENTEEN:  # see below: it may still look the keys up badly that it has found
        assert buffers(plan) < 3 * alone
    misled = explain(session, items.CLAIM.of(name), claim_params(floors))
    assert buffers(misled) > 5 * alone  # or this test could not fail


@pytest.mark.parametrize("way", ["on a connection of our own", "on a claimer's", "by hand"])
@pytest.mark.parametrize(
    "statement", [items.CLAIM, items.DISCOVER, items.NEXT_DUE, items.REAP, items.STALL], ids=lambda each: each.name
)
def test_a_statement_that_follows_an_index_is_sent_so_that_nothing_else_is_planned(
    session, forgotten, name, way, statement, monkeypatch
):
    monkeypatch.setattr(Statement, "every", {})
    explained = Statement(statement.name, f"EXPLAIN (FORMAT JSON) {statement.text}", ordered=statement.ordered)
    params = claim_params(floors_at({0: (0, "")})) | {"retention": 0, "error": "no"}
    params |= {"ranks": [0], "discover": 64, "within": LEASE}
    rows = WorkItem.objects.all()
    own = Connection("default", application="test", ordered=way == "on a claimer's")
    try:
        ((plan,),) = (rows.on(own) if way != "by hand" else rows).send(explained, name, params)
        kept = [] if way == "by hand" else own.execute("SELECT name FROM pg_prepared_statements", prepare=False)
        assert len(kept) == (way == "on a claimer's")
    finally:
        own.close()
    assert "Sort" not in {node["Node Type"] for node in every_node(plan[0]["Plan"])}
    assert session.execute("SHOW enable_sort").fetchone() == ("on",)
    with django_connection.cursor() as cursor:
        cursor.execute("SHOW enable_sort")
        assert cursor.fetchone() == ("on",)


def every_node(plan):
    yield plan
    for child in plan.get("Plans", ()):
        yield from every_node(child)


def test_in_a_callers_transaction_no_setting_is_left_behind(queue):
    with transaction.atomic():
        queue.enqueue("a")
        assert len(queue.claim()) == 1
        with django_connection.cursor() as cursor:
            cursor.execute("SHOW enable_sort")
            assert cursor.fetchone() == ("on",)


def test_a_claim_works_where_the_server_binds_the_values(queue, monkeypatch):
    connections.close_all()
    options = connections["default"].settings_dict["OPTIONS"] | {"server_side_binding": True}
    monkeypatch.setitem(connections["default"].settings_dict, "OPTIONS", options)
    try:
        queue.enqueue("a", "b")
        items = queue.claim()
        assert [item.key for item in items] == ["a", "b"]
        assert queue.complete(items[0]) == queue.release("b") == queue.remove("b") == 1
        assert queue.stats().completed == 1
    finally:
        connections.close_all()


def test_what_comes_due_next_is_found_beside_any_number_that_is_due_or_comes_later(session, around, name):
    around(MANY, priority="i %% 5", available_at="now() - i * interval '1 ms'")
    around(MANY, key="'later' || i", priority="i %% 5", available_at="now() + interval '1 day'")
    params = {"ranks": [-4, -3, -2, -1, 0], "discover": 64, "within": LEASE}
    plan = explain(session, items.NEXT_DUE.of(name), params, ordered=True)
    assert buffers(plan) < 60
    around(1, key="'next'", priority=3, available_at="now() + interval '30 seconds'")

    def next_due(*known: int, discover: int = 0) -> int | None:
        return WorkItem.objects.all().next_due(name, known, discover=discover, within=timedelta(minutes=1))

    for found in (next_due(-3), next_due(-3, 0, discover=64), next_due(discover=64), next_due(discover=2)):
        assert 0 < found <= 30_000_000
    assert next_due(0, -4) is next_due(-4, discover=1) is next_due() is None


def test_discover_is_a_loose_scan(session, around, name):
    around(MANY, priority="i %% 5")
    plan = explain(session, items.DISCOVER.of(name), {"limit": 64}, ordered=True)
    assert plan["Actual Rows"] == 5
    assert buffers(plan) < 60


def test_discover_stops_at_its_limit(session, around, name):
    around(MANY, priority="i %% 5000")
    plan = explain(session, items.DISCOVER.of(name), {"limit": 64}, ordered=True)
    assert plan["Actual Rows"] == 64
    assert buffers(plan) < 600


# Statements that name their rows


NAMED = [
    "item_complete_keep",
    "item_complete_keep_claims",
    "item_complete_keep_any",
    "item_complete_delete",
    "item_complete_delete_claims",
    "item_complete_delete_any",
    "item_finish",
    "item_release",
    "item_release_any",
    "item_extend",
    "item_held",
    "item_tokens",
    "item_remove",
]


def named(count):
    """Values for every placeholder there is."""
    keys = sorted(f"k{number}" for number in range(1, count + 1))
    return {
        "keys": keys,
        "tokens": [7] * count,
        "token": 7,
        "delays": [0] * count,
        "errors": ["no"] * count,
        "uncounts": [0] * count,
        "max": 3,
        "lease": LEASE,
    }


@contextmanager
def prepared(session, statement, name, mode):
    """The statement on the server, planned as `plan_cache_mode` says; yields how to call it."""
    text = statement.of(name)
    placeholders = list(dict.fromkeys(parsed.placeholders(statement.text)))
    session.execute(f"SET plan_cache_mode = {mode}")
    session.execute(b"PREPARE planned AS " + parsed.numbered(text).encode())
    try:
        yield f"EXECUTE planned ({', '.join(f'%({each})s' for each in placeholders)})"
    finally:
        session.execute("DEALLOCATE planned; RESET plan_cache_mode")


def test_a_claim_whose_plan_was_made_for_an_empty_table_follows_its_index_when_that_has_grown(session, around, name):
    session.execute("SET enable_sort = off; SET enable_seqscan = off")  # as a claimer's connection has it
    params = claim_params(floors_at({0: (0, "")}))
    with prepared(session, items.CLAIM, name, "force_generic_plan") as call:
        explain(session, call, params)
        around(MANY, available_at="now() + interval '1 hour' * i")
        around(200, key="'due' || i", available_at="now() - interval '1 second'", priority=-1)
        plan = explain(session, call, claim_params(floors_at({0: (0, ""), 1: (0, "")})))
    assert leased(plan) == 100
    assert {scan["Index Name"] for scan in scans(plan) if scan.get("Relation Name") == PLANNED} == {
        index_of(session, "workqueue_item_claim"),
        f"{PLANNED}_pkey",
    }
    assert buffers(plan) < 1500
    session.execute("RESET enable_sort; RESET enable_seqscan")


@pytest.mark.parametrize("mode", ["force_custom_plan", "force_generic_plan"])
@pytest.mark.parametrize("known", ["nothing", "another queue"])
def test_named_rows_are_looked_up_in_an_index_whatever_the_statistics_know_of_the_queue(
    session, around, name, mode, known
):
    """Planned while the queue was unknown and the table small, run when it has grown."""
    if mode == "force_custom_plan" and session.info.server_version < SEVENTEEN:
        pytest.xfail("of a table this small it reads all of the queue rather than look a hundred keys up one by one")
    if known == "another queue":
        session.execute(
            "INSERT INTO workqueue_item (queue, key) SELECT 'known', 'k' || i FROM generate_series(1, 5000) i"
        )
        session.execute("ANALYZE workqueue_item")
        session.execute("DELETE FROM workqueue_item WHERE queue = 'known'")
    around(MANY, lease_until="now() + interval '1 hour'", lease_token="7", attempts="1")
    session.execute(  # a second state of rows, so that `requeue_at` is met as well
        "UPDATE workqueue_item SET requeue_at = now() WHERE queue = %s AND key LIKE '%%7'", [name]
    )
    values = named(100)
    for each in NAMED:
        with prepared(session, parsed.every()[each], name, mode) as call:
            plan = explain(session, call, values)
        walked = [scan for scan in scans(plan) if scan.get("Relation Name") == PLANNED]
        assert walked, each
        for scan in walked:
            assert scan["Node Type"] in ("Index Scan", "Bitmap Heap Scan", "Index Only Scan", "ModifyTable"), each
            assert scan.get("Rows Removed by Filter", 0) * scan["Actual Loops"] <= 100, each
        assert buffers(plan) < 100 * 30, each


def test_named_rows_are_looked_up_even_when_the_planner_believes_that_the_queue_is_nearly_empty(
    session, forgotten, around, name
):
    """As after a calm hour, when thousands are enqueued at once: until the next ANALYZE, a minute at most."""
    if session.info.server_version < SEVENTEEN:
        pytest.xfail("a path that leaves the keys to a filter is thought cheaper, and reads the whole queue")
    around(MANY, lease_until="now() + interval '1 hour'", lease_token="7", attempts="1")
    session.execute("SET enable_seqscan = off")  # as on our own connections
    for each in NAMED:
        with prepared(session, parsed.every()[each], name, "force_generic_plan") as call:
            plan = explain(session, call, named(100))
        assert buffers(plan) < 100 * 30, each
    session.execute("RESET enable_seqscan")


@pytest.fixture
def own():
    connection = Connection("default", application="test", lock_timeout=timedelta(milliseconds=50))
    yield connection
    connection.close()


def misjudged(own, writer):
    """Whether the planner is known to believe too little; the writer's session reports what it wrote, a second late."""
    writer.execute("SELECT 1")  # before PostgreSQL 15 an idle session reports nothing
    return (PLANNED,) in own.execute(sql_planner.MISJUDGED.text)


@pytest.fixture
def crowded(session, forgotten, around, own, wait_until):
    """More rows than the planner believes in. (Before PostgreSQL 15 the report of what was written may get lost.)"""
    for batch in "abc":
        around(MANY, key=f"'{batch}' || i")
        with contextlib.suppress(AssertionError):
            wait_until(lambda: misjudged(own, session), 5)
            return
    raise AssertionError("it is never known")


def test_figures_that_are_far_from_the_truth_are_corrected_and_no_others(session, crowded, own):
    def believed():
        return session.execute("SELECT reltuples FROM pg_class WHERE relname = %s", [PLANNED]).fetchone()[0]

    assert believed() < 1000
    planner.correct(own)
    assert believed() > MANY / 2
    assert not misjudged(own, session)


def test_somebody_elses_analyze_is_not_waited_for(crowded, connect, own):
    holder = connect(autocommit=False)
    holder.execute(f"LOCK TABLE {PLANNED} IN SHARE UPDATE EXCLUSIVE MODE")
    try:
        planner.correct(own)
    finally:
        holder.rollback()


# Partitions


@pytest.fixture
def partition(session, name):
    """A partition of the queue's own in each of the two large tables."""
    session.execute("CREATE TABLE workqueue_job_planned PARTITION OF workqueue_job FOR VALUES IN (%s)", [name])
    yield {PLANNED, "workqueue_job_planned"}
    session.execute("DROP TABLE workqueue_job_planned")


@pytest.mark.parametrize("statement", [name for name in parsed.every() if name not in PEOPLE])
def test_every_statement_touches_its_queues_partition_only_even_under_a_generic_plan(
    session, partition, name, statement
):
    text = parsed.every()[statement].of(name)
    if not any(f" {table} " in text for table in ("workqueue_item", "workqueue_job")):
        return
    session.execute("SET plan_cache_mode = force_generic_plan")
    session.execute(b"PREPARE planned AS " + parsed.numbered(text).encode())
    placeholders = set(parsed.placeholders(parsed.every()[statement].text))
    call = f"EXECUTE planned ({', '.join(['NULL'] * len(placeholders))})" if placeholders else "EXECUTE planned"
    try:
        (found,) = session.execute(f"EXPLAIN (FORMAT JSON) {call}").fetchone()
    finally:
        session.execute("DEALLOCATE planned; RESET plan_cache_mode")
    touched = {scan["Relation Name"] for scan in scans(found[0]["Plan"]) if "Relation Name" in scan}
    large = {relation for relation in touched if relation.startswith(("workqueue_item", "workqueue_job"))}
    assert large - {"workqueue_item", "workqueue_job"} <= partition  # the parents: named as targets, and routed
    assert large & partition or touched <= {"workqueue_item", "workqueue_job"}


# HOT


@contextmanager
def updates(session, partition=PLANNED):
    """How many rows a transaction updated, and how many of those without touching an index."""

    def count():
        return session.execute(
            "SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_xact_user_tables WHERE relname = %s", [partition]
        ).fetchone()

    counted = []
    with session.transaction():
        before = count()
        yield counted
        counted += [after - earlier for after, earlier in zip(count(), before, strict=True)]


LOOKING = (
    "SELECT backend_type, application_name, state, query FROM pg_stat_activity"
    " WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_xmin IS NOT NULL"
)


def test_claims_and_renewals_are_all_hot(session, around, name, wait_until):
    """Unless somebody looks: autovacuum, of any table, keeps what the claim replaced in the page. Once is enough."""
    keys = [f"{i:04}" for i in range(1000)]
    whole = {"lo": [-(2**31) + 1], "since": [0], "after": [""], "hi": [2**31 - 1], "max": 0, "ask": True}
    for _ in range(20):
        wait_until(lambda: not session.execute(LOOKING).fetchall(), 60)
        session.execute(items.ENQUEUE.of(name), {"keys": keys, "priorities": [0] * 1000, "delays": [0] * 1000})
        with updates(session) as first:
            session.execute(items.CLAIM.of(name), whole | {"limit": 1000, "lease": LEASE, "token": 7})
        with updates(session) as second:
            session.execute(items.EXTEND.of(name), {"keys": keys, "token": 7, "lease": 2 * LEASE})
        if first == second == [1000, 1000]:
            break
        Table(session, name).clear()
        session.execute(f"VACUUM {PLANNED}")
    assert first == second == [1000, 1000], session.execute(LOOKING).fetchall()


def test_no_index_has_a_column_that_a_claim_or_renewal_changes(session):
    rows = session.execute(
        "SELECT x.indexrelid::regclass::text, a.attname FROM pg_index x"
        " JOIN pg_attribute a ON a.attrelid = x.indrelid AND a.attname IN"
        " ('lease_until', 'lease_token', 'attempts', 'requeue_at')"
        " WHERE x.indrelid = 'workqueue_item_default'::regclass"
        " AND pg_get_indexdef(x.indexrelid) LIKE '%%' || a.attname || '%%'"
    ).fetchall()
    assert rows == []


def test_the_items_partitions_leave_half_of_each_page_free_and_keep_no_statistics_of_the_queue(session):
    (found,) = session.execute(
        "SELECT reloptions, attstattarget FROM pg_class JOIN pg_attribute ON attrelid = pg_class.oid"
        " WHERE relname = 'workqueue_item_default' AND attname = 'queue'"
    ).fetchall()
    assert "fillfactor=50" in found[0]
    assert found[1] == 0
