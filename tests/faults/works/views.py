"""Views that enqueue, sync and async; what they enqueued is noted."""

import os
import random
import threading
import time
from contextlib import suppress
from typing import Any

from asgiref.sync import sync_to_async
from django.db import connection, transaction
from django.http import HttpRequest, HttpResponse, JsonResponse

from tests.faults.history import pen
from tests.faults.transacting import ENTRY, Undo

from .tasks import jobs, keys, ledger


def enqueue(request: HttpRequest) -> HttpResponse:
    name = request.GET["name"]
    began = time.monotonic()
    keys.enqueue(name)
    _noted(name, began, acked=None if "atomic" in request.GET else time.monotonic())
    return JsonResponse(_of_process())


async def aenqueue(request: HttpRequest) -> HttpResponse:
    name = request.GET["name"]
    began = time.monotonic()
    await keys.aenqueue(name)
    _noted(name, began, acked=time.monotonic())
    return JsonResponse(_of_process())


def transact(request: HttpRequest) -> HttpResponse:
    """Enqueues on three queues in the request's transaction, which ends as `how` says."""
    name, how = request.GET["name"], request.GET["how"]
    keys.enqueue(name)
    ids = jobs.enqueue_many("plain", [name])
    with connection.cursor() as cursor:
        cursor.execute(ENTRY, [name])
    ledger.enqueue(name)
    if how == "savepoint":
        with suppress(Undo), transaction.atomic():
            keys.enqueue(f"undone-in-{name}")
            raise Undo
    time.sleep(random.random() * 0.1)  # with the transaction open
    began = time.monotonic()

    def committed() -> None:
        acked = time.monotonic()
        for queue in (keys, ledger):
            pen.note("ask", queue=queue.name, names=[name], began=began, acked=acked)
        pen.note("ask", queue=jobs.name, names=[name], began=began, acked=acked, jobs=ids)

    transaction.on_commit(committed)
    if how == "fail":
        raise Undo
    if how == "set_rollback":
        transaction.set_rollback(True)
    return JsonResponse(_of_process())


@transaction.non_atomic_requests  # Django offers it to sync views only
async def atransact(request: HttpRequest) -> HttpResponse:
    """The same for async views: the transaction is that of the sync code they call."""
    return await sync_to_async(transaction.atomic(transact))(request)


def _noted(name: str, began: float, *, acked: float | None) -> None:
    pen.note("ask", queue=keys.name, names=[name], began=began, acked=acked, error="committed later")


def _of_process() -> dict[str, Any]:
    return {"pid": os.getpid(), "threads": [thread.name for thread in threading.enumerate()]}
