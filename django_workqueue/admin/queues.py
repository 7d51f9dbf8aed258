"""The queues' pages: how one stands, and its levers."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from django.contrib import admin, messages
from django.contrib.admin.models import CHANGE, DELETION
from django.contrib.admin.utils import unquote
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls.resolvers import URLPattern
from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from .. import dashboard, figures, inventory, partitions, plots, steering
from ..inventory import KnownQueue, UnknownQueue
from ..models import QueueRecord, WorkItem, WorkJob
from .dashboard import plots_of, queue_row
from .pages import HELD, REFRESH_EVERY, Page, alias_of, databases


@dataclass(frozen=True, slots=True)
class Lever:
    """Something to do to a queue. `of_work` says that the permission is that on the work it holds."""

    name: str
    label: Any
    question: Any
    permission: str = "change"
    of_work: bool = False
    dangerous: bool = False


LEVERS = {
    lever.name: lever
    for lever in (
        Lever("pause", gettext_lazy("Pause"), gettext_lazy("Nobody claims from it any more. What is leased goes on.")),
        Lever("resume", gettext_lazy("Resume"), gettext_lazy("Workers claim from it again.")),
        Lever(
            "retry",
            gettext_lazy("Retry all dead or stalled"),
            gettext_lazy("All that ran out of attempts starts afresh."),
            of_work=True,
        ),
        Lever(
            "purge",
            gettext_lazy("Purge"),
            gettext_lazy("It is deleted for good."),
            permission="delete",
            of_work=True,
            dangerous=True,
        ),
        Lever(
            "partition",
            gettext_lazy("Give it a partition of its own"),
            gettext_lazy("Its rows move, and whoever works the table waits for that."),
        ),
        Lever(
            "unpartition",
            gettext_lazy("Give up its partition"),
            gettext_lazy("Its rows move back among the others, and whoever works the table waits for that."),
        ),
    )
}

PURGES = {
    "waiting": (gettext_lazy("What waits"), ("waiting",)),
    "finished": (gettext_lazy("What is finished: completed, cancelled, dead or stalled"), ("finished",)),
    "everything": (gettext_lazy("Everything, what is leased included"), steering.PURGES),
}


@admin.register(QueueRecord)
class QueueAdmin(Page):
    """Queues: a list, and each with its levers."""

    about = QueueRecord

    def get_urls(self) -> list[URLPattern]:
        """The list, the detail, and the levers."""
        return [
            *super().get_urls(),
            self.page("queue/", self.detail, "queuerecord_detail"),
            self.page("act/", self.act, "queuerecord_act"),
            self.page("<path:ident>/change/", self.by_ident, "queuerecord_change"),  # where Django's log leads
        ]

    def changelist_view(self, request: HttpRequest, extra_context: Any = None) -> HttpResponse:
        """All queues."""
        self.demand(request, "view")
        alias = alias_of(request)
        return self.shown(
            request,
            "queues",
            self.plural,
            crumbs=[(self.plural, None)],
            now=plots.local(timezone.now()),
            refresh_every=int(REFRESH_EVERY.total_seconds()),
            databases=databases(alias, lambda other: self.url("queuerecord_changelist", alias=other)),
            queues=[queue_row(self, request, view) for view in dashboard.queue_views(alias)],
        )

    def detail(self, request: HttpRequest) -> HttpResponse:
        """One queue."""
        self.demand(request, "view")
        alias, name = alias_of(request), request.GET.get("name", "")
        try:
            (view,) = dashboard.queue_views(alias, [name])
        except UnknownQueue:
            raise Http404 from None
        queue = view.queue
        partition = next(
            (each for each in partitions.partitions(alias) if (each.face, each.queue) == (queue.face, name)), None
        )
        described = queue.source.described()
        durations = {"retention", "dead_retention"}
        texts = {
            "max_attempts": _("Attempts at most"),
            "retention": _("Kept after completion"),
            "dead_retention": _("Kept when dead"),
        }
        handlers = sorted((each.kind or "", each.name) for each in queue.source.handlers if each.kind != "")
        return self.shown(
            request,
            "queue",
            _("Queue"),
            crumbs=[(self.plural, self.url("queuerecord_changelist", alias=alias)), (figures.visible(name), None)],
            now=plots.local(timezone.now()),
            refresh_every=int(REFRESH_EVERY.total_seconds()),
            queue=queue,
            view=view,
            queues=[queue_row(self, request, view)],
            alias=alias,
            settings=[
                (texts.get(key, key), _told_setting(key, value, duration=key in durations))
                for key, value in described.items()
            ]
            if queue.configured
            else [],
            handlers=handlers,
            partition=partition,
            levers=self._levers(request, queue, has_partition=partition is not None),
            purges=[(key, text) for key, (text, _what) in PURGES.items()],
            act_url=self.url("queuerecord_act"),
            all_queues_url=self.url("dashboard", alias=alias),
            **plots_of(self, request, "queuerecord_detail", alias, queue=name),
        )

    def by_ident(self, request: HttpRequest, ident: str) -> HttpResponse:
        """The page of a queue as Django's log names it."""
        self.demand(request, "view")
        return HttpResponseRedirect(self.url("queuerecord_detail", name=unquote(ident)))

    def act(self, request: HttpRequest) -> HttpResponse:
        """Ask whether it is meant, then do it."""
        if request.method != "POST":
            return HttpResponseRedirect(self.url("queuerecord_changelist"))
        lever = LEVERS.get(request.POST.get("verb", ""))
        alias, name = alias_of(request), request.POST.get("name", "")
        try:
            (queue,) = inventory.queues([name], using=alias)
        except UnknownQueue:
            raise Http404 from None
        if lever is None:
            raise Http404
        self._demand(request, lever, queue)
        back = self.url("queuerecord_detail", alias=alias, name=name)
        what = request.POST.get("what", "")
        if lever.name == "purge" and what not in PURGES:
            self.say(request, _("Choose what to purge."), messages.WARNING)
            return HttpResponseRedirect(back)
        if "confirmed" not in request.POST:
            return self._confirm(request, lever, queue, what, back)
        try:
            text, changed, more = self._done(request, lever, queue, what)
        except steering.Held:
            self.say(request, f"{lever.label}: {HELD}", messages.WARNING)
            return HttpResponseRedirect(back)
        if more:
            return self._confirm(request, lever, queue, what, back, goes_on=text)
        self.say(request, f"{lever.label}: {text}", messages.SUCCESS if changed else messages.WARNING)
        return HttpResponseRedirect(back)

    def _confirm(
        self, request: HttpRequest, lever: Lever, queue: KnownQueue, what: str, back: str, *, goes_on: str = ""
    ) -> HttpResponse:
        held = None
        if lever.name in ("partition", "unpartition"):
            held = figures.age(partitions.stall(queue.name, queue.face, queue.alias))
        return self.shown(
            request,
            "confirm_queue",
            str(lever.label),
            crumbs=[
                (self.plural, self.url("queuerecord_changelist", alias=queue.alias)),
                (figures.visible(queue.name), back),
                (str(lever.label), None),
            ],
            lever=lever,
            queue=queue,
            alias=queue.alias,
            what=what,
            what_text=PURGES[what][0] if what in PURGES else "",
            held=held,
            goes_on=goes_on,
            back=back,
            act_url=self.url("queuerecord_act"),
        )

    def _done(self, request: HttpRequest, lever: Lever, queue: KnownQueue, what: str) -> tuple[str, bool, bool]:
        """What came of it, in words; whether it changed something, and whether there is more to do."""
        if lever.name in ("retry", "purge"):
            return self._drained(request, lever, queue, what)
        if lever.name == "pause":
            steering.pause(queue)
            text, changed = _("the queue is paused."), not queue.paused
        elif lever.name == "resume":
            steering.resume(queue)
            text, changed = _("the queue is worked again."), queue.paused
        else:
            text, changed = self._repartitioned(lever, queue)
        if changed:
            self._note(request, queue, f"{lever.label}: {text}")
        return text, changed, False

    def _drained(self, request: HttpRequest, lever: Lever, queue: KnownQueue, what: str) -> tuple[str, bool, bool]:
        """The same of what is done batch by batch. It is noted in the log also where it fails half-way."""
        progress = steering.Progress()
        try:
            if lever.name == "purge":
                more = steering.purge(queue, PURGES[what][1], progress)
            else:
                more = steering.retry_all(queue, progress)
        finally:
            text = _("%(count)s rows.") % {"count": figures.number(progress.done)}
            if progress.done and lever.name == "purge":
                self._note(request, queue, f"{lever.label} ({PURGES[what][0]}): {text}", flag=DELETION)
            elif progress.done:
                self._note(request, queue, f"{lever.label}: {text}")
        return text, progress.done > 0, more

    def _note(self, request: HttpRequest, queue: KnownQueue, message: str, *, flag: int = CHANGE) -> None:
        self.log(request, QueueRecord, [(queue.name, queue.name)], message, flag=flag)

    def _repartitioned(self, lever: Lever, queue: KnownQueue) -> tuple[str, bool]:
        try:
            if lever.name == "partition":
                partitions.create(queue.name, queue.face, queue.alias)
                return _("the queue has a partition of its own."), True
            partitions.drop(queue.name, queue.face, queue.alias)
        except partitions.PartitionError as error:
            return str(error), False
        return _("the queue shares a partition with the others."), True

    def _levers(self, request: HttpRequest, queue: KnownQueue, *, has_partition: bool) -> list[Lever]:
        idle = {"resume" if not queue.paused else "pause", "partition" if has_partition else "unpartition"}
        return [lever for lever in LEVERS.values() if lever.name not in idle and self._may(request, lever, queue)]

    def _may(self, request: HttpRequest, lever: Lever, queue: KnownQueue) -> bool:
        return self.allows(request, lever.permission, _work(queue) if lever.of_work else None)

    def _demand(self, request: HttpRequest, lever: Lever, queue: KnownQueue) -> None:
        self.demand(request, lever.permission, _work(queue) if lever.of_work else None)


def _work(queue: KnownQueue) -> type[WorkJob | WorkItem]:
    return WorkJob if queue.face == "jobs" else WorkItem


def _told_setting(key: str, value: Any, *, duration: bool) -> str:
    if duration:
        return figures.age(timedelta(seconds=value)) if value else _("not at all")
    return _("without limit") if key == "max_attempts" and not value else str(value)
