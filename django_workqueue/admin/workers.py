"""The workers' page."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.http import HttpRequest, HttpResponse
from django.utils import timezone

from .. import dashboard, history, plots
from ..models import WorkerRecord
from .pages import REFRESH_EVERY, Page, alias_of, databases


@admin.register(WorkerRecord)
class WorkerAdmin(Page):
    """Workers: which processes there are, and which have fallen silent."""

    about = WorkerRecord

    def changelist_view(self, request: HttpRequest, extra_context: Any = None) -> HttpResponse:
        """All that have a row."""
        self.demand(request, "view")
        alias = alias_of(request)
        everybody = history.workers(alias)
        return self.shown(
            request,
            "workers",
            self.plural,
            crumbs=[(self.plural, None)],
            now=plots.local(timezone.now()),
            refresh_every=int(REFRESH_EVERY.total_seconds()),
            databases=databases(alias, lambda other: self.url("workerrecord_changelist", alias=other)),
            workers=[worker for worker in everybody if worker.silence < dashboard.SILENT],
            silent=[worker for worker in everybody if worker.silence >= dashboard.SILENT],
        )
