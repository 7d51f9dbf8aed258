"""Statements that tell which queues there are, for people."""

from .statement import Statement

RECORDS = Statement(
    "inventory_records",
    "SELECT w.name, w.face, w.settings, w.paused_at IS NOT NULL FROM workqueue_queue w",
    prepare=False,
    for_people=True,
)


# A loose index scan: one seek for each name, however many rows it has.
def _names(table: str, where: str) -> str:
    first = f"FROM {table} q WHERE {where} ORDER BY q.queue LIMIT 1"
    after = f"FROM {table} q WHERE {where} AND q.queue > found.name ORDER BY q.queue LIMIT 1"
    return f"""WITH RECURSIVE found(name) AS (
      (SELECT q.queue {first})
      UNION ALL SELECT (SELECT q.queue {after}) FROM found WHERE found.name IS NOT NULL)
     SELECT name FROM found WHERE name IS NOT NULL LIMIT %(limit)s::int"""


NAMES = Statement(
    "inventory_names",
    f"""
    SELECT 'items', name FROM ({_names("workqueue_item", "true")}) item
    UNION SELECT 'items', name FROM ({_names("workqueue_inbox", "true")}) inbox
    UNION SELECT 'jobs', name FROM ({_names("workqueue_job", "q.outcome IS NULL")}) open
    UNION SELECT 'jobs', name FROM ({_names("workqueue_job", "q.outcome IS NOT NULL")}) finished
    """,
    prepare=False,
    for_people=True,
)
