"""Handlers that note every run. How long one takes, and whether its first attempt fails, is in its name's checksum."""

import asyncio
import ctypes
import itertools
import os
import resource
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any

from django.db import connection

from django_workqueue import Item, Job, JobQueue, Queue, exponential
from tests.faults.history import pen, rest

LEASE = timedelta(seconds=float(os.environ.get("FAULTS_LEASE", "60")))
PACE = float(os.environ.get("FAULTS_PACE", "1"))
BACKOFF = exponential(timedelta(milliseconds=50), timedelta(seconds=1))
DURATIONS = (*[0.0] * 10, *[0.002] * 6, *[0.02] * 3, 0.2)  # seconds, mixed

keys = Queue[str]("faults-keys")
coroutines = Queue[str]("faults-async")
jobs = JobQueue("faults-jobs", max_attempts=1000)

_runs = itertools.count(1)


@contextmanager
def noted(queue: str, name: str, attempt: int, **more: Any) -> Iterator[None]:
    run = next(_runs)
    pen.note("start", run=run, queue=queue, name=name, attempt=attempt, **more)
    outcome = "ok"
    try:
        yield
    except asyncio.CancelledError:
        outcome = "cancelled"
        raise
    except BaseException as error:
        outcome = type(error).__name__
        raise
    finally:
        pen.note("end", run=run, outcome=outcome)


def seconds(name: str) -> float:
    return DURATIONS[zlib.crc32(name.encode()) % len(DURATIONS)] * PACE


def fail_at_first(name: str, attempt: int) -> None:
    if attempt == 1 and zlib.crc32(name[::-1].encode()) % 50 == 0:
        raise ValueError(name)


@keys.handler(lease=LEASE, backoff=BACKOFF)
def work(item: Item[str]) -> None:
    with noted("faults-keys", item.key, item.attempts):
        rest(seconds(item.key))
        fail_at_first(item.key, item.attempts)


@coroutines.handler(lease=LEASE, backoff=BACKOFF)
async def work_async(item: Item[str]) -> None:
    with noted("faults-async", item.key, item.attempts):
        await asyncio.sleep(seconds(item.key))
        fail_at_first(item.key, item.attempts)


@jobs.handler("plain", lease=LEASE, backoff=BACKOFF)
def work_job(job: Job) -> None:
    name = str(job.payload)
    with noted("faults-jobs", name, job.attempts, job=job.id):
        rest(seconds(name))
        fail_at_first(name, job.attempts)


async def work_job_async(job: Job) -> None:
    name = str(job.payload)
    with noted("faults-jobs", name, job.attempts, job=job.id):
        await asyncio.sleep(seconds(name))
        fail_at_first(name, job.attempts)


async def work_novel(item: Item[str]) -> None:
    with noted("faults-novel", item.key, item.attempts):
        await asyncio.sleep(seconds(item.key))


keyed = {queue.name: queue for queue in (keys, coroutines)}
if os.environ.get("FAULTS_VERSION") != "old":  # whose code knows neither that kind nor that queue yet
    jobs.handler("async", lease=LEASE, backoff=BACKOFF)(work_job_async)
    keyed["faults-novel"] = novel = Queue[str]("faults-novel")
    novel.handler(lease=LEASE, backoff=BACKOFF)(work_novel)


if os.environ.get("FAULTS_SECOND_URL"):
    second = Queue[str]("faults-second", using="second")

    @second.handler(lease=LEASE, backoff=BACKOFF)
    def work_second(item: Item[str]) -> None:
        with noted("faults-second", item.key, item.attempts):
            rest(seconds(item.key))


ledger = Queue[str]("faults-ledger")  # whose producers write an entry of the same name in the same transaction


@ledger.handler(lease=LEASE, backoff=BACKOFF)
def work_ledger(item: Item[str]) -> None:
    with noted("faults-ledger", item.key, item.attempts), connection.cursor() as cursor:
        cursor.execute("SELECT 1 FROM faults_ledger WHERE name = %s", [item.key])
        if cursor.fetchone() is None:
            raise LookupError(item.key)


keyed[ledger.name] = ledger
hard = JobQueue("faults-hard", max_attempts=3)  # whatever a handler does to its process; what, is in the payload
TAME = bool(os.environ.get("FAULTS_TAME"))  # and nothing at all of it in this one


@hard.handler("sync", lease=LEASE, backoff=BACKOFF)
def work_hard(job: Job) -> None:
    name = str(job.payload)
    verb, _, argument = name.partition("-")
    with noted("faults-hard", name, job.attempts, job=job.id):
        if TAME:
            return
        if verb == "long":
            time.sleep(float(argument))
        elif verb == "ignore":
            ignore(float(argument))
        elif verb == "gil":
            ctypes.PyDLL(None).usleep(int(float(argument) * 1_000_000))
        elif verb == "exit":
            os._exit(3)
        elif verb == "memory":
            exhaust_memory()


@hard.handler("async", lease=LEASE, backoff=BACKOFF)
async def work_hard_async(job: Job) -> None:
    verb, _, argument = str(job.payload).partition("-")
    with noted("faults-hard", str(job.payload), job.attempts, job=job.id):
        if TAME:
            return
        if verb == "block":
            time.sleep(float(argument))  # noqa: ASYNC251 - the fault to be survived
        until = time.monotonic() + float(argument)
        while verb == "ignore" and time.monotonic() < until:
            with suppress(BaseException):
                await asyncio.sleep(0.05)


def ignore(seconds: float) -> None:
    """Whatever anybody raises in this thread."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        with suppress(BaseException):
            time.sleep(0.05)


def exhaust_memory() -> None:
    used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()  # noqa: PTH123, SIM115
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (used + (64 << 20), before[1]))
    held = []
    try:
        while True:
            held.append(bytearray(1 << 20))
    finally:
        held.clear()
        resource.setrlimit(resource.RLIMIT_AS, before)
