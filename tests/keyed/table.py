"""The rows of one queue, seen and aged by a connection of one's own."""

from types import SimpleNamespace
from typing import Any

import psycopg
from psycopg.rows import namedtuple_row


class Table:
    """What the tables hold of one queue. Moves time by moving the rows' times into the past."""

    def __init__(self, connection: psycopg.Connection[Any], queue: str) -> None:
        self.connection = connection
        self.queue = queue

    def row(self, key: str) -> SimpleNamespace | None:
        """The item's columns, and in seconds from now: `due_in`, `again_in`, `lease_left`, `asked_ago`."""
        with self.connection.cursor(row_factory=namedtuple_row) as cursor:
            cursor.execute(
                "SELECT *, lease_until > 'epoch' AS leased, lease_until > statement_timestamp() AS live,"
                " extract(epoch FROM available_at - statement_timestamp())::float AS due_in,"
                " extract(epoch FROM requeue_at - statement_timestamp())::float AS again_in,"
                " extract(epoch FROM lease_until - statement_timestamp())::float AS lease_left,"
                " extract(epoch FROM statement_timestamp() - enqueued_at)::float AS asked_ago"
                " FROM workqueue_item WHERE queue = %s AND key = %s",
                [self.queue, key],
            )
            found = cursor.fetchone()
        return None if found is None else SimpleNamespace(**found._asdict())

    def state(self, key: str) -> str:
        """`absent`, `completed`, `stalled`, `leased`, `lapsed` or `waiting`."""
        row = self.row(key)
        if row is None:
            return "absent"
        if row.completed_at is not None:
            return "completed"
        if row.stalled_at is not None:
            return "stalled"
        return "waiting" if not row.leased else "leased" if row.live else "lapsed"

    def stored(self) -> list[str]:
        """All keys with a row, in order."""
        found = self.connection.execute("SELECT key FROM workqueue_item WHERE queue = %s ORDER BY key", [self.queue])
        return [key for (key,) in found]

    def inbox(self) -> list[str]:
        """The keys in the inbox, in the order of their arrival."""
        found = self.connection.execute("SELECT key FROM workqueue_inbox WHERE queue = %s ORDER BY id", [self.queue])
        return [key for (key,) in found]

    def lapse(self, *keys: str) -> None:
        """Let the leases of these keys have ended a second ago."""
        self._set("lease_until = statement_timestamp() - interval '1 second'", keys)

    def age(self, *keys: str, seconds: float = 3600.0) -> None:
        """Move every time of these keys, but that of a lease, into the past."""
        ago = f"- interval '{seconds} seconds'"
        self._set(
            f"available_at = available_at {ago}, enqueued_at = enqueued_at {ago}, requeue_at = requeue_at {ago},"
            f" completed_at = completed_at {ago}, stalled_at = stalled_at {ago}",
            keys,
        )

    def spoil(self, key: str, text: str) -> None:
        """Rewrite a stored key, as an older version of the program might have left it."""
        self.connection.execute(
            "UPDATE workqueue_item SET key = %s WHERE queue = %s AND key = %s", [text, self.queue, key]
        )

    def _set(self, assignment: str, keys: tuple[str, ...]) -> None:
        self.connection.execute(
            f"UPDATE workqueue_item SET {assignment} WHERE queue = %s AND key = ANY (%s)", [self.queue, list(keys)]
        )

    def clear(self) -> None:
        """Leave nothing of the queue."""
        for table, column in (("item", "queue"), ("inbox", "queue"), ("job", "queue"), ("queue", "name")):
            self.connection.execute(f"DELETE FROM workqueue_{table} WHERE {column} = %s", [self.queue])
