"""Handlers for worker processes. What they do is in the key, `verb-argument-anything`; what they did goes to a file."""

import asyncio
import ctypes
import errno
import itertools
import os
import signal
import time
from datetime import timedelta
from pathlib import Path

from django.core.exceptions import ImproperlyConfigured

from django_workqueue import Item, Job, JobQueue, Queue
from django_workqueue.worker import crew

if waits_on := os.environ.get("SHOP_IMPORT_WAITS_ON"):
    Path(waits_on).read_text()

if give_up := os.environ.get("SHOP_GIVE_UP"):
    crew.GIVE_UP = float(give_up)

if os.environ.get("SHOP_SECOND_FORK_FAILS"):
    fork, forks = os.fork, itertools.count(1)

    def second_fails() -> int:
        if next(forks) == 2:
            raise BlockingIOError(errno.EAGAIN, "no room for another")
        return fork()

    os.fork = second_fails

LEASE = timedelta(seconds=float(os.environ.get("SHOP_LEASE", "60")))

sync = Queue[str]("shop-sync")
coroutines = Queue[str]("shop-async")
impatient = Queue[str]("shop-impatient")


def refuse(following: object) -> None:
    """A middleware."""
    raise ImproperlyConfigured("there is no shop")


def note(event: str, item: Item[str]) -> None:
    with Path(os.environ["SHOP_LOG"]).open("a") as log:
        log.write(f"{event} {item.key} {item.attempts} {os.getpid()}\n")


@sync.handler(lease=LEASE)
def work(item: Item[str]) -> None:
    note("started", item)
    verb, argument, *_ = item.key.split("-")
    if verb == "sleep":
        time.sleep(float(argument))
    elif verb == "fail":
        raise ValueError(item.key)
    elif verb == "kill" and item.attempts == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    elif verb == "gil":
        ctypes.PyDLL(None).usleep(int(float(argument) * 1_000_000))
    elif verb == "ignore":
        ignore_everything(float(argument))
    note("ended", item)


@coroutines.handler(lease=LEASE)
async def work_async(item: Item[str]) -> None:
    note("started", item)
    verb, argument, *_ = item.key.split("-")
    if verb == "block":
        time.sleep(float(argument))  # noqa: ASYNC251 - the fault to be survived
    elif verb == "sleep":
        await asyncio.sleep(float(argument))
    note("ended", item)


@impatient.handler(lease=LEASE, timeout=timedelta(seconds=0.2))
def work_impatiently(item: Item[str]) -> None:
    note("started", item)
    verb, argument, *_ = item.key.split("-")
    if verb == "ignore":
        ignore_everything(float(argument))
    elif verb == "gil":
        ctypes.PyDLL(None).usleep(int(float(argument) * 1_000_000))
    note("ended", item)


def ignore_everything(seconds: float) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        try:
            time.sleep(0.05)
        except BaseException:
            continue


jobs = JobQueue("shop-jobs")


@jobs.handler("note", lease=LEASE)
def note_job(job: Job) -> None: ...


@jobs.handler("linger", lease=LEASE)
def linger(job: Job) -> None:
    """Until it is cancelled; the payload is what it is called in the notes."""
    note_run("started", job)
    until = time.monotonic() + 20
    while not job.cancelled and time.monotonic() < until:
        time.sleep(0.02)
    note_run("cancelled" if job.cancelled else "ended", job)


@jobs.handler("linger-async", lease=LEASE)
async def linger_async(job: Job) -> None:
    note_run("started", job)
    try:
        await asyncio.sleep(20)
    except asyncio.CancelledError:
        note_run("cancelled", job)
        raise


def note_run(event: str, job: Job) -> None:
    with Path(os.environ["SHOP_LOG"]).open("a") as log:
        log.write(f"{event} {job.payload} {job.attempts} {os.getpid()}\n")


@jobs.handler("die", lease=LEASE)
def die(job: Job) -> None:
    note_run("started", job)
    time.sleep(0.3)  # until more is in hand
    os.kill(os.getpid(), signal.SIGKILL)
