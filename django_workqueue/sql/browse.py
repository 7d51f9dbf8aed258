"""Statements that list jobs and items page by page, for people.

A page is looked for in streams: stretches of one index each, from where the last page ended. Of each stream at most
`look` rows are looked at, whatever is asked of them; the last of these is answered too, matching or not, so that the
next page can go on behind it. All streams are of one order, in which their rows are merged. Each statement has a twin
that counts.
"""

from __future__ import annotations

from dataclasses import dataclass

from . import items, jobs
from .statement import Statement
from .stats import ITEM_STATE, JOB_STATE


@dataclass(frozen=True, slots=True)
class Listing:
    """The statements of one order: for a page, and for how many match among the first `look` of each stream."""

    page: Statement
    count: Statement


_AGE = """(%(within)s::bigint IS NULL
  OR x.enqueued_at >= statement_timestamp() - %(within)s::bigint * interval '1 microsecond')
 AND (%(beyond)s::bigint IS NULL
  OR x.enqueued_at <= statement_timestamp() - %(beyond)s::bigint * interval '1 microsecond')
 AND (%(states)s::text[] IS NULL OR x.state = ANY (%(states)s::text[]))
 AND (%(queue)s::text IS NULL OR x.queue = %(queue)s::text)"""
_JOB_FILTER = f"""{_AGE} AND (%(kind)s::text IS NULL OR x.kind = %(kind)s::text)
 AND (%(payload)s::jsonb IS NULL OR x.payload @> %(payload)s::jsonb)"""
_ITEM_FILTER = f"{_AGE} AND (%(prefix)s::text IS NULL OR starts_with(x.key, %(prefix)s::text))"

_US = "(extract(epoch FROM {}) * 1000000)::bigint"
_JOB_COLUMNS = f"""x.matches, x.nth, x.queue, x.id, -x.priority, {_US.format("x.available_at")},
 {_US.format("x.finished_at")}, x.state, x.kind, x.attempts, x.max_attempts, x.enqueued_at, x.available_at,
 x.lease_until, x.finished_at, left(x.payload::text, 200), left((x.errors -> -1) ->> 'type', 100),
 left((x.errors -> -1) ->> 'message', 200)"""
_ITEM_COLUMNS = f"""x.matches, x.nth, x.queue, x.key, -x.priority, {_US.format("x.available_at")},
 {_US.format("COALESCE(x.completed_at, x.stalled_at)")}, x.state, x.attempts, x.enqueued_at, x.available_at,
 x.lease_until, COALESCE(x.completed_at, x.stalled_at), x.requeue_at, left(x.last_error, 200)"""

_TIME = "timestamptz 'epoch' + u.since * interval '1 microsecond'"
_STREAMS = """unnest(%(queues)s::text[], %(ranks)s::int[], %(maxima)s::int[], %(since)s::bigint[], %(after)s::{TYPE}[],
  %(past)s::text[]) u(queue, rank, most, since, after, past)"""


@dataclass(frozen=True, slots=True)
class _Table:
    """What the statements about jobs and those about items differ in."""

    name: str
    ident: str
    type: str
    state: str
    still_open: str
    columns: str
    filter: str

    def listing(self, name: str, *, where: str, order: str, merge: str) -> Listing:
        """The two statements: `where` a stream's rows are, in which `order` its index has them, how to merge."""
        collate = ' COLLATE "C"' if self.type == "text" else ""

        def fill(text: str) -> str:
            return text.replace("{IDENT}", self.ident).replace("{AFTER}", f"u.after{collate}")

        streams = f"FROM {_STREAMS.replace('{TYPE}', self.type)}"
        seen = f"""SELECT q.*, {self.state.replace("%(max)s::int", "u.most")} AS state,
       row_number() OVER (ORDER BY {fill(order)}) AS nth
      FROM {self.name} q WHERE {fill(where)} ORDER BY {fill(order)} LIMIT %(look)s::int"""
        # No stream is read further than its share of the page.
        page = f"""SELECT {self.columns} {streams} CROSS JOIN LATERAL (
      SELECT x.*, ({self.filter}) AS matches FROM ({seen}) x WHERE ({self.filter}) OR x.nth = %(look)s::int
      ORDER BY {fill(order).replace("q.", "x.")} LIMIT %(limit)s::int) x
     ORDER BY {fill(merge)} LIMIT %(limit)s::int"""
        count = f"""SELECT count(*) FILTER (WHERE {self.filter}), COALESCE(max(x.nth) = %(look)s::int, false)
     {streams} CROSS JOIN LATERAL ({seen}) x"""
        return Listing(
            Statement(f"browse_{name}_page", page, prepare=False, for_people=True),
            Statement(f"browse_{name}_count", count, prepare=False, for_people=True),
        )

    def waiting(self, name: str, side: str) -> Listing:
        """Of what is open, what has begun (`<=` now) or has not (`>`), as claims go about it."""
        return self.listing(
            name,
            where=f"""q.queue = u.queue AND {self.still_open} AND -q.priority = u.rank
       AND q.available_at {side} statement_timestamp()
       AND (q.available_at, q.{{IDENT}}, u.queue COLLATE "C") > ({_TIME}, {{AFTER}}, u.past)""",
            order="q.available_at, q.{IDENT}",
            merge="-x.priority, x.available_at, x.{IDENT}, x.queue",
        )

    def closed(self, name: str, *, which: str, at: str) -> Listing:
        """What ended in one way, the latest first."""
        return self.listing(
            name,
            where=f"""q.queue = u.queue AND {which}
       AND (q.{at}, q.{{IDENT}}, u.queue COLLATE "C") < ({_TIME}, {{AFTER}}, u.past)""",
            order=f"q.{at} DESC, q.{{IDENT}} DESC",
            merge=f"x.{at} DESC, x.{{IDENT}} DESC, x.queue DESC",
        )

    def ranks(self, name: str, ranks: str) -> Statement:
        """The ranks in use, of each of some queues."""
        loose = ranks.replace("{{Q}}", "u.queue").replace("{Q}", "u.queue")
        return Statement(
            f"browse_{name}_ranks",
            f"""SELECT u.queue, x.r FROM unnest(%(queues)s::text[]) u(queue) CROSS JOIN LATERAL (
             WITH RECURSIVE {loose} SELECT r FROM rank WHERE r IS NOT NULL LIMIT %(limit)s::int) x""",
            prepare=False,
            for_people=True,
        )


_STATE = JOB_STATE.replace("'stalled'", "'dead'")  # what stats count under one name with items

_JOBS = _Table("workqueue_job", "id", "bigint", _STATE, jobs.OPEN, _JOB_COLUMNS, _JOB_FILTER)
_ITEMS = _Table("workqueue_item", "key", "text", ITEM_STATE, items.OPEN, _ITEM_COLUMNS, _ITEM_FILTER)

JOBS_BEGUN = _JOBS.waiting("jobs_begun", "<=")
JOBS_LATER = _JOBS.waiting("jobs_later", ">")
JOBS_FINISHED = {
    outcome: _JOBS.closed(f"jobs_{outcome}", which=f"q.outcome = '{outcome}'", at="finished_at")
    for outcome in ("completed", "dead", "cancelled")
}
JOBS_NEWEST = _JOBS.listing("jobs_newest", where="q.id < {AFTER}", order="q.id DESC", merge="x.id DESC")
JOB_RANKS = _JOBS.ranks("jobs", jobs._RANKS)

ITEMS_BEGUN = _ITEMS.waiting("items_begun", "<=")
ITEMS_LATER = _ITEMS.waiting("items_later", ">")
ITEMS_CLOSED = {
    "completed": _ITEMS.closed("items_completed", which="q.completed_at IS NOT NULL", at="completed_at"),
    "stalled": _ITEMS.closed("items_stalled", which="q.stalled_at IS NOT NULL", at="stalled_at"),
}
ITEMS_BY_KEY = _ITEMS.listing(
    "items_by_key",
    where="""q.queue = u.queue AND q.key > {AFTER}
       AND (%(prefix)s::text IS NULL OR q.key >= %(prefix)s::text)
       AND (%(below)s::text IS NULL OR q.key < %(below)s::text)""",
    order="q.key",
    merge="x.queue, x.key",
)
ITEM_RANKS = _ITEMS.ranks("items", items._RANKS)

# What was enqueued inside transactions and not taken in yet, the earliest first.
INBOX = Statement(
    "browse_inbox",
    """SELECT i.id, i.queue, i.key, i.priority, i.available_at, i.available_at <= statement_timestamp()
     FROM (SELECT i.* FROM workqueue_inbox i WHERE i.id > %(after)s::bigint ORDER BY i.id LIMIT %(look)s::int) i
     WHERE (%(queue)s::text IS NULL OR i.queue = %(queue)s::text)
      AND (%(prefix)s::text IS NULL OR starts_with(i.key, %(prefix)s::text))
     ORDER BY i.id LIMIT %(limit)s::int""",
    prepare=False,
    for_people=True,
)

JOB_STATE_OF = Statement(
    "browse_job_state",
    f"SELECT {_STATE} FROM workqueue_job q WHERE q.queue = %(queue)s AND q.id = %(ident)s::bigint",
    prepare=False,
    for_people=True,
)
ITEM_STATE_OF = Statement(
    "browse_item_state",
    f"SELECT {ITEM_STATE} FROM workqueue_item q WHERE q.queue = %(queue)s AND q.key = %(ident)s::text",
    prepare=False,
    for_people=True,
)
