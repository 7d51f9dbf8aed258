"""The job queue's statements. They have the shape of the keyed queue's (see `items`), on ids instead of keys."""

from .due import next_due
from .statement import Statement

# A lapsed lease on the last attempt is due again only if its handler never started.
DUE = """q.available_at <= statement_timestamp() AND q.lease_until <= statement_timestamp()
 AND (q.attempts < q.max_attempts OR q.started_at IS NULL)"""

# Neither completed, dead nor cancelled. The predicate of the claim index.
OPEN = "q.outcome IS NULL"

# The same for statements that name their rows. It does not imply the predicate of an index by queue, which the
# planner, knowing nothing of the queue, would walk from end to end instead of looking the ids up. (A live token
# implies it, so what is fenced need not ask.)
_OPEN_BY_ID = "COALESCE(q.outcome, '') = ''"

# Ids are allotted before the insert, so that a flush repeated after a lost connection finds its rows there.
ALLOT = Statement(
    "job_allot",
    "SELECT array_agg(nextval('workqueue_job_id_seq')) FROM generate_series(1, %(count)s::int)",
)

# Ids that are taken already, because the sequence was set back, are passed over.
PASS_OVER = Statement(
    "job_pass_over",
    "SELECT max(nextval('workqueue_job_id_seq')) FROM generate_series(1, %(count)s::int)",
)

_COLUMNS = "queue, kind, payload, priority, max_attempts, enqueued_at, available_at, metadata"
_VALUES = """{Q}, u.kind, u.payload::jsonb, u.p, u.m, statement_timestamp(),
     GREATEST(statement_timestamp() + u.d * interval '1 microsecond',
      timestamptz 'epoch' + u.r * interval '1 microsecond'), u.metadata::jsonb"""
_ARRAYS = """%(kinds)s::text[], %(payloads)s::text[], %(priorities)s::int[], %(maxima)s::int[], %(delays)s::bigint[],
     %(run_ats)s::bigint[], %(metadata)s::text[]"""

# Jobs that are due at once, under ids that were never sent before, take the columns' defaults. It is as quick as COPY;
# looking for conflicts costs half as much again. (A unique violation tells that an id was taken after all.)
ENQUEUE_NOW = Statement(
    "job_enqueue_now",
    """
    INSERT INTO workqueue_job (id, queue, kind, payload, priority, max_attempts)
    SELECT u.id, {Q}, u.kind, u.payload::jsonb, u.p, u.m
    FROM unnest(%(ids)s::bigint[], %(kinds)s::text[], %(payloads)s::text[], %(priorities)s::int[], %(maxima)s::int[])
     u(id, kind, payload, p, m)
    """,
    silent=True,
)

_INSERT = f"""
    INSERT INTO workqueue_job (id, {_COLUMNS}) SELECT u.id, {_VALUES}
    FROM unnest(%(ids)s::bigint[], {_ARRAYS}) u(id, kind, payload, p, m, d, r, metadata)
    ON CONFLICT (id, queue) DO NOTHING RETURNING id"""
ENQUEUE = Statement("job_enqueue", _INSERT)
ENQUEUE_TIMED = Statement("job_enqueue_timed", f"{_INSERT}, enqueued_at")

# Of the ids of a write that is repeated, those under which somebody else's job is found: given out twice by a server
# that took over and had not seen the last of the sequence.
FOREIGN = Statement(
    "job_foreign",
    """
    SELECT u.id FROM unnest(%(ids)s::bigint[], %(kinds)s::text[], %(payloads)s::text[]) u(id, kind, payload)
    WHERE EXISTS (SELECT 1 FROM workqueue_job q
     WHERE q.queue = {Q} AND q.id = u.id AND (q.kind, q.payload) <> (u.kind, u.payload::jsonb))
    """,
    prepare=False,
)

# In a caller's transaction. Ids come from the sequence in the order of the sort, so ascending ids are in order. One
# that is there already, because the sequence was set back, must not fail the transaction: what landed beside it is
# taken back then, and inserted anew.
_INSERT_INSIDE = f"""
    INSERT INTO workqueue_job ({_COLUMNS}) SELECT {_VALUES}
    FROM unnest({_ARRAYS}) WITH ORDINALITY u(kind, payload, p, m, d, r, metadata, i) ORDER BY u.i
    ON CONFLICT (id, queue) DO NOTHING RETURNING id"""
ENQUEUE_INSIDE = Statement("job_enqueue_inside", _INSERT_INSIDE)
ENQUEUE_INSIDE_TIMED = Statement("job_enqueue_inside_timed", f"{_INSERT_INSIDE}, enqueued_at")

TAKE_BACK = Statement(
    "job_take_back",
    """
    WITH target AS MATERIALIZED (
     SELECT q.id FROM workqueue_job q WHERE q.queue = {Q} AND q.id = ANY (%(ids)s::bigint[]) ORDER BY q.id FOR UPDATE),
    gone AS (
     DELETE FROM workqueue_job q WHERE q.queue = {Q} AND q.id = ANY (ARRAY(SELECT id FROM target)) RETURNING 1)
    SELECT count(*) FROM gone
    """,
)

# The transaction stayed open for long: no floor may be past its jobs already.
RESTAMP = Statement(
    "job_restamp",
    f"""
    WITH target AS MATERIALIZED (
     SELECT q.id, statement_timestamp() AS t FROM workqueue_job q
     WHERE q.queue = {{Q}} AND q.id = ANY (%(ids)s::bigint[]) AND {_OPEN_BY_ID} AND q.lease_until = 'epoch'
      AND q.available_at < statement_timestamp() ORDER BY q.id FOR UPDATE SKIP LOCKED)
    UPDATE workqueue_job q SET available_at = (SELECT t FROM target LIMIT 1)
    WHERE q.queue = {{Q}} AND q.id = ANY (ARRAY(SELECT id FROM target))
    """,
)

_WORKER = "to_jsonb(%(worker)s::text) AS w"

# `mark` counts the start at once, for consumers by hand. Of the lapsed only a few are taken at a time: what kills
# its worker must not take the leases of hundreds with it again and again. Of tasks every start is marked, so one
# that lapsed without has its attempt still before it.
_LEASABLE = """SELECT q.id, q.lease_until AS prior, statement_timestamp() AS t,
   statement_timestamp() + %(lease)s::bigint * interval '1 microsecond' AS until
   FROM workqueue_job q WHERE q.queue = {Q}"""
_OF_KINDS = "(%(kinds)s::text[] IS NULL OR q.kind = ANY (%(kinds)s::text[]))"

_LEASABLE_END = f"""AND {DUE} AND {_OF_KINDS}
       ORDER BY -q.priority, q.available_at, q.id LIMIT %(limit)s::int FOR UPDATE SKIP LOCKED"""
CLAIM = Statement(
    "job_claim",
    f"""
    WITH halt AS MATERIALIZED (
     SELECT EXISTS (SELECT 1 FROM workqueue_queue w WHERE w.name = {{Q}} AND w.paused_at IS NOT NULL) AS paused,
      {_WORKER}),
    due AS MATERIALIZED (
     SELECT x.id, x.prior, x.t, x.until
     FROM unnest(%(lo)s::int[], %(since)s::bigint[], %(after)s::bigint[], %(hi)s::int[])
      WITH ORDINALITY f(lo, since, after, hi, i)
     CROSS JOIN LATERAL (
      SELECT * FROM ({_LEASABLE} AND {OPEN} AND f.lo = f.hi AND -q.priority = f.lo
       AND (q.available_at, q.id) > (timestamptz 'epoch' + f.since * interval '1 microsecond', f.after)
       {_LEASABLE_END}) one
      UNION ALL
      SELECT * FROM ({_LEASABLE} AND {OPEN} AND f.lo < f.hi AND -q.priority >= f.lo AND -q.priority <= f.hi
       {_LEASABLE_END}) gap) x
     WHERE NOT (SELECT paused FROM halt)
     ORDER BY f.i LIMIT %(limit)s::int),
    taken AS MATERIALIZED (
     SELECT id FROM due WHERE prior = 'epoch'
     UNION ALL SELECT id FROM (SELECT id FROM due WHERE prior > 'epoch' LIMIT %(lapsed)s::int) lapsed),
    upd AS (
     UPDATE workqueue_job q SET lease_until = (SELECT until FROM due LIMIT 1), lease_token = %(token)s::bigint,
      attempts = CASE WHEN q.lease_until > 'epoch' AND q.started_at IS NULL AND q.metadata ? 'task' THEN q.attempts
       ELSE LEAST(q.attempts + 1, q.max_attempts) END,
      started_at = CASE WHEN %(mark)s::boolean THEN (SELECT t FROM due LIMIT 1) END,
      worker_ids = CASE WHEN %(mark)s::boolean THEN q.worker_ids || (SELECT w FROM halt) ELSE q.worker_ids END
     WHERE q.queue = {{Q}} AND q.id = ANY (ARRAY(SELECT id FROM taken))
     RETURNING q.id, q.priority, q.attempts, q.available_at, q.kind, q.payload, q.max_attempts, q.enqueued_at,
      CASE jsonb_typeof(q.errors -> -1) WHEN 'object' THEN (q.errors -> -1) - 'traceback' END AS error, q.metadata)
    SELECT upd.id, upd.priority, upd.attempts, (date_part('epoch', upd.available_at) * 1000000)::bigint AS available,
     upd.id = ANY (ARRAY(SELECT id FROM due WHERE prior > 'epoch')) AS reclaimed,
     upd.kind, upd.payload::text, upd.max_attempts, (date_part('epoch', upd.enqueued_at) * 1000000)::bigint,
     upd.error::text, NULLIF(upd.metadata, '{{{{}}}}')::text, NULL::bigint[] AS own
    FROM upd
    UNION ALL
    SELECT NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL,
     ARRAY[(date_part('epoch', statement_timestamp()) * 1000000)::bigint,
      (date_part('epoch', clock_timestamp() - statement_timestamp()) * 1000000)::bigint,
      (SELECT count(*) FROM due) - (SELECT count(*) FROM taken), paused::int]
    FROM halt
    """.replace("{{}}", "{}"),
    ordered=True,
)

# The ranks in use: a loose scan of the claim index, one seek for each.
_RANKS = f"""rank(r) AS (
     (SELECT -q.priority FROM workqueue_job q WHERE q.queue = {{Q}} AND {OPEN} ORDER BY -q.priority LIMIT 1)
     UNION ALL
     SELECT (SELECT -q.priority FROM workqueue_job q WHERE q.queue = {{Q}} AND {OPEN} AND -q.priority > rank.r
      ORDER BY -q.priority LIMIT 1)
     FROM rank WHERE rank.r IS NOT NULL)"""

DISCOVER = Statement(
    "job_discover",
    f"WITH RECURSIVE {_RANKS} SELECT r FROM rank WHERE r IS NOT NULL LIMIT %(limit)s::int",
    ordered=True,
)

NEXT_DUE = next_due("job", table="workqueue_job", wanted=f"{OPEN} AND {_OF_KINDS}", ident="id", ranks=_RANKS)

# Ids come sorted, none twice; what belongs to each stands at its place in arrays beside them.
_PLACE = "width_bucket(q.id, %(ids)s::bigint[])"
_FENCED = f"""q.queue = {{Q}} AND q.id = ANY (%(ids)s::bigint[])
      AND q.lease_token = (%(tokens)s::bigint[])[{_PLACE}]"""
_OF_CLAIM = "q.queue = {Q} AND q.id = ANY (%(ids)s::bigint[]) AND q.lease_token = %(token)s::bigint"
_BEGAN = f"(statement_timestamp() - (%(ran)s::bigint[])[{_PLACE}] * interval '1 microsecond')"
_TIME_AND_START = f"statement_timestamp() AS t, {_BEGAN} AS began"

_UTC = """'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'"""


def _told(moment: str) -> str:
    """A moment as JSON."""
    return f"to_jsonb(to_char({moment} AT TIME ZONE 'UTC', {_UTC}))"


# An attempt is about to start, and from here on it counts. A task remembers when it first did.
START = Statement(
    "job_start",
    f"""
    WITH target AS MATERIALIZED (
     SELECT q.id, statement_timestamp() AS t, {_told("statement_timestamp()")} AS j, {_WORKER}
     FROM workqueue_job q WHERE {_FENCED} ORDER BY q.id FOR UPDATE SKIP LOCKED)
    UPDATE workqueue_job q SET started_at = (SELECT t FROM target LIMIT 1),
     metadata = CASE WHEN q.worker_ids = '[]' AND q.metadata ? 'task'
      THEN jsonb_set(q.metadata, '{{task,started_at}}', (SELECT j FROM target LIMIT 1)) ELSE q.metadata END,
     worker_ids = CASE WHEN q.started_at IS NULL THEN q.worker_ids || (SELECT w FROM target LIMIT 1)
      ELSE q.worker_ids END
    WHERE q.queue = {{Q}} AND q.id = ANY (ARRAY(SELECT id FROM target))
    RETURNING q.id, q.started_at, q.worker_ids::text
    """,
)

# A start that was not marked before is noted now, with the worker.
_COMPLETE_KEEP = f"""
    WITH target AS MATERIALIZED (
     SELECT q.id, {_TIME_AND_START}, {_WORKER} FROM workqueue_job q WHERE {{FENCED}} ORDER BY q.id FOR UPDATE),
    done AS (
     UPDATE workqueue_job q SET outcome = 'completed', finished_at = (SELECT t FROM target LIMIT 1),
      result = {{RESULT}}, lease_until = 'epoch', lease_token = 0,
      started_at = COALESCE(q.started_at,
       (ARRAY(SELECT began FROM target))[width_bucket(q.id, ARRAY(SELECT id FROM target))]),
      worker_ids = CASE WHEN q.started_at IS NULL THEN q.worker_ids || (SELECT w FROM target LIMIT 1)
       ELSE q.worker_ids END
     WHERE q.queue = {{Q}} AND q.id = ANY (ARRAY(SELECT id FROM target)) RETURNING 1)
    SELECT count(*) FROM done
    """
COMPLETE_KEEP = Statement(
    "job_complete_keep",
    _COMPLETE_KEEP.replace("{FENCED}", _FENCED).replace("{RESULT}", f"(%(results)s::text[])[{_PLACE}]::jsonb"),
)

# Of one claim, and without results: what most completions are.
COMPLETE_KEEP_CLAIM = Statement(
    "job_complete_keep_claim",
    _COMPLETE_KEEP.replace("{FENCED}", _OF_CLAIM).replace("{RESULT}", "NULL"),
)

COMPLETE_DELETE = Statement(
    "job_complete_delete",
    f"""
    WITH target AS MATERIALIZED (SELECT q.id FROM workqueue_job q WHERE {_FENCED} ORDER BY q.id FOR UPDATE),
    done AS (
     DELETE FROM workqueue_job q WHERE q.queue = {{Q}} AND q.id = ANY (ARRAY(SELECT id FROM target)) RETURNING 1)
    SELECT count(*) FROM done
    """,
)

# What did not complete: again after `delays`, or dead when it is `final` or out of attempts. `uncount` is 1 where
# the attempt does not count. The newest 20 errors are kept, each with the start of its attempt.
FAIL = Statement(
    "job_fail",
    f"""
    WITH target AS MATERIALIZED (
     SELECT q.id, statement_timestamp() + (%(delays)s::bigint[])[{_PLACE}] * interval '1 microsecond' AS td,
      (%(finals)s::boolean[])[{_PLACE}] AS final, (%(uncounts)s::int[])[{_PLACE}] AS n,
      (%(errors)s::text[])[{_PLACE}]::jsonb
       || jsonb_build_object('at', to_char(statement_timestamp() AT TIME ZONE 'UTC', {_UTC}), 'attempt', q.attempts)
       AS e,
      {_told("q.started_at")} AS noted, {_told(_BEGAN)} AS measured, {_TIME_AND_START}, {_WORKER}
     FROM workqueue_job q WHERE {_FENCED} ORDER BY q.id FOR UPDATE),
    failed AS (
     UPDATE workqueue_job q SET lease_until = 'epoch', lease_token = 0,
      available_at = CASE WHEN target.final OR q.attempts - target.n >= q.max_attempts THEN q.available_at
       ELSE target.td END,
      outcome = CASE WHEN target.final OR q.attempts - target.n >= q.max_attempts THEN 'dead' END,
      finished_at = CASE WHEN target.final OR q.attempts - target.n >= q.max_attempts THEN target.t END,
      attempts = GREATEST(q.attempts - target.n, 0),
      errors = CASE WHEN target.e IS NULL THEN q.errors
       ELSE jsonb_path_query_array(
        q.errors || jsonb_set(target.e, '{{started}}', COALESCE(target.noted, target.measured)),
        '$[last - 19 to last]') END,
      started_at = CASE WHEN target.n = 0 THEN COALESCE(q.started_at, target.began) END,
      worker_ids = CASE
       WHEN target.n = 1 THEN CASE WHEN q.started_at IS NULL THEN q.worker_ids ELSE q.worker_ids - -1 END
       WHEN q.started_at IS NULL THEN q.worker_ids || target.w ELSE q.worker_ids END
     FROM target WHERE q.queue = {{Q}} AND q.id = target.id RETURNING q.id, q.outcome)
    SELECT id, outcome FROM failed
    """,
)

EXTEND = Statement(
    "job_extend",
    """
    WITH target AS MATERIALIZED (
     SELECT q.id, statement_timestamp() + %(lease)s::bigint * interval '1 microsecond' AS until FROM workqueue_job q
     WHERE q.queue = {Q} AND q.id = ANY (%(ids)s::bigint[]) AND q.lease_token = %(token)s::bigint
     ORDER BY q.id FOR UPDATE SKIP LOCKED),
    held AS (
     UPDATE workqueue_job q SET lease_until = GREATEST(q.lease_until, (SELECT until FROM target LIMIT 1))
     WHERE q.queue = {Q} AND q.id = ANY (ARRAY(SELECT id FROM target)) RETURNING q.id)
    SELECT id FROM held
    """,
)

HELD = Statement(
    "job_held",
    """
    SELECT q.id FROM workqueue_job q WHERE q.queue = {Q} AND q.id = ANY (%(ids)s::bigint[])
     AND q.lease_token = %(token)s::bigint
    """,
)

# Of jobs that run long, whether they are still their worker's: they may have been cancelled.
TOKENS = Statement(
    "job_tokens",
    "SELECT q.id, q.lease_token FROM workqueue_job q WHERE q.queue = {Q} AND q.id = ANY (%(ids)s::bigint[])",
)

# Pending or running; a running one's outcome finds its token gone.
CANCEL = Statement(
    "job_cancel",
    f"""
    WITH target AS MATERIALIZED (
     SELECT q.id, statement_timestamp() AS t FROM workqueue_job q
     WHERE q.queue = {{Q}} AND q.id = ANY (%(ids)s::bigint[]) AND {_OPEN_BY_ID}
     ORDER BY q.id FOR UPDATE),
    gone AS (
     UPDATE workqueue_job q SET outcome = 'cancelled', finished_at = (SELECT t FROM target LIMIT 1),
      lease_until = 'epoch', lease_token = 0
     WHERE q.queue = {{Q}} AND q.id = ANY (ARRAY(SELECT id FROM target)) RETURNING 1)
    SELECT count(*) FROM gone
    """,
)

RETRY = Statement(
    "job_retry",
    """
    WITH target AS MATERIALIZED (
     SELECT q.id, statement_timestamp() AS t FROM workqueue_job q
     WHERE q.queue = {Q} AND q.id = ANY (%(ids)s::bigint[]) AND COALESCE(q.outcome, '') IN ('dead', 'cancelled')
     ORDER BY q.id FOR UPDATE),
    again AS (
     UPDATE workqueue_job q SET outcome = NULL, finished_at = NULL, started_at = NULL, result = NULL, attempts = 0,
      available_at = (SELECT t FROM target LIMIT 1), lease_until = 'epoch', lease_token = 0
     WHERE q.queue = {Q} AND q.id = ANY (ARRAY(SELECT id FROM target)) RETURNING 1)
    SELECT count(*) FROM again
    """,
)

# Due at once, whatever was said before: all that waits, or the ids named, but for those in `skip`.
HURRY = Statement(
    "job_hurry",
    f"""
    WITH target AS MATERIALIZED (
     SELECT q.id, statement_timestamp() AS t FROM workqueue_job q
     WHERE q.queue = {{Q}} AND {OPEN} AND q.lease_until = 'epoch' AND q.available_at > statement_timestamp()
      AND (%(ids)s::bigint[] IS NULL OR q.id = ANY (%(ids)s::bigint[])) AND q.id <> ALL (%(skip)s::bigint[])
     ORDER BY q.id LIMIT %(limit)s::int FOR UPDATE),
    hurried AS (
     UPDATE workqueue_job q SET available_at = (SELECT t FROM target LIMIT 1)
     WHERE q.queue = {{Q}} AND q.id = ANY (ARRAY(SELECT id FROM target)) RETURNING 1)
    SELECT count(*) FROM hurried
    """,
    prepare=False,
)

# The last attempt had started, and its lease lapsed: nobody will say what became of it. Sought rank by rank, among
# what claims look at: without the ranks, the scan would wade through all that is scheduled for later.
BURY = Statement(
    "job_bury",
    f"""
    WITH RECURSIVE {_RANKS},
    target AS MATERIALIZED (
     SELECT x.id, x.t, x.e FROM rank CROSS JOIN LATERAL (
      SELECT q.id, statement_timestamp() AS t,
       jsonb_build_object('at', to_char(statement_timestamp() AT TIME ZONE 'UTC', {_UTC}),
        'started', to_char(q.started_at AT TIME ZONE 'UTC', {_UTC}), 'attempt', q.attempts, 'worker',
        q.worker_ids ->> -1) || %(error)s::jsonb AS e
      FROM workqueue_job q
      WHERE q.queue = {{Q}} AND {OPEN} AND -q.priority = rank.r AND q.available_at <= statement_timestamp()
       AND q.lease_until > 'epoch' AND q.lease_until <= statement_timestamp()
       AND q.attempts >= q.max_attempts AND q.started_at IS NOT NULL
      ORDER BY q.available_at, q.id LIMIT %(limit)s::int FOR UPDATE SKIP LOCKED) x
     LIMIT %(limit)s::int),
    buried AS (
     UPDATE workqueue_job q SET outcome = 'dead', finished_at = target.t, lease_until = 'epoch', lease_token = 0,
      errors = jsonb_path_query_array(q.errors || target.e, '$[last - 19 to last]')
     FROM target WHERE q.queue = {{Q}} AND q.id = target.id RETURNING q.kind, q.id)
    SELECT kind, array_agg(id) FROM buried GROUP BY kind
    """,
    ordered=True,
)

PRUNE = Statement(
    "job_prune",
    """
    WITH old AS MATERIALIZED (
     SELECT q.id FROM workqueue_job q WHERE q.queue = {Q} AND q.outcome = %(outcome)s::text
      AND q.finished_at <= statement_timestamp() - %(retention)s::bigint * interval '1 microsecond'
     ORDER BY q.finished_at LIMIT %(limit)s::int FOR UPDATE SKIP LOCKED),
    gone AS (DELETE FROM workqueue_job q WHERE q.queue = {Q} AND q.id = ANY (ARRAY(SELECT id FROM old)) RETURNING 1)
    SELECT count(*) FROM gone
    """,
    ordered=True,
)

# Of tasks that are due, which kinds there are among the first. (Behind them lies what is not their turn yet.)
WAITING_KINDS = Statement(
    "job_waiting_kinds",
    f"""
    WITH RECURSIVE {_RANKS}
    SELECT DISTINCT w.kind FROM (
     SELECT x.kind, x.task FROM rank CROSS JOIN LATERAL (
      SELECT q.kind, q.metadata ? 'task' AS task FROM workqueue_job q
      WHERE q.queue = {{Q}} AND {OPEN} AND -q.priority = rank.r AND q.available_at <= statement_timestamp()
       AND NOT q.kind = ANY (%(hopeless)s::text[])
      ORDER BY q.available_at, q.id LIMIT %(limit)s::int) x
     LIMIT %(limit)s::int) w
    WHERE w.task AND NOT w.kind = ANY (%(known)s::text[])
    """,
    ordered=True,
)

# The names of the queues that have, or had, jobs.
QUEUES = Statement(
    "job_queues",
    f"""
    WITH RECURSIVE name(n) AS (
     (SELECT q.queue FROM workqueue_job q WHERE {OPEN} ORDER BY q.queue LIMIT 1)
     UNION ALL
     SELECT (SELECT q.queue FROM workqueue_job q WHERE {OPEN} AND q.queue > name.n ORDER BY q.queue LIMIT 1)
     FROM name WHERE name.n IS NOT NULL)
    SELECT n FROM name WHERE n IS NOT NULL
    UNION SELECT w.name FROM workqueue_queue w WHERE w.face = 'jobs'
    """,
    for_people=True,
)
