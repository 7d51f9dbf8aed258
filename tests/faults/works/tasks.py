"""Handlers that note every run. How long one takes, and whether its first attempt fails, is in its name's checksum."""

import asyncio
import itertools
import os
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from django_workqueue import Item, Job, JobQueue, Queue, exponential
from tests.faults.history import pen

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
        time.sleep(seconds(item.key))
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
        time.sleep(seconds(name))
        fail_at_first(name, job.attempts)


@jobs.handler("async", lease=LEASE, backoff=BACKOFF)
async def work_job_async(job: Job) -> None:
    name = str(job.payload)
    with noted("faults-jobs", name, job.attempts, job=job.id):
        await asyncio.sleep(seconds(name))
        fail_at_first(name, job.attempts)
