"""What the log says of work that has ended because the lease of its last attempt lapsed: nobody else tells of it.

Which work that is, and who ends it, is for the sources.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

logger = logging.getLogger("django_workqueue")

NAMED = 10  # of those that ended together


def buried(queue: str, kinds: Mapping[str, Sequence[int]]) -> None:
    """Jobs are dead letters now; their numbers, by kind."""
    jobs = sorted((number, kind) for kind, numbers in kinds.items() for number in numbers)
    what = "1 job is a dead letter" if len(jobs) == 1 else f"{len(jobs)} jobs are dead letters"
    _tell(queue, what, [f"{number} ({kind})" for number, kind in jobs])


def stalled(queue: str, keys: Sequence[str]) -> None:
    """Items are stalled now; their encoded keys."""
    what = "1 item is stalled" if len(keys) == 1 else f"{len(keys)} items are stalled"
    _tell(queue, what, [repr(key) for key in sorted(keys)])


def _tell(queue: str, what: str, names: Sequence[str]) -> None:
    if names:
        lapsed = "lease of its last attempt" if len(names) == 1 else "leases of their last attempts"
        more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
        logger.error("%s: %s now, since the %s lapsed: %s%s", queue, what, lapsed, ", ".join(names[:NAMED]), more)
