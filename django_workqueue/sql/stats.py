"""Statements that count, for people and metrics: exactly, or looking at a bounded number of rows.

Each of them counts by the same expression for a row's state, which is built on what a claim takes (`DUE`). What is
said of the items holds for any table of this kind: `about()` fills it in.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from . import items, jobs
from .statement import Statement


@dataclass(frozen=True, slots=True)
class Stats:
    """The statements about one table."""

    exact: Statement
    count: Statement
    sample: Statement
    begun: Statement
    later: Statement
    pages: Statement


# A row is in exactly one state; an item is closed when it is completed or stalled. A lapsed lease is as good as none.
# What claims leave although its time has come and nobody holds it is `spent`: stalled, but not marked as that yet.
_OPEN_STATE = """WHEN {DUE} THEN 'ready' WHEN q.lease_until > statement_timestamp() THEN 'leased'
 WHEN q.available_at > statement_timestamp() THEN 'scheduled' ELSE 'spent' END"""
ITEM_STATE = f"""CASE WHEN q.completed_at IS NOT NULL THEN 'completed' WHEN q.stalled_at IS NOT NULL THEN 'stalled'
 {_OPEN_STATE.replace("{DUE}", items.DUE)}"""
JOB_STATE = f"""CASE WHEN q.outcome = 'completed' THEN 'completed' WHEN q.outcome = 'dead' THEN 'stalled'
 WHEN q.outcome IS NOT NULL THEN 'cancelled' {_OPEN_STATE.replace("{DUE}", jobs.DUE)}"""

# What a fold of the inbox would change now: keys that `was` in one state (NULL: not in the set) and would be in
# another. Merges as `CONFLICT` in items.py does, but for times that no state depends on. The keys reach the set as an
# array: an index lookup for each.
ITEM_MOVES = f"""asked AS MATERIALIZED (
     SELECT i.key, min(i.available_at) AS at, count(*) AS entries, max(i.home) AS home FROM (
      SELECT i.key, i.available_at, i.tableoid AS home FROM workqueue_inbox i WHERE i.queue = {{Q}}
      ORDER BY i.key LIMIT %(cap)s::bigint) i
     GROUP BY i.key),
    held AS MATERIALIZED (
     SELECT q.* FROM workqueue_item q WHERE q.queue = {{Q}} AND q.key = ANY (ARRAY(SELECT key FROM asked))),
    merged AS (
     SELECT q.entries, q.home, CASE WHEN q.key IS NOT NULL THEN {ITEM_STATE} END AS was,
      NULL::timestamptz AS completed_at, NULL::timestamptz AS stalled_at,
      CASE WHEN {items.OPEN} THEN COALESCE(q.attempts, 0) ELSE 0 END AS attempts,
      COALESCE(q.lease_until, 'epoch') AS lease_until,
      CASE WHEN {items.OPEN} THEN LEAST(q.available_at, q.at) ELSE q.at END AS available_at,
      CASE WHEN q.lease_until > 'epoch' THEN LEAST(q.requeue_at, q.at) END AS requeue_at
     FROM (SELECT asked.at, asked.entries, asked.home, held.* FROM asked LEFT JOIN held ON held.key = asked.key) q),
    moved AS (
     SELECT q.was, {ITEM_STATE} AS state, count(*) AS n, sum(q.entries) AS entries, min({{SINCE}}) AS since,
      max(q.home) AS home
     FROM merged q GROUP BY q.was, state)"""

NO_MOVES = """moved AS (
     SELECT NULL AS was, NULL AS state, 0 AS n, 0 AS entries, NULL::timestamptz AS since, NULL::oid AS home
     WHERE false)"""

# Since when a ready row has been waiting: not while it was leased.
_SINCE = "GREATEST(q.available_at, q.lease_until)"
_AGE = "(extract(epoch FROM statement_timestamp() - {}) * 1000000)::bigint"

# As dear as the queue is long.
_EXACT = f"""
    WITH {{MOVES}},
    counted AS (
     SELECT {{STATE}} AS state, count(*) AS n, min({_SINCE}) AS since FROM {{TABLE}} q WHERE q.queue = {{Q}}
     GROUP BY state
     UNION ALL SELECT state, n, since FROM moved
     UNION ALL SELECT was, -n, NULL FROM moved WHERE was IS NOT NULL)
    SELECT COALESCE(sum(n) FILTER (WHERE state = 'ready'), 0)::bigint,
     COALESCE(sum(n) FILTER (WHERE state = 'scheduled'), 0)::bigint,
     COALESCE(sum(n) FILTER (WHERE state = 'leased'), 0)::bigint,
     COALESCE(sum(n) FILTER (WHERE state IN ('stalled', 'spent')), 0)::bigint,
     COALESCE(sum(n) FILTER (WHERE state = 'completed'), 0)::bigint,
     COALESCE({_AGE.format("min(since) FILTER (WHERE state = 'ready')")}, 0)
    FROM counted
"""

# Up to `cap` rows of each kind, from the ends of the indexes where entries are young: at the others lie those of rows
# that are gone. `pages` is the size of the partition that holds the queue.
_COUNT = f"""
    WITH {{MOVES}},
    counted AS (
     SELECT 'open' AS part, NULL AS was, q.state, count(*) AS n, count(*) AS entries, min(q.since) AS since,
      max(q.home) AS home
     FROM (SELECT {{STATE}} AS state, {_SINCE} AS since, q.tableoid AS home
      FROM {{TABLE}} q WHERE q.queue = {{Q}} AND {{OPEN}} ORDER BY {{BACKWARDS}} LIMIT %(cap)s::bigint) q
     GROUP BY q.state
     {{CLOSED}}
     UNION ALL SELECT 'moved', was, state, n, entries, since, home FROM moved)
    SELECT part, was, state, n, entries::bigint, {_AGE.format("since")},
     pg_relation_size(home) / current_setting('block_size')::int AS pages
    FROM counted WHERE n > 0
"""
_CLOSED = """UNION ALL
     SELECT 'closed', NULL, '{NAME}', count(*), count(*), NULL, (
      SELECT q.tableoid FROM {TABLE} q WHERE q.queue = {Q} AND {WHERE} ORDER BY {ORDER} DESC LIMIT 1)
     FROM (SELECT 1 FROM {TABLE} q WHERE q.queue = {Q} AND {WHERE} ORDER BY {ORDER} DESC LIMIT %(cap)s::bigint) q"""

# A row has begun when its time has come: it is ready, leased or spent. Of those of each rank, the statement sees what
# lies at either end, `front` and `back` rows at most: the front is where leases are, the back is what came last. What
# lies between, and all the rest, is judged by some of the partition's pages, always the same ones, so that figures
# move because the queue does; and of these pages by one row in a few, since neighbours are alike. (`< 1`, not `= 0`, of
# which the planner expects so few that it would nest the join with the gaps.)
_BEGUN = (
    "FROM {TABLE} q WHERE q.queue = {Q} AND {OPEN} AND -q.priority = f.r AND q.available_at <= statement_timestamp()"
)
_SEEN = f"q.available_at, q.{{IDENT}}, {{STATE}} AS state, {_SINCE} AS since"
_SAMPLE = f"""
    WITH front AS MATERIALIZED (
     SELECT f.r, e.* FROM unnest(%(ranks)s::int[]) f(r) CROSS JOIN LATERAL (
      SELECT {_SEEN}, row_number() OVER (ORDER BY {{FORWARDS}}) AS nth {_BEGUN}
      ORDER BY {{FORWARDS}} LIMIT %(front)s::int) e),
    back AS MATERIALIZED (
     SELECT f.r, f.available_at AS from_at, f.{{IDENT}} AS from_ident, e.* FROM front f CROSS JOIN LATERAL (
      SELECT {_SEEN}, row_number() OVER (ORDER BY {{BACKWARDS}}) AS nth {_BEGUN}
       AND (q.available_at, q.{{IDENT}}) > (f.available_at, f.{{IDENT}})
      ORDER BY {{BACKWARDS}} LIMIT %(back)s::int) e
     WHERE f.nth = %(front)s::int),
    gap AS MATERIALIZED (
     SELECT f.r, back.from_at, back.from_ident, back.available_at AS to_at, back.{{IDENT}} AS to_ident
     FROM unnest(%(ranks)s::int[]) f(r) LEFT JOIN back ON back.r = f.r AND back.nth = %(back)s::int)
    SELECT 'sampled', state, count(*), {_AGE.format("min(since)")} FROM (
     SELECT {{STATE}} AS state, {_SINCE} AS since
     FROM {{TABLE}} q TABLESAMPLE SYSTEM (%(percent)s::real) REPEATABLE (1) LEFT JOIN gap ON gap.r = -q.priority
     WHERE q.queue = {{Q}} AND {{SCATTER}} & %(mask)s::int < 1
      AND (gap.r IS NULL OR NOT ({{OPEN}}) OR q.available_at > statement_timestamp()
       OR ((q.available_at, q.{{IDENT}}) > (gap.from_at, gap.from_ident)
        AND (q.available_at, q.{{IDENT}}) < (gap.to_at, gap.to_ident)))) sampled
    GROUP BY state
    UNION ALL SELECT 'front', state, count(*), {_AGE.format("min(since)")} FROM front GROUP BY state
    UNION ALL SELECT 'back', state, count(*), {_AGE.format("min(since)")} FROM back GROUP BY state
    UNION ALL SELECT 'gaps', NULL, count(*), NULL FROM gap WHERE from_at IS NOT NULL
"""

# Up to `cap` rows of all ranks that have begun, or that have not.
_SPAN = f"""
    SELECT state, count(*), {_AGE.format("min(since)")} FROM (
     SELECT e.* FROM unnest(%(ranks)s::int[]) f(r) CROSS JOIN LATERAL (
      SELECT {{STATE}} AS state, {_SINCE} AS since FROM {{TABLE}} q
      WHERE q.queue = {{Q}} AND {{OPEN}} AND -q.priority = f.r AND q.available_at {{SIDE}} statement_timestamp()
      ORDER BY {{BACKWARDS}} LIMIT %(cap)s::bigint) e
     LIMIT %(cap)s::bigint) counted
    GROUP BY state
"""


# The size in pages of the partition that holds the queue, found without reading it.
_PAGES = """
    SELECT pg_relation_size(c.oid) / current_setting('block_size')::int
    FROM pg_inherits h JOIN pg_class c ON c.oid = h.inhrelid
    WHERE h.inhparent = '{TABLE}'::regclass AND pg_get_expr(c.relpartbound, c.oid)
     IN ('DEFAULT', 'FOR VALUES IN (''' || replace({Q}, '''', '''''') || ''')')
    ORDER BY pg_get_expr(c.relpartbound, c.oid) = 'DEFAULT' LIMIT 1
"""


def about(
    prefix: str,
    *,
    table: str,
    ident: str,
    scatter: str,
    still_open: str,
    state: str,
    closed: Mapping[str, tuple[str, str]],
    moves: str,
) -> Stats:
    """The statements about a table.

    `scatter` is a number that says nothing about the row. `closed` has, for each state that an index lists, the
    index's predicate and its order. `moves` are the CTEs whose last, `moved`, says what is about to change.
    """

    def fill(text: str) -> str:
        parts = {
            "MOVES": moves,
            "CLOSED": "\n".join(
                _CLOSED.replace("{NAME}", name).replace("{WHERE}", where).replace("{ORDER}", order)
                for name, (where, order) in closed.items()
            ),
            "STATE": state,
            "OPEN": still_open,
            "SINCE": _SINCE,
            "FORWARDS": "-q.priority, q.available_at, q.{IDENT}",
            "BACKWARDS": "-q.priority DESC, q.available_at DESC, q.{IDENT} DESC",
            "TABLE": table,
            "IDENT": ident,
            "SCATTER": scatter,
        }
        for name, part in parts.items():
            text = text.replace(f"{{{name}}}", part)
        return text

    def statement(name: str, text: str) -> Statement:
        return Statement(f"{prefix}_stats_{name}", fill(text), prepare=False, for_people=True)

    return Stats(
        statement("exact", _EXACT),
        statement("count", _COUNT),
        statement("sample", _SAMPLE),
        statement("begun", _SPAN.replace("{SIDE}", "<=")),
        statement("later", _SPAN.replace("{SIDE}", ">")),
        statement("pages", _PAGES),
    )


ITEMS = about(
    "item",
    table="workqueue_item",
    ident="key",
    scatter="hashtext(q.key)",
    still_open=items.OPEN,
    state=ITEM_STATE,
    closed={
        "completed": ("q.completed_at IS NOT NULL", "q.completed_at"),
        "stalled": ("q.stalled_at IS NOT NULL", "q.stalled_at"),
    },
    moves=ITEM_MOVES,
)
JOBS = about(
    "job",
    table="workqueue_job",
    ident="id",
    scatter="hashint8(q.id)",
    still_open=jobs.OPEN,
    state=JOB_STATE,
    closed={
        "completed": ("q.outcome = 'completed'", "q.finished_at"),
        "stalled": ("q.outcome = 'dead'", "q.finished_at"),
    },
    moves=NO_MOVES,
)

# How many entries of the inbox are the queue's, by some of its pages.
INBOX_SAMPLE = Statement(
    "inbox_stats_sample",
    "SELECT count(*) FROM workqueue_inbox i TABLESAMPLE SYSTEM (%(percent)s::real) REPEATABLE (1) WHERE i.queue = {Q}",
    prepare=False,
    for_people=True,
)
INBOX_PAGES = Statement(
    "inbox_stats_pages",
    "SELECT pg_relation_size('workqueue_inbox') / current_setting('block_size')::int",
    prepare=False,
    for_people=True,
)
