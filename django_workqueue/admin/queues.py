"""The queues' pages."""

from __future__ import annotations

from django.contrib import admin
from django.http import HttpRequest, HttpResponse
from django.urls.resolvers import URLPattern

from ..models import QueueRecord
from .pages import Page


@admin.register(QueueRecord)
class QueueAdmin(Page):
    about = QueueRecord

    def get_urls(self) -> list[URLPattern]:
        return [self.page("queue/", self.detail, "queuerecord_detail"), *super().get_urls()]

    def detail(self, request: HttpRequest) -> HttpResponse:
        return HttpResponse("")
