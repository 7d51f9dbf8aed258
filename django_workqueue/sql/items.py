"""The keyed queue's statements.

Rules that shape them all (docs/explanation/sql.md has the measurements): every table reference names its
queue; rows are joined on keys, never on ctid, because a statement that waited for a lock holds a row version
its own snapshot cannot see; keys reach an UPDATE as `= ANY (ARRAY(…))`, which is an index lookup whatever the
statistics say; the time is `statement_timestamp()`, taken in the locking CTE and carried from there; every
waiting lock is taken in key order.
"""

from .due import next_due
from .statement import Statement

# What was asked for again during its last attempt starts afresh, so that it always has one left. What waits was
# asked for as well, whatever it has collected under other settings.
ATTEMPTS_LEFT = """(%(max)s::int <= 0 OR q.attempts < %(max)s::int OR q.requeue_at IS NOT NULL
 OR q.lease_until = 'epoch')"""

# What a claim may take. Stats count by the same words, so that "ready" is what a claim would hand out.
DUE = f"q.available_at <= statement_timestamp() AND q.lease_until <= statement_timestamp() AND {ATTEMPTS_LEFT}"

# Neither completed nor stalled: waiting or leased. The predicate of the claim index.
OPEN = "q.completed_at IS NULL AND q.stalled_at IS NULL"

# How an enqueue merges with the row that is there. The closing WHERE spares the write when nothing changes.
# A raised priority must not put an old time behind a claim floor, hence GREATEST(…, excluded.enqueued_at).
CONFLICT = f"""ON CONFLICT (queue, key) DO UPDATE SET
 priority = CASE WHEN {OPEN} THEN GREATEST(q.priority, excluded.priority) ELSE excluded.priority END,
 available_at = CASE WHEN NOT ({OPEN}) THEN excluded.available_at
  WHEN q.lease_until > 'epoch' THEN q.available_at
  WHEN excluded.priority > q.priority THEN GREATEST(LEAST(q.available_at, excluded.available_at), excluded.enqueued_at)
  ELSE LEAST(q.available_at, excluded.available_at) END,
 requeue_at = CASE WHEN {OPEN} AND q.lease_until > 'epoch' THEN LEAST(q.requeue_at, excluded.available_at) END,
 enqueued_at = CASE WHEN {OPEN} THEN q.enqueued_at ELSE excluded.enqueued_at END,
 attempts = CASE WHEN {OPEN} THEN q.attempts ELSE 0 END,
 last_error = CASE WHEN {OPEN} THEN q.last_error END,
 completed_at = NULL, stalled_at = NULL
WHERE NOT ({OPEN}) OR excluded.priority > q.priority
 OR (q.lease_until > 'epoch' AND (q.requeue_at IS NULL OR excluded.available_at < q.requeue_at))
 OR (q.lease_until = 'epoch' AND excluded.available_at < q.available_at)"""

ENQUEUE = Statement(
    "item_enqueue",
    f"""
    INSERT INTO workqueue_item AS q (queue, key, priority, enqueued_at, available_at)
    SELECT {{Q}}, u.k, u.p, statement_timestamp(), statement_timestamp() + u.d * interval '1 microsecond'
    FROM unnest(%(keys)s::text[], %(priorities)s::int[], %(delays)s::bigint[]) u(k, p, d) ORDER BY u.k COLLATE "C"
    {CONFLICT}
    """,
    silent=True,
)

# Takes no lock that anyone else could want: a row of its own, whatever other transactions enqueued.
INBOX = Statement(
    "inbox_enqueue",
    """
    INSERT INTO workqueue_inbox (queue, key, priority, available_at, tx)
    SELECT {Q}, u.k, u.p, statement_timestamp() + u.d * interval '1 microsecond', %(tx)s::bigint
    FROM unnest(%(keys)s::text[], %(priorities)s::int[], %(delays)s::bigint[]) u(k, p, d)
    """,
)

# Rows that somebody's open transaction holds stay in the inbox; the rest is folded. The answer: entries looked at,
# rows that were held, the highest id looked at, for the next fold's floor, and the cost.
_FOLD = f"""
    WITH got AS MATERIALIZED (
     SELECT i.id, i.key FROM workqueue_inbox i WHERE i.queue = {{Q}} AND {{WHOSE}}
     ORDER BY i.id LIMIT %(limit)s::int FOR UPDATE SKIP LOCKED),
    free AS MATERIALIZED (
     SELECT q.key FROM workqueue_item q WHERE q.queue = {{Q}} AND q.key = ANY (ARRAY(SELECT key FROM got))
     ORDER BY q.key FOR UPDATE SKIP LOCKED),
    held AS MATERIALIZED (
     SELECT q.key FROM workqueue_item q WHERE q.queue = {{Q}} AND q.key = ANY (ARRAY(SELECT key FROM got))
      AND q.key <> ALL (ARRAY(SELECT key FROM free))),
    gone AS (
     DELETE FROM workqueue_inbox i WHERE i.queue = {{Q}}
      AND i.id = ANY (ARRAY(SELECT id FROM got WHERE key <> ALL (ARRAY(SELECT key FROM held))))
     RETURNING i.key, i.priority, i.available_at),
    folded AS (
     INSERT INTO workqueue_item AS q (queue, key, priority, enqueued_at, available_at)
     SELECT {{Q}}, key, max(priority), statement_timestamp(), GREATEST(min(available_at), statement_timestamp())
     FROM gone GROUP BY key ORDER BY key
     {CONFLICT})
    SELECT (SELECT count(*) FROM got), (SELECT count(*) FROM held), (SELECT max(id) FROM got),
     (extract(epoch FROM clock_timestamp() - statement_timestamp()) * 1000000)::bigint
"""
# A row that an open transaction has inserted cannot be seen, and so not be skipped: the statement bounds its own wait.
_PATIENT = "(SELECT set_config('lock_timeout', %(patience)s::text, true)) IS NOT NULL"
_SINCE = "i.id >= %(since)s::bigint"
_ASIDE = "i.id <> ALL (%(aside)s::bigint[])"
FOLD = Statement("inbox_fold", _FOLD.replace("{WHOSE}", f"{_SINCE} AND {_ASIDE} AND {_PATIENT}"), prepare=False)
FOLD_OWN = Statement("inbox_fold_own", _FOLD.replace("{WHOSE}", f"i.tx = %(tx)s::bigint AND {_SINCE}"), prepare=False)

INBOX_FIRST = Statement(
    "inbox_first",
    f"SELECT i.id FROM workqueue_inbox i WHERE i.queue = {{Q}} AND {_SINCE} AND {_ASIDE} ORDER BY i.id LIMIT 1",
    prepare=False,
)

# One interval per known priority, each from its floor, and one for each gap between them. An interval of one
# priority is an index range that begins at the floor, past whatever is dead or leased in front of it.
# Nothing is taken from a paused queue, nor, where the claim is to `ask`, before the inbox is folded: by the snapshot of
# the claim itself, so that what was asked for in a transaction and what waits already are one piece of work.
# The last row is the claim's own: the server's time, its cost, whether paused, whether unfolded, the cost of asking.
_LEASABLE = """SELECT q.key, q.lease_until AS prior,
   statement_timestamp() + %(lease)s::bigint * interval '1 microsecond' AS until
   FROM workqueue_item q WHERE q.queue = {Q}"""
_LEASABLE_END = f"""AND {DUE} ORDER BY -q.priority, q.available_at, q.key LIMIT %(limit)s::int FOR UPDATE SKIP LOCKED"""
CLAIM = Statement(
    "item_claim",
    f"""
    WITH halt AS MATERIALIZED (
     SELECT EXISTS (SELECT 1 FROM workqueue_queue w WHERE w.name = {{Q}} AND w.paused_at IS NOT NULL) AS paused,
      clock_timestamp() AS asked,
      %(ask)s::boolean AND EXISTS (SELECT 1 FROM workqueue_inbox i WHERE i.queue = {{Q}}) AS unfolded,
      clock_timestamp() AS answered),
    due AS MATERIALIZED (
     SELECT x.key, x.prior, x.until
     FROM unnest(%(lo)s::int[], %(since)s::bigint[], %(after)s::text[], %(hi)s::int[])
      WITH ORDINALITY f(lo, since, after, hi, i)
     CROSS JOIN LATERAL (
      SELECT * FROM ({_LEASABLE} AND {OPEN} AND f.lo = f.hi AND -q.priority = f.lo
       AND (q.available_at, q.key) > (timestamptz 'epoch' + f.since * interval '1 microsecond', f.after COLLATE "C")
       {_LEASABLE_END}) one
      UNION ALL
      SELECT * FROM ({_LEASABLE} AND {OPEN} AND f.lo < f.hi AND -q.priority >= f.lo AND -q.priority <= f.hi
       {_LEASABLE_END}) gap) x
     WHERE NOT (SELECT paused OR unfolded FROM halt)
     ORDER BY f.i LIMIT %(limit)s::int),
    upd AS (
     UPDATE workqueue_item q SET lease_until = (SELECT until FROM due LIMIT 1), lease_token = %(token)s::bigint,
      requeue_at = NULL,
      attempts = CASE WHEN %(max)s::int > 0 AND q.attempts >= %(max)s::int AND q.requeue_at IS NOT NULL THEN 1
       ELSE q.attempts + 1 END
     WHERE q.queue = {{Q}} AND q.key = ANY (ARRAY(SELECT key FROM due))
     RETURNING q.key, q.priority, q.attempts, q.available_at)
    SELECT upd.key, upd.priority, upd.attempts, (date_part('epoch', upd.available_at) * 1000000)::bigint AS available,
     upd.key = ANY (ARRAY(SELECT key FROM due WHERE prior > 'epoch')) AS reclaimed, NULL::bigint[] AS own
    FROM upd
    UNION ALL
    SELECT NULL, NULL, NULL, NULL, NULL, ARRAY[(date_part('epoch', statement_timestamp()) * 1000000)::bigint,
     (date_part('epoch', clock_timestamp() - statement_timestamp()) * 1000000)::bigint,
     paused::int, unfolded::int, (date_part('epoch', answered - asked) * 1000000)::bigint]
    FROM halt
    """,
    ordered=True,
)

# The ranks in use: a loose scan of the claim index, one seek for each.
_RANKS = f"""rank(r) AS (
     (SELECT -q.priority FROM workqueue_item q WHERE q.queue = {{Q}} AND {OPEN} ORDER BY -q.priority LIMIT 1)
     UNION ALL
     SELECT (SELECT -q.priority FROM workqueue_item q WHERE q.queue = {{Q}} AND {OPEN} AND -q.priority > rank.r
      ORDER BY -q.priority LIMIT 1)
     FROM rank WHERE rank.r IS NOT NULL)"""

DISCOVER = Statement(
    "item_discover",
    f"WITH RECURSIVE {_RANKS} SELECT r FROM rank WHERE r IS NOT NULL LIMIT %(limit)s::int",
    ordered=True,
)

NEXT_DUE = next_due("item", table="workqueue_item", wanted=OPEN, ident="key", ranks=_RANKS)

# Three ways to say whose lease a terminal write acts on: one claim's, several claims', or whatever is there. Each
# wants one to be there: an item that was never claimed has no token, and nor has a waiting row.
_ONE_CLAIM = "q.lease_token = %(token)s::bigint"
_CLAIMS = "q.lease_token = (%(tokens)s::bigint[])[width_bucket(q.key, %(keys)s::text[])]"
_ANY_LEASE = "true"

_TARGET = """WITH target AS MATERIALIZED (
     SELECT q.key, q.requeue_at, statement_timestamp() AS t FROM workqueue_item q
     WHERE q.queue = {Q} AND q.key = ANY (%(keys)s::text[]) AND q.lease_until > 'epoch' AND {FENCE}
      AND q.completed_at IS NULL
     ORDER BY q.key FOR UPDATE)"""

# Where each key has values of its own, they stand at its place in arrays beside the keys, which come sorted and
# none of them twice: width_bucket is a binary search. (A join would be nested: the planner expects one row.)
_PLACE = "width_bucket(q.key, %(keys)s::text[])"

# Asked for again while it was leased: due afresh. Nothing else turns requeue_at into work.
_AGAIN = """available_at = GREATEST(q.requeue_at, (SELECT t FROM target LIMIT 1)),
      enqueued_at = (SELECT t FROM target LIMIT 1),
      attempts = 0, requeue_at = NULL, lease_until = 'epoch', lease_token = 0, last_error = NULL"""

# How many were ended, and in how many µs the first of those comes due that were asked for again.
_ENDED = """SELECT (SELECT count(*) FROM done) + (SELECT count(*) FROM again),
     (SELECT (date_part('epoch', min(available_at) - statement_timestamp()) * 1000000)::bigint FROM again)"""

_COMPLETE_KEEP = f"""{_TARGET},
    again AS (
     UPDATE workqueue_item q SET {_AGAIN}
     WHERE q.queue = {{Q}} AND q.key = ANY (ARRAY(SELECT key FROM target WHERE requeue_at IS NOT NULL))
     RETURNING q.available_at),
    done AS (
     UPDATE workqueue_item q SET completed_at = (SELECT t FROM target LIMIT 1), lease_until = 'epoch', lease_token = 0,
      last_error = NULL
     WHERE q.queue = {{Q}} AND q.key = ANY (ARRAY(SELECT key FROM target WHERE requeue_at IS NULL)) RETURNING q.key)
    {_ENDED}"""

_COMPLETE_DELETE = f"""{_TARGET},
    again AS (
     UPDATE workqueue_item q SET {_AGAIN}
     WHERE q.queue = {{Q}} AND q.key = ANY (ARRAY(SELECT key FROM target WHERE requeue_at IS NOT NULL))
     RETURNING q.available_at),
    done AS (
     DELETE FROM workqueue_item q
     WHERE q.queue = {{Q}} AND q.key = ANY (ARRAY(SELECT key FROM target WHERE requeue_at IS NULL)) RETURNING q.key)
    {_ENDED}"""

COMPLETE_KEEP = Statement("item_complete_keep", _COMPLETE_KEEP.replace("{FENCE}", _ONE_CLAIM))
COMPLETE_KEEP_CLAIMS = Statement("item_complete_keep_claims", _COMPLETE_KEEP.replace("{FENCE}", _CLAIMS))
COMPLETE_KEEP_ANY = Statement("item_complete_keep_any", _COMPLETE_KEEP.replace("{FENCE}", _ANY_LEASE))
COMPLETE_DELETE = Statement("item_complete_delete", _COMPLETE_DELETE.replace("{FENCE}", _ONE_CLAIM))
COMPLETE_DELETE_CLAIMS = Statement("item_complete_delete_claims", _COMPLETE_DELETE.replace("{FENCE}", _CLAIMS))
COMPLETE_DELETE_ANY = Statement("item_complete_delete_any", _COMPLETE_DELETE.replace("{FENCE}", _ANY_LEASE))

# PermanentError: over and done with, its error kept for the retention.
FINISH = Statement(
    "item_finish",
    f"""
    WITH target AS MATERIALIZED (
     SELECT q.key, q.requeue_at, (%(errors)s::text[])[{_PLACE}] AS e, statement_timestamp() AS t FROM workqueue_item q
     WHERE q.queue = {{Q}} AND q.key = ANY (%(keys)s::text[]) AND q.lease_until > 'epoch' AND {_CLAIMS}
      AND q.completed_at IS NULL
     ORDER BY q.key FOR UPDATE),
    again AS (
     UPDATE workqueue_item q SET {_AGAIN}
     WHERE q.queue = {{Q}} AND q.key = ANY (ARRAY(SELECT key FROM target WHERE requeue_at IS NOT NULL))
     RETURNING q.available_at),
    done AS (
     UPDATE workqueue_item q SET completed_at = target.t, lease_until = 'epoch', lease_token = 0, last_error = target.e
     FROM target WHERE q.queue = {{Q}} AND q.key = target.key
      AND q.key = ANY (ARRAY(SELECT key FROM target WHERE requeue_at IS NULL)) RETURNING q.key)
    {_ENDED}
    """,
)

# `uncount` is 1 where the attempt does not count (given back unstarted, or Retry), else 0. The last attempt
# stalls, unless the key was asked for during the run: then it starts afresh at the time asked for, after a failure
# behind its backoff.
_RELEASE = f"""
    WITH target AS MATERIALIZED (
     SELECT q.key, statement_timestamp() AS t,
      statement_timestamp() + (%(delays)s::bigint[])[{_PLACE}] * interval '1 microsecond' AS td,
      (%(errors)s::text[])[{_PLACE}] AS e, (%(uncounts)s::int[])[{_PLACE}] AS n,
      %(max)s::int > 0 AND q.attempts - (%(uncounts)s::int[])[{_PLACE}] >= %(max)s::int AS last
     FROM workqueue_item q
     WHERE q.queue = {{Q}} AND q.key = ANY (%(keys)s::text[]) AND q.lease_until > 'epoch' AND {{FENCE}}
      AND q.completed_at IS NULL
     ORDER BY q.key FOR UPDATE),
    back AS (
     UPDATE workqueue_item q SET lease_until = 'epoch', lease_token = 0, requeue_at = NULL,
      last_error = COALESCE(target.e, q.last_error),
      available_at = CASE WHEN q.requeue_at IS NULL THEN target.td
       WHEN target.last THEN GREATEST(q.requeue_at, CASE WHEN target.e IS NULL THEN target.t ELSE target.td END)
       WHEN target.e IS NULL THEN LEAST(target.td, GREATEST(q.requeue_at, target.t)) ELSE target.td END,
      attempts = CASE WHEN target.last AND q.requeue_at IS NOT NULL THEN 0 ELSE GREATEST(q.attempts - target.n, 0) END,
      stalled_at = CASE WHEN target.last AND q.requeue_at IS NULL THEN target.t END
     FROM target WHERE q.queue = {{Q}} AND q.key = target.key AND q.key = ANY (ARRAY(SELECT key FROM target))
     RETURNING q.available_at, q.stalled_at IS NOT NULL AS stalled)
    SELECT count(*), count(*) FILTER (WHERE stalled),
     (date_part('epoch', min(available_at) FILTER (WHERE NOT stalled) - statement_timestamp()) * 1000000)::bigint
    FROM back"""
RELEASE = Statement("item_release", _RELEASE.replace("{FENCE}", _CLAIMS))
RELEASE_ANY = Statement("item_release_any", _RELEASE.replace("{FENCE}", _ANY_LEASE))

# Never waits (the handler may hold its own row in its own atomic()) and never shortens.
EXTEND = Statement(
    "item_extend",
    """
    WITH target AS MATERIALIZED (
     SELECT q.key, statement_timestamp() + %(lease)s::bigint * interval '1 microsecond' AS until FROM workqueue_item q
     WHERE q.queue = {Q} AND q.key = ANY (%(keys)s::text[]) AND q.lease_token = %(token)s::bigint
      AND q.lease_until > 'epoch' AND q.completed_at IS NULL
     ORDER BY q.key FOR UPDATE SKIP LOCKED),
    held AS (
     UPDATE workqueue_item q SET lease_until = GREATEST(q.lease_until, (SELECT until FROM target LIMIT 1))
     WHERE q.queue = {Q} AND q.key = ANY (ARRAY(SELECT key FROM target)) RETURNING q.key)
    SELECT key FROM held
    """,
)

HELD = Statement(
    "item_held",
    """
    SELECT q.key FROM workqueue_item q WHERE q.queue = {Q} AND q.key = ANY (%(keys)s::text[])
     AND q.lease_token = %(token)s::bigint AND q.lease_until > 'epoch' AND q.completed_at IS NULL
    """,
)

# Of items whose run is over and changed nothing, or that are no longer their worker's: whether another holds them.
TOKENS = Statement(
    "item_tokens",
    "SELECT q.key, q.lease_token FROM workqueue_item q WHERE q.queue = {Q} AND q.key = ANY (%(keys)s::text[])",
)

# The inbox first, and the items in a statement of their own: what a fold took out of the inbox while the first one
# waited for it is among the items that the second one sees.
REMOVE_UNFOLDED = Statement(
    "inbox_remove",
    """
    WITH target AS MATERIALIZED (
     SELECT i.id FROM workqueue_inbox i WHERE i.queue = {Q} AND i.key = ANY (%(keys)s::text[])
     ORDER BY i.id FOR UPDATE),
    gone AS (
     DELETE FROM workqueue_inbox i WHERE i.queue = {Q} AND i.id = ANY (ARRAY(SELECT id FROM target)) RETURNING i.key)
    SELECT DISTINCT key FROM gone
    """,
)
REMOVE = Statement(
    "item_remove",
    """
    WITH target AS MATERIALIZED (
     SELECT q.key FROM workqueue_item q WHERE q.queue = {Q} AND q.key = ANY (%(keys)s::text[])
     ORDER BY q.key FOR UPDATE),
    gone AS (
     DELETE FROM workqueue_item q WHERE q.queue = {Q} AND q.key = ANY (ARRAY(SELECT key FROM target)) RETURNING q.key)
    SELECT key FROM gone
    """,
)

REAP = Statement(
    "item_reap",
    """
    WITH old AS MATERIALIZED (
     SELECT q.key FROM workqueue_item q WHERE q.queue = {Q} AND q.completed_at IS NOT NULL
      AND q.completed_at <= statement_timestamp() - %(retention)s::bigint * interval '1 microsecond'
     ORDER BY q.completed_at LIMIT %(limit)s::int FOR UPDATE SKIP LOCKED),
    gone AS (
     DELETE FROM workqueue_item q WHERE q.queue = {Q} AND q.key = ANY (ARRAY(SELECT key FROM old)) RETURNING 1)
    SELECT count(*) FROM gone
    """,
    ordered=True,
)

# The last attempt's lease lapsed with nothing asked for since. Sought rank by rank, among what claims look at: without
# the ranks, the scan would wade through all that is scheduled for later.
STALL = Statement(
    "item_stall",
    f"""
    WITH RECURSIVE {_RANKS},
    target AS MATERIALIZED (
     SELECT x.key, x.t FROM rank CROSS JOIN LATERAL (
      SELECT q.key, statement_timestamp() AS t FROM workqueue_item q
      WHERE q.queue = {{Q}} AND {OPEN} AND -q.priority = rank.r AND q.available_at <= statement_timestamp()
       AND q.lease_until > 'epoch' AND q.lease_until <= statement_timestamp()
       AND q.attempts >= %(max)s::int AND q.requeue_at IS NULL
      ORDER BY q.available_at, q.key LIMIT %(limit)s::int FOR UPDATE SKIP LOCKED) x
     LIMIT %(limit)s::int),
    spent AS (
     UPDATE workqueue_item q SET stalled_at = (SELECT t FROM target LIMIT 1), lease_until = 'epoch', lease_token = 0,
      last_error = COALESCE(q.last_error, %(error)s::text)
     WHERE q.queue = {{Q}} AND q.key = ANY (ARRAY(SELECT key FROM target)) RETURNING q.key)
    SELECT key FROM spent
    """,
    ordered=True,
)

# Due at once, whatever was said before: all that waits, or the keys named, but for those in `skip`.
HURRY = Statement(
    "item_hurry",
    f"""
    WITH target AS MATERIALIZED (
     SELECT q.key, statement_timestamp() AS t FROM workqueue_item q
     WHERE q.queue = {{Q}} AND {OPEN} AND q.lease_until = 'epoch' AND q.available_at > statement_timestamp()
      AND (%(keys)s::text[] IS NULL OR q.key = ANY (%(keys)s::text[])) AND q.key <> ALL (%(skip)s::text[])
     ORDER BY q.key LIMIT %(limit)s::int FOR UPDATE),
    hurried AS (
     UPDATE workqueue_item q SET available_at = (SELECT t FROM target LIMIT 1)
     WHERE q.queue = {{Q}} AND q.key = ANY (ARRAY(SELECT key FROM target)) RETURNING 1)
    SELECT count(*) FROM hurried
    """,
    prepare=False,
)
