"""Procrastinate: an asyncio worker on psycopg; enqueues through its synchronous connector."""

from __future__ import annotations

import asyncio

from procrastinate import App, PsycopgConnector, SyncPsycopgConnector
from procrastinate.tasks import Task

from benchmarks import meter
from benchmarks.contestants.given import DSN, SETTINGS


def declare(app: App) -> Task:
    """The one task, the same for worker and producer."""

    @app.task(name="noop")
    async def noop(number: int, note: str) -> None:  # noqa: ARG001 - the payload has it
        meter.started(number)

    return noop


def prepare() -> None:
    """Apply the schema."""
    with App(connector=SyncPsycopgConnector(conninfo=DSN)).open() as app:
        app.schema_manager.apply_schema()


def work() -> None:
    """Run one worker until SIGTERM. The setup's `worker` goes to `run_worker_async`, its `pool` to the connector."""

    async def serve() -> None:
        app = App(connector=PsycopgConnector(conninfo=DSN, **SETTINGS.get("pool", {})))
        declare(app)
        async with app.open_async():
            await app.run_worker_async(**SETTINGS.get("worker", {}))

    asyncio.run(serve())


class Producer:
    """Defers over a pool of one connection a thread."""

    def __init__(self, concurrency: int) -> None:
        self.app = App(connector=SyncPsycopgConnector(conninfo=DSN, min_size=concurrency, max_size=concurrency))
        self.task = declare(self.app)
        self.app.open()

    def one(self, number: int) -> None:
        self.task.defer(**meter.payload(number))

    def many(self, numbers: range) -> None:
        self.task.batch_defer(*[meter.payload(number) for number in numbers])

    def close(self) -> None:
        self.app.close()
