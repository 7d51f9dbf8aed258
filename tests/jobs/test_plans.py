"""Plans and costs of the jobs' statements, pinned by EXPLAIN as those of the items are."""

import pytest

from django_workqueue.database import Connection
from django_workqueue.floors import Floors
from django_workqueue.listed import LAPSED
from django_workqueue.models import WorkJob
from django_workqueue.sql import Statement, jobs
from tests.jobs.table import JobTable
from tests.keyed import parsed
from tests.keyed.test_plans import (
    LEASE,
    MANY,
    buffers,
    every_node,
    explain,
    found_by,
    leased,
    prepared,
    quiet,
    scans,
    two_seconds_ago,
    updates,
)

DEFAULT = "workqueue_job_default"
HOUR_AGO = "now() - interval '1 hour'"


@pytest.fixture
def session(connect):
    """A connection that neither autovacuum nor an earlier test's statistics disturb."""
    with quiet(connect, DEFAULT) as connection:
        yield connection


@pytest.fixture
def around(session, name, make_queue):
    """Fill the queue: `around(count, kind="...", priority=0, ...)`, values as SQL; `i` counts."""
    make_queue()

    def fill(count, **columns):
        columns = {"kind": "'mail'", "payload": "'1'", "max_attempts": "5", "available_at": HOUR_AGO} | columns
        session.execute(
            f"INSERT INTO workqueue_job (queue, {', '.join(columns)})"
            f" SELECT %s, {', '.join(map(str, columns.values()))} FROM generate_series(1, {count}) i",
            [name],
        )

    return fill


def claim_params(floors, limit=100, kinds=None):
    lo, since, after, hi = map(list, zip(*floors.look().intervals, strict=True))
    place = {"lo": lo, "since": since, "after": after, "hi": hi}
    return place | {
        "limit": limit,
        "lease": LEASE,
        "token": 1,
        "kinds": kinds,
        "mark": False,
        "worker": "w",
        "lapsed": 10,
    }


def claim(session, name, floors, **how):
    return explain(session, jobs.CLAIM.of(name), claim_params(floors, **how), ordered=jobs.CLAIM.ordered)


def bury(session, name):
    return explain(session, jobs.BURY.of(name), {"error": LAPSED, "limit": 1000}, ordered=jobs.BURY.ordered)


def floors_at(floors):
    """Floors that know these positions by rank, and are not about to look from the beginning."""
    made = Floors(0)
    made.discovered(list(floors))
    made._floors.update(floors)
    made._dear, made._rescan_at, made._recent_at = True, float("inf"), float("inf")
    return made


@pytest.fixture
def alone(session, around, name):
    """The buffers of a claim of 100 with nothing around."""
    around(200, available_at="now() - interval '1 second'")
    plan = claim(session, name, floors_at({0: (0, 0)}))
    JobTable(session, name).clear()
    return buffers(plan)


DELAYED = {"available_at": "now() + interval '1 day'"}
LEASED = {"lease_until": "now() + interval '1 hour'", "lease_token": "7", "attempts": "1"}


@pytest.mark.parametrize("priority", [5, 0])
def test_deferred_jobs_never_slow_a_claim_not_even_one_from_the_beginning(session, alone, around, name, priority):
    around(MANY, priority=priority, **DELAYED)
    around(200, available_at="now() - interval '1 second'")
    plan = claim(session, name, floors_at({-5: (0, 0), 0: (0, 0)}))
    assert leased(plan) == 100
    assert buffers(plan) < 2 * alone


@pytest.mark.parametrize(
    "front",
    [
        LEASED,
        LEASED | {"priority": "5"},
        {"outcome": "'completed'", "finished_at": "now()"},
        {"outcome": "'dead'", "finished_at": "now()"},
        {"kind": "'fax'"},
    ],
    ids=["live leases", "live leases of higher priority", "completed", "dead", "kinds nobody handles"],
)
def test_a_claim_from_its_floors_costs_the_same_whatever_lies_in_front(session, alone, around, name, front):
    around(MANY, **front)
    around(200, available_at="now() - interval '1 second'")
    passed = two_seconds_ago(session)
    plan = claim(session, name, floors_at({-5: (passed, 0), 0: (passed, 0)}), kinds=["mail"])
    assert leased(plan) == 100
    assert buffers(plan) < 2 * alone


@pytest.mark.parametrize("priority", ["0", "i %% 5"])
def test_what_is_out_of_attempts_is_found_past_any_number_of_deferred_jobs(session, around, name, priority):
    """Each claim that comes back short looks for it."""
    around(MANY, priority=priority, **DELAYED)
    around(3, lease_until="now() - interval '1 minute'", lease_token="7", attempts="5", started_at=HOUR_AGO)
    plan = bury(session, name)
    assert plan["Actual Rows"] == 1  # of one kind
    assert buffers(plan) < 200


def test_bury_stops_at_its_limit(session, around, name):
    around(MANY, lease_until="now() - interval '1 minute'", lease_token="7", attempts="5", started_at=HOUR_AGO)
    plan = explain(session, jobs.BURY.of(name), {"error": LAPSED, "limit": 100}, ordered=True)
    assert buffers(plan) < 100 * 30


@pytest.mark.parametrize("priority", [5, 0])
def test_looking_for_kinds_without_a_handler_costs_no_more_with_many_scheduled_jobs(session, around, name, priority):
    around(MANY, priority=priority, **DELAYED)
    around(3, kind="'new'", metadata="""'{"task": {}}'""")
    params = {"known": ["mail"], "hopeless": ["gone"], "limit": 1000}
    plan = explain(session, jobs.WAITING_KINDS.of(name), params, ordered=True)
    assert plan["Actual Rows"] == 1
    assert buffers(plan) < 100


def test_looking_for_kinds_without_a_handler_stops_at_its_limit(session, around, name):
    around(MANY)
    params = {"known": ["mail"], "hopeless": ["gone"], "limit": 1000}
    assert buffers(explain(session, jobs.WAITING_KINDS.of(name), params, ordered=True)) < 2000


@pytest.mark.parametrize("known", ["nothing", "another queue"])
def test_a_claim_walks_the_claim_index_and_sorts_nothing(session, around, name, known):
    if known == "another queue":
        session.execute(
            "INSERT INTO workqueue_job (queue, kind, max_attempts) SELECT 'known', 'k', 5 FROM generate_series(1, 5000)"
        )
        session.execute("ANALYZE workqueue_job")
        session.execute("DELETE FROM workqueue_job WHERE queue = 'known'")
    around(MANY, priority="i %% 7")
    plan = claim(session, name, floors_at({-rank: (0, 0) for rank in range(7)}), kinds=["mail", "fax"])
    walked = [scan for scan in scans(found_by(plan)) if scan.get("Relation Name") == DEFAULT]
    assert {scan["Node Type"] for scan in walked} == {"Index Scan"}
    assert leased(plan) == 100
    assert sum(scan["Actual Rows"] * scan["Actual Loops"] for scan in walked) < 150


@pytest.mark.parametrize(
    "statement",
    [jobs.CLAIM, jobs.DISCOVER, jobs.NEXT_DUE, jobs.BURY, jobs.PRUNE, jobs.WAITING_KINDS],
    ids=lambda statement: statement.name,
)
@pytest.mark.parametrize("ordered", [False, True])
def test_a_statement_that_follows_an_index_is_sent_so_that_nothing_else_is_planned(
    session, around, name, statement, ordered, monkeypatch
):
    monkeypatch.setattr(Statement, "every", {})
    around(200)
    explained = Statement(statement.name, f"EXPLAIN (FORMAT JSON) {statement.text}", ordered=statement.ordered)
    params = claim_params(floors_at({0: (0, 0)})) | {"error": LAPSED, "outcome": "dead", "retention": 0}
    params |= {"known": ["mail"], "hopeless": ["fax"], "ranks": [0], "discover": 64, "within": 1}
    own = Connection("default", application="test", ordered=ordered)
    try:
        ((plan,),) = WorkJob.objects.all().on(own).send(explained, name, params)
    finally:
        own.close()
    assert "Sort" not in {node["Node Type"] for node in every_node(plan[0]["Plan"])}


# Statements that name their rows

NAMED = [
    "job_start",
    "job_complete_keep",
    "job_complete_keep_claim",
    "job_complete_delete",
    "job_fail",
    "job_extend",
    "job_held",
    "job_tokens",
    "job_cancel",
    "job_take_back",
    "job_restamp",
    "job_retry",
]


def named(ids):
    """Values for every placeholder there is."""
    count = len(ids)
    return {
        "ids": ids,
        "tokens": [7] * count,
        "token": 7,
        "ran": [0] * count,
        "results": ["1"] * count,
        "delays": [0] * count,
        "errors": ["{}"] * count,
        "finals": [False] * count,
        "uncounts": [0] * count,
        "worker": "w",
        "lease": LEASE,
    }


@pytest.mark.parametrize("mode", ["force_custom_plan", "force_generic_plan"])
def test_named_rows_are_looked_up_in_an_index_whatever_the_statistics_know_of_the_queue(
    session, around, name, mode, connect
):
    around(MANY, **LEASED)
    ids = JobTable(connect(), name).stored()[:20]  # of many more it could be right to read all there is
    for each in NAMED:
        with prepared(session, parsed.every()[each], name, mode) as call:
            plan = explain(session, call, named(ids))
        walked = [scan for scan in scans(plan) if scan.get("Relation Name") == DEFAULT]
        assert walked, each
        for scan in walked:
            assert scan["Node Type"] in ("Index Scan", "Bitmap Heap Scan", "Index Only Scan", "ModifyTable"), each
            assert scan.get("Rows Removed by Filter", 0) * scan["Actual Loops"] <= 100, each
        assert buffers(plan) < 20 * 30, each


# HOT


def test_claims_are_all_hot(session, around, name):
    around(1000)
    with updates(session, DEFAULT) as claimed:
        session.execute(jobs.CLAIM.of(name), claim_params(floors_at({0: (0, 0)}), limit=1000))
    assert claimed == [1000, 1000]


@pytest.mark.parametrize(("statement", "least"), [(jobs.EXTEND, 1000), (jobs.START, 900)], ids=["extend", "start"])
def test_renewals_are_all_hot_and_starts_as_far_as_the_workers_name_has_room(
    session, around, name, connect, statement, least
):
    around(1000, **LEASED)
    ids = JobTable(connect(), name).stored()
    with updates(session, DEFAULT) as changed:
        session.execute(statement.of(name), named(ids))
    assert changed[0] == 1000
    assert changed[1] >= least


def test_no_index_has_a_column_that_a_claim_start_or_renewal_changes(session):
    (found,) = session.execute(
        "SELECT string_agg(pg_get_indexdef(indexrelid), ' ') FROM pg_index WHERE indrelid = %s::regclass", [DEFAULT]
    ).fetchone()
    changed = ("lease_until", "lease_token", "attempts", "started_at", "worker_ids", "metadata")
    assert not [column for column in changed if column in found]


def test_the_jobs_partitions_leave_half_of_each_page_free_and_keep_no_statistics_of_the_queue(session):
    (found,) = session.execute(
        "SELECT reloptions, attstattarget FROM pg_class JOIN pg_attribute ON attrelid = pg_class.oid"
        " WHERE relname = %s AND attname = 'queue'",
        [DEFAULT],
    ).fetchall()
    assert "fillfactor=50" in found[0]
    assert found[1] == 0
