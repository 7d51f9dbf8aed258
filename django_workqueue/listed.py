"""The job queue's engine: what all `JobQueue` objects of one name in a process share.

Owns claims and settlements of jobs with JSON payloads. How they come in is `insertion`, the typed face `jobs.JobQueue`.
"""

from __future__ import annotations

import json
import logging
import time
from collections import Counter, OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import partial
from typing import Any, TypeVar

from django.db import connections

from . import database, lanes, lapses, metrics, notify, payloads
from .backoff import exponential
from .database import Connection
from .delivery import NO_FENCE, Job, Start, error_entry
from .engine import Claim, Finder, Outcome, Settled, Source, Verb, worker_id
from .exceptions import InvalidPayload, Retry, is_permanent, of_queue
from .floors import Floors
from .insertion import JobLane, RestampLane, Waiting, insert_inside, job_table, weight
from .leasing import LeasingSource, Row, apart, at_once, by_claim, chunks, in_rounds
from .managers import Claimed, Interval, Settling, WorkJobQuerySet, microseconds
from .text import told

logger = logging.getLogger("django_workqueue")

T = TypeVar("T")

MAX_CLAIM = 500
LAPSED_AT_ONCE = 10  # of one claim: what kills its worker takes no more than these with it again
LATE = 0.5  # seconds that a transaction may stay open before its jobs are stamped anew
PRUNE_BATCH = 1000
MAX_KINDS = 64  # sets of kinds whose floors one process remembers
TASK = "task"  # the key in the metadata of jobs that are tasks of Django's
LOOK_AT_FIRST = 1000  # jobs, for kinds without a handler …
LOOK_EVERY = 5.0  # … seconds apart …
LOOK_SHARE = 50  # … or where a look took long, so many times that
LAPSED = json.dumps(
    {"type": "django_workqueue.exceptions.LeaseLapsed", "message": "the lease lapsed during the last attempt"}
)


@dataclass(frozen=True)
class Settings:
    """What two `JobQueue` objects of one name must agree on, but for what one of them leaves to the other."""

    max_attempts: int
    retention: timedelta
    dead_retention: timedelta
    yielding: frozenset[str] = field(default=frozenset(), compare=False)  # what is taken as the other has it

    def difference_from(self, living: Source) -> str | None:
        """How a living source of the same name differs, in words; None if it does not, or can be made not to."""
        if not isinstance(living, ListedSource):
            return "it is a keyed Queue"
        theirs = living.settings
        changes: dict[str, Any] = {}
        for name in ("max_attempts", "retention", "dead_retention"):
            here, there = getattr(self, name), getattr(theirs, name)
            if here != there and name not in self.yielding:
                if name not in theirs.yielding:
                    return f"{name} is {there!r} there and {here!r} here"
                changes[name] = here
        if theirs.yielding:
            living.set_up(replace(theirs, **changes, yielding=theirs.yielding & self.yielding))
        return None


class ListedSource(LeasingSource):
    """One job queue of one process."""

    face = "jobs"
    first_ident = 0
    cancels = True
    max_claim = MAX_CLAIM
    min_wake_interval = timedelta(milliseconds=100)

    def __init__(self, name: str, using: str | None, settings: Settings) -> None:
        super().__init__(name, using)
        self._floors: OrderedDict[tuple[str, ...], Floors] = OrderedDict()  # by the kinds that are claimed
        self._look_at = 0.0  # when to look again for kinds without a handler …
        self._hopeless: set[str] = set()  # … but for these
        self.set_up(settings)

    def set_up(self, settings: Settings) -> None:
        """Be as the settings say from now on."""
        self.settings = settings
        # A lane outlives its source in the batcher, so it must not hold on to it: queues live by their references.
        self.lane = JobLane(self.name, self.face, self.using, self.described())
        self.restamping = RestampLane(self.name, self.face, self.using, self.described())

    def table(self, connection: Connection | None = None) -> WorkJobQuerySet:
        """The statements: on the calling thread's connection, or on one of our own."""
        return job_table(self.using, connection)

    # producing

    def enqueue_inside(self, waiting: Sequence[Waiting]) -> list[int]:
        """Insert jobs in the calling thread's open transaction; their ids in order."""
        connection, table = connections[self.alias], self.table()
        pieces = chunks(waiting, at_once(weight(waiting)))
        ids = [number for piece in pieces for number in insert_inside(table, self.name, piece)]
        lane, name, written = self.restamping, self.name, time.monotonic()
        lanes.enqueued_inside(self.alias, name, Counter(entry.kind for entry in waiting))

        def committed() -> None:
            lane.commits.waker.wake_later(name)
            if time.monotonic() - written > LATE:
                lane.restamp_later(ids)

        database.after_commit(connection, ("jobs", name, ids[0]), committed)
        return ids

    # consuming

    def claim_here(self, limit: int, lease: timedelta, kinds: list[str] | None = None) -> list[Job]:
        """Claim on the calling thread's connection; the attempts count from the claim."""
        table = self.table()
        if not database.inside_transaction(self.alias):
            return self._claim(table.persistent(), limit, lease, kinds, mark=True).works
        buried = table.bury(self.name, LAPSED, limit=PRUNE_BATCH)
        if buried:
            database.after_commit(connections[self.alias], object(), partial(_tell_of, self.alias, self.name, buried))
        take = self._taker(table, lease, kinds, mark=True)
        claim, rows = self.lease_rows_inside(table, take, limit, lease)
        return self._delivered(table, claim, rows).works

    def claim_on(
        self, connection: Connection, limit: int, lease: timedelta, kinds: Iterable[str] | None = None
    ) -> Claim:
        """Lease due jobs of the given kinds."""
        named = None if kinds is None else sorted(kinds)
        table = self.table(connection)
        looked = found = False
        if self.finder is not None and time.monotonic() >= self._look_at:
            looked, found = True, self._find_handlers(table, self.finder)
        if named == []:
            return Claim(NO_FENCE, lease, full=found, asked=looked)
        claim = self._claim(table, limit, lease, named, mark=False)
        claim.full = claim.full or found
        return claim

    def next_due_on(self, connection: Connection, kinds: Iterable[str] | None, within: timedelta) -> timedelta | None:
        """In how long the first of what is scheduled comes due, of these kinds or one that a handler may be found for.

        None: not within that time.
        """
        named = None if kinds is None else sorted(kinds)
        asked = named if self.finder is None else None
        return self.next_due_among(self.table(connection), self.floors_of(named), within, asked)

    def _claim(
        self, table: WorkJobQuerySet, limit: int, lease: timedelta, kinds: list[str] | None, *, mark: bool
    ) -> Claim:
        floors = self.floors_of(kinds)
        claim, rows = self.lease_rows(table, self._taker(table, lease, kinds, mark=mark), limit, lease, floors)
        if (mark or not rows) and not claim.full and not floors.dear:  # a worker's handlers need not wait for it
            self.sparing.do(lambda: self._bury(table))
        return self._delivered(table, claim, rows)

    def floors_of(self, kinds: list[str] | None) -> Floors:
        """How far the claims of these kinds have got. What they leave behind is still to come for others."""
        if kinds is None:
            return self.floors
        floors = self._floors.setdefault(tuple(kinds), Floors(self.first_ident))
        self._floors.move_to_end(tuple(kinds))
        while len(self._floors) > MAX_KINDS:
            self._floors.popitem(last=False)
        return floors

    def _find_handlers(self, table: WorkJobQuerySet, find: Finder) -> bool:
        """Tell the finder of the kinds that wait and have no handler; whether they have one now."""
        began = time.monotonic()
        known = {str(handler.kind) for handler in self.handlers}
        waiting = table.waiting_kinds(
            self.name, known=sorted(known), hopeless=sorted(self._hopeless), limit=LOOK_AT_FIRST
        )
        self._look_at = began + max(LOOK_EVERY, LOOK_SHARE * (time.monotonic() - began))
        for kind in waiting:
            find(kind)
        found = {str(handler.kind) for handler in self.handlers} - known
        self._hopeless.update(kind for kind in waiting if kind not in found)
        if found:
            notify.wake_local(self.alias, self.name)  # the one that works them may be another lane
        return bool(found)

    def _taker(self, table: WorkJobQuerySet, lease: timedelta, kinds: list[str] | None, *, mark: bool) -> Any:
        def take(intervals: Sequence[Interval], limit: int, token: int) -> Claimed:
            return table.claim(
                self.name,
                limit,
                lease,
                token=token,
                intervals=intervals,
                kinds=kinds,
                mark=mark,
                worker=worker_id(),
                lapsed=LAPSED_AT_ONCE,
            )

        return take

    def _delivered(self, table: WorkJobQuerySet, claim: Claim, rows: list[Row]) -> Claim:
        """The claim with its jobs. One whose JSON does not decode fails by itself, not the claim."""
        name, fence, loads, new, become, append = (
            self.name,
            claim.fence,
            payloads.loads,
            Job.__new__,
            object.__setattr__,  # a frozen dataclass's own __init__ costs three times as much
            claim.works.append,
        )
        marks = False
        for number, priority, attempts, available, reclaimed, kind, payload, most, enqueued, error, metadata, _ in rows:
            try:
                value = loads(payload)
                said = None if metadata is None else loads(metadata)
                failed = None if error is None else told(loads(error))
            except (ValueError, RecursionError) as mistake:
                self._refuse(table, number, attempts, fence.token, mistake)
                continue
            known = {
                "id": number,
                "queue": name,
                "kind": kind,
                "payload": value,
                "attempts": attempts,
                "max_attempts": most,
                "priority": priority,
                "_fence": fence,
                "_due": available,
                "_enqueued": enqueued,
            }
            if attempts >= most:
                marks = True
            if said is not None:
                known["metadata"] = said
                marks = marks or TASK in said
            if failed is not None:
                known["last_error"] = failed
            if reclaimed:
                known["reclaimed"] = True
            job = new(Job)
            become(job, "__dict__", known)
            append(job)
        claim.marks = marks
        return claim

    def _refuse(self, table: WorkJobQuerySet, number: int, attempts: int, token: int, error: Exception) -> None:
        """Fail a job of whose JSON, which another program must have stored, Python does not take all."""
        logger.error("queue %r: the JSON of job %d does not decode: %s; it fails", self.name, number, error)
        table.fail(
            self.name,
            Settling([number], [token], [0], worker_id()),
            delays=[microseconds(exponential()(attempts))],
            errors=[error_entry(error)],
            finals=[False],
            uncounts=[0],
        )

    # by hand, on the calling thread's connection

    def complete_here(self, works: Sequence[Job], result: payloads.JSON) -> int:
        """Finish jobs, all with the same result."""
        try:
            text = None if result is None else payloads.dumps(result, name="result")
        except InvalidPayload as error:
            of_queue(error, self.name)
            raise
        keep = self.settings.retention > timedelta(0)
        done = 0
        for chunk in apart(works, lambda job: job.id, at_once(payloads.weight([text or ""]))):
            settling, results = self._settling(chunk, [0.0] * len(chunk)), [text] * len(chunk)
            done += self.here(lambda table: table.complete(self.name, settling, results, keep=keep))  # noqa: B023
        return done

    def fail_here(self, job: Job, error: BaseException, *, retry_in: timedelta) -> str | None:
        """Give a job back or bury it: "pending", "dead", or None if the lease is lost."""
        snoozes = isinstance(error, Retry)
        outcome = self.here(
            lambda table: table.fail(
                self.name,
                self._settling([job], [0.0]),
                delays=[microseconds(retry_in)],
                errors=[None if snoozes else error_entry(error)],
                finals=[not snoozes and is_permanent(error)],
                uncounts=[int(snoozes)],
            )
        )
        if job.id not in outcome:
            return None
        if outcome[job.id] is None:
            self.wake()
        return outcome[job.id] or "pending"

    def extend_here(self, works: Sequence[Job], lease: timedelta) -> list[Job]:
        """Renew leases; the jobs still held."""
        return self.extended(works, lease, lambda job: job.id)

    def cancel_here(self, ids: Iterable[int]) -> int:
        """Cancel pending and running jobs."""
        return self.in_pieces(ids, lambda table, some: table.cancel(self.name, some))

    def retry_here(self, ids: Iterable[int]) -> int:
        """Let dead and cancelled jobs start afresh."""
        retried = self.in_pieces(ids, lambda table, some: table.retry(self.name, some))
        if retried:
            self.wake()
        return retried

    def prune_here(self, older_than: timedelta) -> int:
        """Delete all that ended longer ago."""
        pruned: int = self.here(lambda table: sum(self._prune(table, outcome, older_than) for outcome in OUTCOMES))
        return pruned

    # for the worker

    def idents(self, works: Sequence[Any]) -> list[Any]:
        """The jobs' ids."""
        return [work.id for work in works]

    def marks_start(self, work: Any) -> bool:
        """Whether the job is on its last attempt, or a task: its result tells what was started, when and by whom."""
        return bool(work.attempts >= work.max_attempts or TASK in work.metadata)

    def start_on(self, connection: Connection, works: Sequence[Any]) -> list[Any]:
        """Those of the jobs that may start; their attempts count from now on."""
        started: dict[int, tuple[datetime, str]] = {}
        for chunk in apart(works, lambda job: job.id):
            ids, tokens = [job.id for job in chunk], [job._fence.token for job in chunk]
            started.update(self.table(connection).start(self.name, ids, tokens, worker_id()))
        may = [work for work in works if work.id in started]
        for work in may:
            at, workers = started[work.id]
            work.__dict__["_start"] = Start(at, _starters(workers))
        return may

    def settle(self, table: WorkJobQuerySet, outcomes: Sequence[Outcome]) -> Settled:
        """Write what became of the work, fenced, in statements of one queue each."""
        completed = [outcome for outcome in outcomes if outcome.verb is Verb.COMPLETE]
        settled = self._complete(table, completed)
        if len(completed) < len(outcomes):
            for chunk in apart([outcome for outcome in outcomes if outcome.verb is not Verb.COMPLETE], _id_of):
                settled.add(self._fail(table, chunk))
        return settled

    def backoff_of(self, job: Job) -> timedelta:
        """How long until the next attempt of a job that fails now: as its handler says, if this process has one."""
        return next((handler.backoff for handler in self.handlers if handler.kind == job.kind), exponential())(
            job.attempts
        )

    def _complete(self, table: WorkJobQuerySet, outcomes: Sequence[Outcome]) -> Settled:
        keep = self.settings.retention > timedelta(0)
        settled = Settled()
        for claim in by_claim(outcomes, _id_of):
            each = payloads.weight(outcome.result for outcome in claim if outcome.result is not None)
            for chunk in chunks(claim, at_once(each)):
                settling = self._settling([outcome.work for outcome in chunk], [outcome.ran for outcome in chunk])
                done = table.complete(self.name, settling, [outcome.result for outcome in chunk], keep=keep)
                settled.add(_completed(chunk, done))
        return settled

    def _fail(self, table: WorkJobQuerySet, outcomes: Sequence[Outcome]) -> Settled:
        kept = table.fail(
            self.name,
            self._settling([outcome.work for outcome in outcomes], [outcome.ran for outcome in outcomes]),
            delays=[microseconds(max(outcome.delay, timedelta(0))) for outcome in outcomes],
            errors=[error_entry(outcome.error) if outcome.verb in _COUNTED else None for outcome in outcomes],
            finals=[outcome.verb is Verb.FINISH for outcome in outcomes],
            uncounts=[0 if outcome.verb in _COUNTED else 1 for outcome in outcomes],
        )
        settled = Settled()
        for outcome in outcomes:
            if outcome.work.id not in kept:
                one = Settled(lost=1)
            elif outcome.verb is Verb.SNOOZE:
                one = Settled(snoozed=1)
            elif outcome.verb is Verb.RETURN:
                one = Settled(returned=1)
            else:
                dead = kept[outcome.work.id] is not None
                one = Settled(failed=1, dead=int(dead), retried=int(not dead))
            one.kinds = {outcome.work.kind: replace(one, kinds={})}
            settled.add(one)
        return settled

    def _settling(self, works: Sequence[Job], ran: Sequence[float]) -> Settling:
        return Settling(
            [job.id for job in works],
            [job._fence.token for job in works],
            [round(seconds * 1_000_000) for seconds in ran],
            worker_id(),
        )

    def described(self) -> dict[str, Any]:
        """The settings, for people."""
        return {
            "max_attempts": self.settings.max_attempts,
            "retention": self.settings.retention.total_seconds(),
            "dead_retention": self.settings.dead_retention.total_seconds(),
        }

    def mark_spent(self, table: WorkJobQuerySet, rounds: int | None = None) -> None:
        """Bury what lapsed on its last attempt."""
        in_rounds(rounds, PRUNE_BATCH, lambda: self._bury(table))

    def delete_old(self, table: WorkJobQuerySet, rounds: int | None = None) -> int:
        """Prune what was retained long enough; how many were deleted."""
        keep = dict.fromkeys(OUTCOMES, self.settings.retention) | {"dead": self.settings.dead_retention}
        return sum(self._prune(table, outcome, retention, rounds) for outcome, retention in keep.items())

    def _bury(self, table: WorkJobQuerySet) -> int:
        buried = table.bury(self.name, LAPSED, limit=PRUNE_BATCH)
        _tell_of(self.alias, self.name, buried)
        return sum(map(len, buried.values()))

    def _prune(self, table: WorkJobQuerySet, outcome: str, retention: timedelta, rounds: int | None = None) -> int:
        return in_rounds(rounds, PRUNE_BATCH, lambda: table.prune(self.name, outcome, retention, limit=PRUNE_BATCH))


OUTCOMES = ("completed", "dead", "cancelled")
_COUNTED = (Verb.FAIL, Verb.FINISH)


def _tell_of(alias: str, name: str, buried: Mapping[str, Sequence[int]]) -> None:
    """Count what was buried, and have it in the log."""
    for kind, numbers in buried.items():
        metrics.ledger(alias).count(name, kind, dead=len(numbers))
    lapses.buried(name, buried)


def _starters(text: str) -> list[str]:
    """All who have started a job; this process alone where another program stored what Python does not take."""
    try:
        return list(payloads.loads(text))
    except (ValueError, RecursionError):
        return [worker_id()]


def _completed(outcomes: Sequence[Outcome], done: int) -> Settled:
    """What so many completions of one statement come to. Of which kind those were that are lost, is a guess."""
    lost = len(outcomes) - done
    settled = Settled(completed=done, lost=lost)
    for kind, number in Counter([outcome.work.kind for outcome in outcomes]).items():
        gone = min(lost, number)
        lost -= gone
        settled.kinds[kind] = Settled(completed=number - gone, lost=gone)
    return settled


def _id_of(outcome: Outcome) -> int:
    number: int = outcome.work.id
    return number
