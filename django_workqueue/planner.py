"""What the planner believes of our tables, corrected when it is far from the truth.

Knows nothing of queues.
"""

from __future__ import annotations

from django.db import DatabaseError

from .database import Connection, Verdict, verdict
from .sql import planner


def correct(connection: Connection) -> None:
    """Let the server count again the partitions that have grown tenfold since it last did.

    It does so by itself within a minute or so. Until then a queue that was found empty is planned for as if it still
    were: before PostgreSQL 17 each statement that names five hundred rows would read all of a hundred thousand.
    """
    for (partition,) in connection.execute(planner.MISJUDGED.text):
        try:
            connection.execute(f"ANALYZE {partition}", prepare=False)
        except DatabaseError as error:
            if verdict(error) is not Verdict.LOCKED:  # another worker is at it
                raise
