"""chancy: asyncio on psycopg, jobs in processes by default."""

from __future__ import annotations

import asyncio

from chancy import Chancy, Job, Queue, Worker, job

from benchmarks import meter
from benchmarks.contestants.given import DSN, SETTINGS


@job()
def noop(*, number: int, note: str) -> None:  # noqa: ARG001 - the payload has it
    """The job for the executors that run functions."""
    meter.started(number)


@job()
async def anoop(*, number: int, note: str) -> None:  # noqa: ARG001 - the payload has it
    """The job for the asyncio executor."""
    meter.started(number)


def prepare() -> None:
    """Migrate, and declare the queue as the setup's `queue` says."""

    async def migrate() -> None:
        async with Chancy(DSN) as app:
            await app.migrate()
            await app.declare(Queue("default", **SETTINGS.get("queue", {})), upsert=True)

    asyncio.run(migrate())


def work() -> None:
    """Run one worker until SIGTERM."""

    async def serve() -> None:
        async with Chancy(DSN) as app, Worker(app) as worker:
            await worker.wait_for_shutdown()

    asyncio.run(serve())


class Producer:
    """Pushes over a pool of one connection a coroutine."""

    def __init__(self, concurrency: int) -> None:
        self.app = Chancy(DSN, min_connection_pool_size=concurrency, max_connection_pool_size=concurrency)
        self.function = anoop if SETTINGS.get("async") else noop

    async def open(self) -> None:
        await self.app.pool.open(wait=True)

    def job(self, number: int) -> Job:
        return self.function.job.with_kwargs(**meter.payload(number))

    async def one(self, number: int) -> None:
        await self.app.push(self.job(number))

    async def many(self, numbers: range) -> None:
        async for _ in self.app.push_many([self.job(number) for number in numbers], batch_size=len(numbers)):
            pass

    async def close(self) -> None:
        await self.app.pool.close()
