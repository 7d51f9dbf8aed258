"""PgQueuer: asyncio on asyncpg, the driver its documentation recommends."""

from __future__ import annotations

import asyncio
import json
import signal

import asyncpg
import uvloop
from pgqueuer import PgQueuer
from pgqueuer.models import Job
from pgqueuer.queries import Queries

from benchmarks import meter
from benchmarks.contestants.given import DSN, SETTINGS

ENTRYPOINT = "noop"


def prepare() -> None:
    """Install the tables."""

    async def install() -> None:
        connection = await asyncpg.connect(DSN)
        await Queries.from_asyncpg_connection(connection).install()
        await connection.close()

    asyncio.run(install())


def work() -> None:
    """Run one worker until SIGTERM. The setup may set `pool`, `uvloop` and `run`, arguments of `PgQueuer.run`."""
    run = uvloop.run if SETTINGS.get("uvloop") else asyncio.run
    run(serve())


async def serve() -> None:
    """Work until told to shut down."""
    if "pool" in SETTINGS:
        pool = await asyncpg.create_pool(DSN, min_size=SETTINGS["pool"], max_size=SETTINGS["pool"])
        worker = PgQueuer.from_asyncpg_pool(pool)
    else:
        worker = PgQueuer.from_asyncpg_connection(await asyncpg.connect(DSN))

    @worker.entrypoint(ENTRYPOINT)
    async def noop(job: Job) -> None:
        meter.started(json.loads(job.payload or b"{}")["number"])

    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, worker.shutdown.set)
    await worker.run(**SETTINGS.get("run", {}))


class Producer:
    """Enqueues over a pool of one connection a coroutine."""

    def __init__(self, concurrency: int) -> None:
        self.concurrency = concurrency

    async def open(self) -> None:
        self.pool = await asyncpg.create_pool(DSN, min_size=self.concurrency, max_size=self.concurrency)
        self.queries = Queries.from_asyncpg_pool(self.pool)

    async def one(self, number: int) -> None:
        await self.queries.enqueue(ENTRYPOINT, json.dumps(meter.payload(number)).encode())

    async def many(self, numbers: range) -> None:
        payloads: list[bytes | None] = [json.dumps(meter.payload(number)).encode() for number in numbers]
        await self.queries.enqueue([ENTRYPOINT] * len(payloads), payloads, [0] * len(payloads))

    async def close(self) -> None:
        await self.pool.close()
