"""The raw statements, on encoded keys, as managers of the models.

Each method sends one statement on the alias that `using()` or `db_manager()` names (else the router's, else
`WORKQUEUE_DATABASE`), on the calling thread's Django connection, or with `on(connection)` on one of our own.
Codecs, floors, retries and group commit are for the typed faces above.
"""

from .items import Ended, WorkItemManager, WorkItemQuerySet
from .jobs import NewJobs, Settling, WorkJobManager, WorkJobQuerySet
from .sending import Claimed, Interval, WorkQuerySet, microseconds, new_token, sent

__all__ = [
    "Claimed",
    "Ended",
    "Interval",
    "NewJobs",
    "Settling",
    "WorkItemManager",
    "WorkItemQuerySet",
    "WorkJobManager",
    "WorkJobQuerySet",
    "WorkQuerySet",
    "microseconds",
    "new_token",
    "sent",
]
