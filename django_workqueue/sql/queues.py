"""Statements about queues and workers themselves."""

from .statement import Statement

PAUSE = Statement(
    "queue_pause",
    """
    INSERT INTO workqueue_queue AS w (name, face, paused_at) VALUES ({Q}, %(face)s, statement_timestamp())
    ON CONFLICT (name) DO UPDATE SET paused_at = excluded.paused_at WHERE w.paused_at IS NULL
    """,
)

RESUME = Statement(
    "queue_resume", "UPDATE workqueue_queue w SET paused_at = NULL WHERE w.name = {Q} AND w.paused_at IS NOT NULL"
)

IS_PAUSED = Statement(
    "queue_is_paused", "SELECT 1 FROM workqueue_queue w WHERE w.name = {Q} AND w.paused_at IS NOT NULL"
)

# So that the admin knows a queue of which no row is left, and how it is set up.
REGISTER = Statement(
    "queue_register",
    """
    INSERT INTO workqueue_queue AS w (name, face, settings, seen_at)
    VALUES ({Q}, %(face)s, %(settings)s::jsonb, statement_timestamp())
    ON CONFLICT (name) DO UPDATE SET face = excluded.face, settings = excluded.settings, seen_at = excluded.seen_at
    """,
)
