"""The dashboard's page."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.http import HttpRequest, HttpResponse
from django.urls.resolvers import URLPattern
from django.utils import timezone
from django.utils.translation import gettext as _

from .. import dashboard, doctor, history, plots
from ..history import DAY, HOUR, SPANS, WEEK
from ..models import Dashboard, QueueRecord, WorkerRecord, WorkItem, WorkJob
from .pages import REFRESH_EVERY, Page, alias_of, databases


@admin.register(Dashboard)
class DashboardAdmin(Page):
    """`admin:workqueue_dashboard`: every queue at a glance."""

    about = QueueRecord

    def get_urls(self) -> list[URLPattern]:
        """The dashboard, under its own name too."""
        return [
            self.page("", self.changelist_view, "dashboard"),
            self.page("health/", self.findings, "findings"),
            *super().get_urls(),
        ]

    def changelist_view(self, request: HttpRequest, extra_context: Any = None) -> HttpResponse:
        """Show it."""
        self.demand(request, "view")
        alias = alias_of(request)
        views = dashboard.queue_views(alias)
        sees_workers = self.allows(request, "view", WorkerRecord)
        return self.shown(
            request,
            "dashboard",
            _("Work queues"),
            crumbs=[(_("Dashboard"), None)],
            now=plots.local(timezone.now()),
            refresh_every=int(REFRESH_EVERY.total_seconds()),
            databases=databases(alias, lambda other: self.url("dashboard", alias=other)),
            findings_url=self.url("findings", alias=alias),
            queues=[queue_row(self, request, view) for view in views],
            workers=dashboard.live_workers(alias) if sees_workers else None,
            **plots_of(self, request, "dashboard", alias, queue=None),
        )

    def findings(self, request: HttpRequest) -> HttpResponse:
        """What the doctor finds. It takes longer than the rest, so the dashboard asks for it separately."""
        self.demand(request, "view")
        alias = alias_of(request)
        return self.shown(
            request,
            "findings",
            _("Health"),
            crumbs=[(_("Dashboard"), self.url("dashboard", alias=alias)), (_("Health"), None)],
            databases=databases(alias, lambda other: self.url("findings", alias=other)),
            findings=doctor.examine(alias),
        )


def queue_row(page: Page, request: HttpRequest, view: dashboard.QueueView) -> dict[str, Any]:
    """One queue with where its name and its figures lead, as far as the user may go there."""
    queue = view.queue
    model = WorkJob if queue.face == "jobs" else WorkItem
    listed = "workjob_changelist" if queue.face == "jobs" else "items_changelist"
    may = page.allows(request, "view", model)

    def figure(label: str, value: int, state: str, *, alarming: bool = False) -> dict[str, Any]:
        to = page.url(listed, alias=queue.alias, queue=view.name, state=state) if may else None
        return {"label": label, "value": value, "url": to, "alarming": alarming and value > 0}

    stats = view.stats
    gone = "dead" if queue.face == "jobs" else "stalled"
    return {
        "view": view,
        "url": page.url("queuerecord_detail", alias=queue.alias, name=view.name),
        "figures": [
            figure(_("Ready"), stats.ready, "ready"),
            figure(_("Scheduled"), stats.scheduled, "scheduled"),
            figure(_("Leased"), stats.leased, "leased"),
            figure(_("Stalled or dead"), stats.stalled, gone, alarming=True),
            figure(_("Completed"), stats.completed, "completed"),
        ],
    }


def plots_of(page: Page, request: HttpRequest, name: str, alias: str, *, queue: str | None) -> dict[str, Any]:
    """The plots' part of a page's context, with the spans to choose from."""
    texts = {HOUR: _("1 hour"), DAY: _("24 hours"), WEEK: _("7 days")}
    chosen: history.Span = SPANS.get(request.GET.get("span", ""), HOUR)
    about = {} if queue is None else {"name": queue}
    past, plots = dashboard.charts(alias, chosen, queue)
    return {
        "past": past,
        "plots": plots,
        "plot_queue": queue,
        "spans": [
            {"text": text, "url": page.url(name, alias=alias, span=span.name, **about), "chosen": span is chosen}
            for span, text in texts.items()
        ],
    }
