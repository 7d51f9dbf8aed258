"""Statements about the planner's own figures."""

from .statement import Statement

MISJUDGED = Statement(
    "planner_misjudged",
    """
    SELECT c.oid::regclass::text FROM pg_inherits i
     JOIN pg_class c ON c.oid = i.inhrelid JOIN pg_stat_all_tables s ON s.relid = c.oid
    WHERE i.inhparent = ANY (ARRAY['workqueue_item', 'workqueue_job']::regclass[])
     AND s.n_live_tup > 1000 AND s.n_live_tup > 10 * GREATEST(c.reltuples, 0) AND pg_has_role(c.relowner, 'USAGE')
    """,
    prepare=False,
    for_people=True,
)
