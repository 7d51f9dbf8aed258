"""The rows of one job queue, seen and aged by a connection of one's own."""

from types import SimpleNamespace
from typing import Any

import psycopg
from psycopg.rows import namedtuple_row

from tests.keyed.table import Table


class JobTable:
    """What the table holds of one job queue. Moves time by moving the rows' times into the past."""

    def __init__(self, connection: psycopg.Connection[Any], queue: str) -> None:
        self.connection = connection
        self.queue = queue

    def row(self, number: int) -> SimpleNamespace | None:
        """The job's columns, and in seconds from now: `due_in`, `lease_left`, `asked_ago`, `ended_ago`."""
        return self.rows(number).get(number)

    def rows(self, *ids: int) -> dict[int, SimpleNamespace]:
        """The same of these jobs, or of all, by id."""
        with self.connection.cursor(row_factory=namedtuple_row) as cursor:
            cursor.execute(
                "SELECT *, lease_until > 'epoch' AS leased, lease_until > statement_timestamp() AS live,"
                " extract(epoch FROM available_at - statement_timestamp())::float AS due_in,"
                " extract(epoch FROM lease_until - statement_timestamp())::float AS lease_left,"
                " extract(epoch FROM statement_timestamp() - enqueued_at)::float AS asked_ago,"
                " extract(epoch FROM statement_timestamp() - finished_at)::float AS ended_ago"
                " FROM workqueue_job WHERE queue = %s AND (id = ANY (%s) OR %s)",
                [self.queue, list(ids), not ids],
            )
            return {row.id: SimpleNamespace(**row._asdict()) for row in cursor}

    def state(self, number: int) -> str:
        """`absent`, an outcome, `leased`, `lapsed` or `waiting`."""
        return self.state_of(self.row(number))

    @staticmethod
    def state_of(row: SimpleNamespace | None) -> str:
        """The same of a row."""
        if row is None:
            return "absent"
        if row.outcome is not None:
            return str(row.outcome)
        return "waiting" if not row.leased else "leased" if row.live else "lapsed"

    def stored(self) -> list[int]:
        """The ids of all jobs, ascending."""
        found = self.connection.execute("SELECT id FROM workqueue_job WHERE queue = %s ORDER BY id", [self.queue])
        return [number for (number,) in found]

    def lapse(self, *ids: int) -> None:
        """Let the leases of these jobs have ended a second ago."""
        self.set("lease_until = statement_timestamp() - interval '1 second'", *ids)

    def age(self, *ids: int, seconds: float = 3600.0) -> None:
        """Move every time of these jobs, but that of a lease, into the past."""
        ago = f"- interval '{seconds} seconds'"
        self.set(
            f"available_at = available_at {ago}, enqueued_at = enqueued_at {ago}, started_at = started_at {ago},"
            f" finished_at = finished_at {ago}",
            *ids,
        )

    def set(self, assignment: str, *ids: int) -> None:
        """Change these jobs as SQL says."""
        self.connection.execute(
            f"UPDATE workqueue_job SET {assignment} WHERE queue = %s AND id = ANY (%s)", [self.queue, list(ids)]
        )

    def clear(self) -> None:
        """Leave nothing of the queue."""
        Table(self.connection, self.queue).clear()
