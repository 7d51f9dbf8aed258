"""HTTP: the form that sends a welcome mail, the page of what happens, and what the page is fed from."""

from django.conf import settings
from django.core.handlers.asgi import ASGIRequest
from django.db import transaction
from django.http import HttpRequest, HttpResponse, HttpResponseBase, StreamingHttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_GET, require_http_methods, require_safe

from . import activity, history, stream
from .activity import Event, What
from .forms import WelcomeForm
from .postman import EXAMPLES
from .queues import WELCOME, letters


@require_http_methods(["GET", "HEAD", "POST"])
@never_cache
def mail(request: HttpRequest) -> HttpResponse:
    """The form; and once it makes sense, the job, and on to where one sees what becomes of it."""
    form = WelcomeForm(request.POST if request.method == "POST" else None, label_suffix="")
    if form.is_valid():
        enqueue(form.cleaned_data["address"])
        return redirect("tiles:activity")
    status = 400 if form.errors else 200
    context = {"form": form, "examples": EXAMPLES, "folder": settings.MAIL_FOLDER}
    return render(request, "tiles/mail.html", context, status=status)


def enqueue(address: str) -> int:
    """Have the mail sent; the job and the event that tells of it come with one commit, or not at all."""
    with transaction.atomic():
        job = letters.enqueue(WELCOME, {"to": address})
        activity.tell(Event(What.ENQUEUED, address, job))
    return job


@require_safe
@never_cache
def page(request: HttpRequest) -> HttpResponse:
    """What happened lately; the page's script adds what happens now."""
    return render(request, "tiles/activity.html", {"events": history.recent(), "counts": history.counts()})


@require_GET
async def events(request: HttpRequest) -> HttpResponseBase:
    """Server-sent events: the state of things, then what happens, for as long as somebody listens.

    A WSGI server would hold all of it back until the end, so there the state is all; the browser asks again.
    """
    headers = {"Content-Type": "text/event-stream", "Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
    if not isinstance(request, ASGIRequest):
        return HttpResponse(await stream.state(), headers=headers)
    return StreamingHttpResponse(stream.live(), headers=headers)
