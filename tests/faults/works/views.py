"""Views that enqueue, sync and async; what they enqueued is noted."""

import os
import threading
import time
from typing import Any

from django.http import HttpRequest, HttpResponse, JsonResponse

from tests.faults.history import pen

from .tasks import keys


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


def _noted(name: str, began: float, *, acked: float | None) -> None:
    pen.note("ask", queue=keys.name, names=[name], began=began, acked=acked, error="committed later")


def _of_process() -> dict[str, Any]:
    return {"pid": os.getpid(), "threads": [thread.name for thread in threading.enumerate()]}
