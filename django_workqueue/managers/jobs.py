"""The job queue's statements, and the jobs that they take, as columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, ClassVar

from django.db import models

from ..sql import jobs, stats
from .sending import Claimed, Interval, WorkQuerySet, columns, microseconds

if TYPE_CHECKING:
    from ..models import WorkJob  # noqa: F401 - in the string of a generic base


@dataclass(slots=True)
class NewJobs:
    """Jobs to insert, as columns; delays and absolute times (0 for none) in µs."""

    kinds: list[str] = field(default_factory=list)
    payloads: list[str] = field(default_factory=list)
    priorities: list[int] = field(default_factory=list)
    maxima: list[int] = field(default_factory=list)
    delays: list[int] = field(default_factory=list)
    run_ats: list[int] = field(default_factory=list)
    metadata: list[str] = field(default_factory=list)

    def params(self) -> dict[str, Any]:
        """As the statements name them."""
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(slots=True)
class Settling:
    """Jobs with what became of them, as columns, sorted by id and none twice. Times in µs, errors in JSON."""

    ids: list[int]
    tokens: list[int]
    ran: list[int]
    worker: str

    @property
    def token(self) -> int | None:
        """The token that all have in common, if they do."""
        first = self.tokens[0]
        return first if self.tokens.count(first) == len(self.tokens) else None

    def params(self) -> dict[str, Any]:
        """As the statements name them."""
        return {name: getattr(self, name) for name in self.__slots__}


class WorkJobQuerySet(WorkQuerySet["WorkJob"]):
    """The job queue's statements. Payloads and results are JSON text."""

    statements: ClassVar[Any] = jobs

    def allot(self, count: int) -> list[int]:
        """Ids for jobs to come, ascending."""
        ids: list[int] = self.send(jobs.ALLOT, "", {"count": count})[0][0]
        return ids

    def pass_over(self, count: int) -> None:
        """Have the sequence give out so many ids to nobody."""
        self.send(jobs.PASS_OVER, "", {"count": count})

    def foreign(self, queue: str, ids: Sequence[int], *, kinds: Sequence[str], payloads: Sequence[str]) -> set[int]:
        """Those of the ids under which there is another job than the one of this kind and payload."""
        found = self.send(jobs.FOREIGN, queue, {"ids": ids, "kinds": kinds, "payloads": payloads})
        return {number for (number,) in found}

    def enqueue_now(
        self,
        queue: str,
        ids: Sequence[int],
        *,
        kinds: Sequence[str],
        payloads: Sequence[str],
        priorities: Sequence[int],
        maxima: Sequence[int],
    ) -> None:
        """Insert jobs that are due at once; all of them, or an `IntegrityError` where one is there already."""
        params = {"ids": ids, "kinds": kinds, "payloads": payloads, "priorities": priorities, "maxima": maxima}
        self.send(jobs.ENQUEUE_NOW, queue, params)

    def enqueue(self, queue: str, ids: Sequence[int], new: NewJobs) -> list[int]:
        """Insert jobs under ids allotted before; the ids of those that were not there yet."""
        return [number for (number,) in self.send(jobs.ENQUEUE, queue, {"ids": ids, **new.params()})]

    def enqueue_timed(self, queue: str, ids: Sequence[int], new: NewJobs) -> dict[int, datetime]:
        """The same; their ids, and when they were enqueued."""
        return dict(self.send(jobs.ENQUEUE_TIMED, queue, {"ids": ids, **new.params()}))

    def enqueue_inside(self, queue: str, new: NewJobs) -> list[int]:
        """Insert jobs in a caller's transaction; their ids in order: fewer than jobs where an id was there already."""
        return sorted(number for (number,) in self.send(jobs.ENQUEUE_INSIDE, queue, new.params()))

    def enqueue_inside_timed(self, queue: str, new: NewJobs) -> dict[int, datetime]:
        """The same; their ids in order, and when they were enqueued."""
        return dict(sorted(self.send(jobs.ENQUEUE_INSIDE_TIMED, queue, new.params())))

    def take_back(self, queue: str, ids: Sequence[int]) -> int:
        """Delete jobs that the same transaction has inserted."""
        return self._number(jobs.TAKE_BACK, queue, {"ids": ids})

    def restamp(self, queue: str, ids: Sequence[int]) -> None:
        """Let pending jobs be available from now, not from before."""
        self.send(jobs.RESTAMP, queue, {"ids": ids})

    def claim(
        self,
        queue: str,
        limit: int,
        lease: timedelta,
        *,
        token: int,
        intervals: Sequence[Interval],
        kinds: list[str] | None,
        mark: bool,
        worker: str,
        lapsed: int,
    ) -> Claimed:
        """Lease up to `limit` due jobs under `token`, of which at most `lapsed` had a lease that lapsed.

        `mark` counts them as started at once.
        """
        rows = self.send(
            jobs.CLAIM,
            queue,
            {
                **columns(intervals),
                "limit": limit,
                "lease": microseconds(lease),
                "token": token,
                "kinds": kinds,
                "mark": mark,
                "worker": worker,
                "lapsed": lapsed,
            },
        )
        at, took, skipped, paused = rows.pop()[-1]
        return Claimed(at, took, rows, skipped=skipped, paused=bool(paused))

    def waiting_kinds(self, queue: str, *, known: list[str], hopeless: list[str], limit: int) -> list[str]:
        """Which kinds of task are due that are not known, among the first `limit` jobs that are not hopeless."""
        params = {"known": known, "hopeless": hopeless, "limit": limit}
        return [kind for (kind,) in self.send(jobs.WAITING_KINDS, queue, params)]

    def start(
        self, queue: str, ids: Sequence[int], tokens: Sequence[int], worker: str
    ) -> dict[int, tuple[datetime, str]]:
        """Count the attempts of leased jobs that are about to start; of those that may, when, and all their workers."""
        params = {"ids": ids, "tokens": tokens, "worker": worker}
        return {number: (at, workers) for number, at, workers in self.send(jobs.START, queue, params)}

    def complete(self, queue: str, settling: Settling, results: Sequence[str | None], *, keep: bool) -> int:
        """Finish leased jobs, with their results."""
        if not keep:
            return self._number(jobs.COMPLETE_DELETE, queue, {"ids": settling.ids, "tokens": settling.tokens})
        if settling.token is not None and not any(results):
            params = {"ids": settling.ids, "token": settling.token, "ran": settling.ran, "worker": settling.worker}
            return self._number(jobs.COMPLETE_KEEP_CLAIM, queue, params)
        return self._number(jobs.COMPLETE_KEEP, queue, settling.params() | {"results": results})

    def fail(
        self,
        queue: str,
        settling: Settling,
        *,
        delays: Sequence[int],
        errors: Sequence[str | None],
        finals: Sequence[bool],
        uncounts: Sequence[int],
    ) -> dict[int, str | None]:
        """Give leased jobs back or bury them; the outcome of each that was still ours."""
        params = {"delays": delays, "errors": errors, "finals": finals, "uncounts": uncounts}
        return dict(self.send(jobs.FAIL, queue, settling.params() | params))

    def extend(self, queue: str, ids: Sequence[int], token: int, lease: timedelta) -> list[int]:
        """Renew leases without waiting and without shortening; the ids renewed."""
        params = {"ids": ids, "token": token, "lease": microseconds(lease)}
        return [number for (number,) in self.send(jobs.EXTEND, queue, params)]

    def held(self, queue: str, ids: Sequence[int], token: int) -> list[int]:
        """Which of the jobs are still leased under `token`."""
        return [number for (number,) in self.send(jobs.HELD, queue, {"ids": ids, "token": token})]

    def tokens(self, queue: str, ids: Sequence[int]) -> dict[int, int]:
        """The token that each of the jobs carries; 0 if nobody holds it."""
        return dict(self.send(jobs.TOKENS, queue, {"ids": ids}))

    def cancel(self, queue: str, ids: Sequence[int]) -> int:
        """Cancel pending and running jobs."""
        return self._number(jobs.CANCEL, queue, {"ids": ids})

    def retry(self, queue: str, ids: Sequence[int]) -> int:
        """Let dead and cancelled jobs start afresh."""
        return self._number(jobs.RETRY, queue, {"ids": ids})

    def hurry(self, queue: str, ids: Sequence[int] | None, *, skip: Sequence[int] = (), limit: int) -> int:
        """Let pending jobs be due now: all (None), or these."""
        params = {"ids": None if ids is None else list(ids), "skip": list(skip), "limit": limit}
        return self._number(jobs.HURRY, queue, params)

    def bury(self, queue: str, error: str, *, limit: int) -> dict[str, list[int]]:
        """Let jobs be dead whose last attempt started and lapsed; their ids, by kind."""
        return dict(self.send(jobs.BURY, queue, {"error": error, "limit": limit}))

    def prune(self, queue: str, outcome: str, retention: timedelta, *, limit: int) -> int:
        """Delete up to `limit` jobs that ended so, longer ago than `retention`."""
        params = {"outcome": outcome, "retention": microseconds(retention), "limit": limit}
        return self._number(jobs.PRUNE, queue, params)

    def stats(self, queue: str, *, max_attempts: int = 0) -> tuple[int, int, int, int, int, int]:
        """Exact counts: ready, scheduled, leased, dead, completed; and the oldest ready job's age in µs."""
        ready, scheduled, leased, dead, completed, oldest = self.send(stats.JOBS.exact, queue, {})[0]
        return ready, scheduled, leased, dead, completed, oldest


class WorkJobManager(models.Manager.from_queryset(WorkJobQuerySet)):  # type: ignore[misc]
    """`WorkJob.objects`."""

    use_in_migrations = False
