"""`JobQueue`: a list of jobs, each a kind with a JSON payload.

The typed face of the engine in `listed.py`: checks arguments, and chooses how a call reaches the database.
Knows no SQL.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, TypeVar

from asgiref.sync import sync_to_async
from django.conf import settings
from django.utils import timezone

from . import arguments, database, engine, payloads, stats, tracing
from .backoff import Backoff, exponential
from .delivery import Job
from .exceptions import InvalidPayload, Retry, of_queue
from .faces import Face
from .insertion import Waiting, carry, weight
from .keys import check_name, check_priority, has_control_characters
from .lanes import commits, due_after
from .listed import ListedSource, Settings
from .payloads import JSON
from .stats import QueueStats
from .status import JobStatus

if TYPE_CHECKING:
    from .models import WorkJob

F = TypeVar("F", bound=Callable[..., Any])

MAX_ATTEMPTS = 5
RETENTION = timedelta(days=1)
DEAD_RETENTION = timedelta(days=30)
MAX_KIND_BYTES = 512
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
NEVER = datetime(9999, 12, 31, tzinfo=UTC)  # no time is later: rounded by the server, Python could not read it back


class JobQueue(Face[ListedSource]):
    """A durable list of jobs, each delivered at least once until it has an outcome.

    `using` is the database alias (None: `WORKQUEUE_DATABASE`). `retention` is how long completed and cancelled
    jobs are kept (0 deletes on completion, with the result), `dead_retention` how long dead letters are. All
    objects of one name in a process must agree, or `ValueError` is raised.
    """

    def __init__(
        self,
        name: str = "default",
        *,
        using: str | None = None,
        max_attempts: int = MAX_ATTEMPTS,
        retention: timedelta = RETENTION,
        dead_retention: timedelta = DEAD_RETENTION,
    ) -> None:
        name = check_name(name)
        settings = Settings(
            max_attempts=arguments.whole("max_attempts", max_attempts, least=1),
            retention=arguments.not_negative("retention", retention),
            dead_retention=arguments.not_negative("dead_retention", dead_retention),
        )
        super().__init__(
            engine.register(using, name, lambda: ListedSource(name, using, settings), settings.difference_from)
        )

    # Producing

    def enqueue(
        self,
        kind: str,
        payload: JSON = None,
        *,
        run_at: datetime | None = None,
        delay: timedelta | None = None,
        priority: int = 0,
        max_attempts: int | None = None,
        timeout: float | None = None,
    ) -> int:
        """Add a job, due at `run_at` or after `delay` (else now); its id, once it is durable.

        Inside `atomic()` on the queue's database it becomes so with the commit. Raises `InvalidPayload`,
        `QueueClosed`, `EnqueueTimeout`, and `ValueError` for a naive `run_at` under `USE_TZ`.
        """
        options = self._options(run_at, delay, priority, max_attempts)
        return self._enqueue(self._waiting(kind, [payload], options), timeout)[0]

    def enqueue_many(
        self,
        kind: str,
        payloads: Iterable[JSON],
        *,
        run_at: datetime | None = None,
        delay: timedelta | None = None,
        priority: int = 0,
        max_attempts: int | None = None,
        timeout: float | None = None,
    ) -> list[int]:
        """Add a job for each payload; their ids, in order. None is added if a payload is refused."""
        options = self._options(run_at, delay, priority, max_attempts)
        return self._enqueue(self._waiting(kind, payloads, options), timeout)

    async def aenqueue(
        self,
        kind: str,
        payload: JSON = None,
        *,
        run_at: datetime | None = None,
        delay: timedelta | None = None,
        priority: int = 0,
        max_attempts: int | None = None,
        timeout: float | None = None,
    ) -> int:
        """`enqueue` for coroutines: awaits, and takes no thread."""
        options = self._options(run_at, delay, priority, max_attempts)
        return (await self._aenqueue(self._waiting(kind, [payload], options), timeout))[0]

    async def aenqueue_many(
        self,
        kind: str,
        payloads: Iterable[JSON],
        *,
        run_at: datetime | None = None,
        delay: timedelta | None = None,
        priority: int = 0,
        max_attempts: int | None = None,
        timeout: float | None = None,
    ) -> list[int]:
        """`enqueue_many` for coroutines."""
        options = self._options(run_at, delay, priority, max_attempts)
        return await self._aenqueue(self._waiting(kind, payloads, options), timeout)

    def _options(
        self,
        run_at: datetime | None,
        delay: timedelta | None,
        priority: int,
        max_attempts: int | None,
    ) -> tuple[int, float, int, int]:
        """The checked options of a job: priority, when due, absolute time, attempts."""
        priority = check_priority(priority)
        if run_at is not None and delay is not None:
            raise ValueError(f"give run_at or delay, not both; got run_at={run_at!r} and delay={delay!r}")
        most = self.source.settings.max_attempts
        if max_attempts is not None:
            most = arguments.whole("max_attempts", max_attempts, least=1)
        due = 0.0 if delay is None else due_after(arguments.delay(delay))
        return priority, due, 0 if run_at is None else epoch_us(run_at), most

    def _waiting(self, kind: str, values: Iterable[JSON], options: tuple[int, float, int, int]) -> list[Waiting]:
        kind, dumps = check_kind(kind), payloads.dumps
        values = arguments.several("payloads", values, one="payload")
        try:
            return [Waiting(kind, dumps(value), *options, "{}") for value in values]
        except InvalidPayload as error:
            of_queue(error, self.name)
            raise

    @classmethod
    def _sharing(cls, name: str, using: str | None, retention: timedelta | None) -> JobQueue:
        """A queue that is, but for the retention if that is given, as another of its name is set up, or will be."""
        name = check_name(name)
        everything = frozenset({"max_attempts", "retention", "dead_retention"})
        if retention is None:
            settings = Settings(MAX_ATTEMPTS, RETENTION, DEAD_RETENTION, everything)
        else:
            settings = Settings(MAX_ATTEMPTS, retention, max(retention, DEAD_RETENTION), everything - {"retention"})
        queue = cls.__new__(cls)
        Face.__init__(
            queue, engine.register(using, name, lambda: ListedSource(name, using, settings), settings.difference_from)
        )
        return queue

    def _enqueue(self, waiting: list[Waiting], timeout: float | None) -> list[int]:
        timeout = self._admit(timeout)
        if not waiting:
            return []
        with tracing.enqueueing(self.name, len(waiting), waiting[0].kind) as sending:
            carry(sending.carried, waiting)
            ids = self._put(waiting, timeout)
            sending.sent(ids)
            return ids

    def _put(self, waiting: list[Waiting], timeout: float) -> list[int]:
        source = self.source
        alias = source.alias
        if database.inside_transaction(alias):
            ids = source.enqueue_inside(waiting)
        else:
            ids = commits(alias).batcher.submit(source.lane, waiting, timeout, weight=weight(waiting)) or []
        engine.enqueued(source)
        return ids

    async def _aenqueue(self, waiting: list[Waiting], timeout: float | None) -> list[int]:
        timeout = self._admit(timeout)
        if not waiting:
            return []
        with tracing.enqueueing(self.name, len(waiting), waiting[0].kind) as sending:
            carry(sending.carried, waiting)
            ids = await self._aput(waiting, timeout)
            sending.sent(ids)
            return ids

    async def _aput(self, waiting: list[Waiting], timeout: float) -> list[int]:
        source = self.source
        inside, timeout = await self._ainside(timeout)
        if inside:
            ids = await sync_to_async(source.enqueue_inside)(waiting)
        else:
            ids = await source.commits.batcher.asubmit(source.lane, waiting, timeout, weight=weight(waiting)) or []
        if engine.after_enqueue:
            await sync_to_async(engine.enqueued)(source)
        return ids

    # Consuming by hand

    def claim(
        self, limit: int | None = None, lease: timedelta = timedelta(seconds=60), kinds: Iterable[str] | None = None
    ) -> list[Job]:
        """Lease up to `limit` due jobs (None: 500) of the given kinds (None: of any).

        The loudest first, then by the time they became due, then by id. Each counts as an attempt.
        """
        most = self.source.max_claim
        limit = most if limit is None else min(arguments.whole("limit", limit, least=1), most)
        if kinds is not None:
            kinds = sorted({check_kind(kind) for kind in arguments.several("kinds", kinds, one="kind")})
        return self.source.claim_here(limit, arguments.positive("lease", lease), kinds)

    def complete(self, *jobs: Job, result: JSON = None) -> int:
        """Finish claimed jobs, fenced on their leases; how many were."""
        return self.source.complete_here(self._own(jobs), result)

    def fail(self, job: Job, error: BaseException, *, retry_in: timedelta | None = None) -> JobStatus | None:
        """Note a claimed job's error: PENDING again after `retry_in` (None: its backoff), or DEAD, or None: lease lost.

        Dead when its attempts are used up, or at once by a `PermanentError`. A `Retry` counts no attempt, and says
        itself when.
        """
        (job,) = self._own([job])
        if not isinstance(error, BaseException):
            raise TypeError(f"error is an exception, not {error!r}")
        if retry_in is None:
            retry_in = error.delay if isinstance(error, Retry) else self.source.backoff_of(job)
        outcome = self.source.fail_here(job, error, retry_in=arguments.delay(retry_in))
        return None if outcome is None else JobStatus(outcome)

    def extend(self, *jobs: Job, lease: timedelta) -> list[Job]:
        """Let leases end no sooner than `lease` from now; the jobs still held."""
        return self.source.extend_here(self._own(jobs), arguments.positive("lease", lease))

    def cancel(self, *ids: int) -> int:
        """Cancel pending jobs, and running ones: their handlers can see it, and their outcome is dropped."""
        return self.source.cancel_here(check_ids(ids))

    def retry(self, *ids: int) -> int:
        """Let dead or cancelled jobs start afresh, attempts 0; how many did."""
        return self.source.retry_here(check_ids(ids))

    def get(self, id: int) -> WorkJob:  # noqa: A002 - the contract's name
        """The job's row, whatever its state. Raises `WorkJob.DoesNotExist`."""
        row: WorkJob = self.source.table().get(queue=self.name, id=id)
        return row

    def prune(self, older_than: timedelta) -> int:
        """Delete what was completed, cancelled or died longer ago; how many."""
        return self.source.prune_here(arguments.not_negative("older_than", older_than))

    def stats(self, *, exact: bool = True) -> QueueStats:
        """How many jobs are in which state, dead ones as `stalled`; `exact=False` bounds the cost by estimating."""
        read = stats.exact if exact else stats.bounded
        return read(self.source.table(), self.name)

    async def aclaim(
        self, limit: int | None = None, lease: timedelta = timedelta(seconds=60), kinds: Iterable[str] | None = None
    ) -> list[Job]:
        """`claim` for coroutines."""
        return await sync_to_async(self.claim)(limit, lease, kinds)

    async def acomplete(self, *jobs: Job, result: JSON = None) -> int:
        """`complete` for coroutines."""
        return await sync_to_async(self.complete)(*jobs, result=result)

    async def afail(self, job: Job, error: BaseException, *, retry_in: timedelta | None = None) -> JobStatus | None:
        """`fail` for coroutines."""
        return await sync_to_async(self.fail)(job, error, retry_in=retry_in)

    async def aextend(self, *jobs: Job, lease: timedelta) -> list[Job]:
        """`extend` for coroutines."""
        return await sync_to_async(self.extend)(*jobs, lease=lease)

    async def acancel(self, *ids: int) -> int:
        """`cancel` for coroutines."""
        return await sync_to_async(self.cancel)(*ids)

    async def aretry(self, *ids: int) -> int:
        """`retry` for coroutines."""
        return await sync_to_async(self.retry)(*ids)

    async def aget(self, id: int) -> WorkJob:  # noqa: A002 - the contract's name
        """`get` for coroutines."""
        return await sync_to_async(self.get)(id)

    async def aprune(self, older_than: timedelta) -> int:
        """`prune` for coroutines."""
        return await sync_to_async(self.prune)(older_than)

    async def astats(self, *, exact: bool = True) -> QueueStats:
        """`stats` for coroutines."""
        return await sync_to_async(self.stats)(exact=exact)

    # Consuming with the worker

    def handler(
        self,
        kind: str,
        *,
        lease: timedelta = timedelta(seconds=60),
        timeout: timedelta | None = None,
        backoff: Backoff = exponential(),
        concurrency: int | None = None,
    ) -> Callable[[F], F]:
        """Decorate the function, sync or async, that the worker calls with each `Job` of this kind.

        What it returns is the result; an exception is an attempt that failed, tried again after
        `backoff(attempts)`. `lease` is renewed while the handler runs, up to `timeout`. `concurrency` bounds how
        many run at once in one process. A kind has one handler: a second raises `ValueError`.
        """
        return self._decorator(
            kind=check_kind(kind), lease=lease, timeout=timeout, backoff=backoff, concurrency=concurrency, size=None
        )

    def _own(self, jobs: Iterable[Job]) -> list[Job]:
        jobs = list(jobs)
        for job in jobs:
            if not isinstance(job, Job):
                raise TypeError(f"expected jobs that were claimed from queue {self.name!r}, not {job!r}")
            if job.queue != self.name:
                raise ValueError(f"{job!r} was claimed from queue {job.queue!r}, not from {self.name!r}")
        return jobs


def check_kind(kind: object) -> str:
    """The kind, if it is one. Raises `TypeError` or `ValueError` saying what was given."""
    if not isinstance(kind, str):
        raise TypeError(f"a job's kind is a str, not {kind!r}")
    if has_control_characters(kind):
        raise ValueError(f"a job's kind holds no control characters: {kind!r}")
    size = len(kind.encode())
    if not 1 <= size <= MAX_KIND_BYTES:
        raise ValueError(f"a job's kind has 1 to {MAX_KIND_BYTES} bytes; {kind[:40]!r} has {size}")
    return str.__str__(kind)  # of an enum's member its value, whatever str() says


def check_ids(ids: Iterable[object]) -> list[int]:
    """Job ids. Raises `TypeError` or `ValueError`."""
    return [arguments.whole("a job's id", number, least=1, most=2**63 - 1) for number in ids]


def epoch_us(moment: object) -> int:
    """An absolute time in µs since the epoch. Raises `TypeError`, or `ValueError` for a naive one under `USE_TZ`."""
    if not isinstance(moment, datetime):
        raise TypeError(f"run_at is a datetime, not {moment!r}")
    if timezone.is_naive(moment):
        if settings.USE_TZ:
            raise ValueError(
                f"run_at has no time zone: {moment!r}. USE_TZ is on, so give an aware datetime (django.utils.timezone)."
            )
        moment = timezone.make_aware(moment)
    return (min(moment, NEVER) - EPOCH) // timedelta(microseconds=1)
