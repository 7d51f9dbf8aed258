"""The jobs' pages."""

from __future__ import annotations

import json
from typing import Any

from django import forms
from django.contrib import admin
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls.resolvers import URLPattern
from django.utils.dateparse import parse_datetime
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from .. import payloads, steering, unmigrated
from ..browsing import JobBrowser, JobRow
from ..models import WorkJob
from .lists import STATES, FilterForm, ListPage, PriorityForm, Verb, or_404, selection
from .pages import alias_of


class JSONText(forms.CharField):
    """JSON in one line, which may be missing: its text, as the database takes it."""

    def to_python(self, value: Any) -> str | None:
        """The text, in which null is something and an empty one is nothing."""
        text = super().to_python(value)
        if not text:
            return text
        try:
            return payloads.dumps(json.loads(text))
        except (ValueError, RecursionError) as error:  # too deep, too long a number, or nothing for jsonb
            raise forms.ValidationError(forms.JSONField.default_error_messages["invalid"]) from error


class JobFilterForm(FilterForm):
    """What jobs can be asked for."""

    kind = forms.CharField(label=gettext_lazy("Kind"), required=False, max_length=512)
    payload = JSONText(
        label=gettext_lazy("Payload contains (JSON)"),
        required=False,
        widget=forms.TextInput(attrs={"placeholder": '{"order": 42}'}),
    )
    id = forms.IntegerField(
        label=gettext_lazy("Job number"), required=False, widget=forms.TextInput(attrs={"inputmode": "numeric"})
    )

    def clean_id(self) -> None:
        """No list is asked for by number: one that there is leads to its job."""
        number = self.cleaned_data["id"]
        if number is not None:
            raise forms.ValidationError(_("There is no job %(number)s.") % {"number": number})


@admin.register(WorkJob)
class JobAdmin(ListPage):
    """Jobs: what waits, runs, ended and failed, with their payloads and errors."""

    about = WorkJob
    listed = "workjob"
    browser = JobBrowser
    filter_form = JobFilterForm
    deeds = steering.JOB_DEEDS
    tabs = JobBrowser.states
    template = "jobs"
    ident = int
    verbs = {
        verb.name: verb
        for verb in (
            Verb(
                "retry",
                gettext_lazy("Retry"),
                gettext_lazy("They start afresh, with all attempts before them."),
                states=frozenset({"dead", "cancelled"}),
            ),
            Verb(
                "hurry",
                gettext_lazy("Run now"),
                gettext_lazy("Jobs that wait for their time are due at once."),
                states=frozenset({"scheduled"}),
            ),
            Verb(
                "priority",
                gettext_lazy("Change priority"),
                gettext_lazy("Jobs that wait get another priority."),
                asks="priority",
                states=frozenset({"ready", "scheduled", "spent"}),
            ),
            Verb(
                "cancel",
                gettext_lazy("Cancel"),
                gettext_lazy(
                    "Those that wait will not run. Those that run are told to stop; their outcome is dropped."
                ),
                states=frozenset({"ready", "scheduled", "leased", "spent"}),
            ),
            Verb(
                "delete",
                gettext_lazy("Delete"),
                gettext_lazy("They are gone, with their results and errors. This cannot be undone."),
                permission="delete",
                dangerous=True,
                ends=True,
            ),
        )
    }

    def get_urls(self) -> list[URLPattern]:
        """The list and the detail."""
        return [*super().get_urls(), self.page("<int:number>/change/", self.detail, "workjob_change")]

    def changelist_view(self, request: HttpRequest, extra_context: Any = None) -> HttpResponse:
        """The list; a number leads to its job."""
        try:
            number = JobFilterForm.base_fields["id"].clean(request.GET.get("id"))
        except forms.ValidationError:
            number = None
        if number is not None and self.allows(request, "view"):
            alias = alias_of(request)
            if self._job(alias, number) is not None:
                return HttpResponseRedirect(self.url("workjob_change", number, alias=alias))
        return super().changelist_view(request, extra_context)

    def row(self, request: HttpRequest, alias: str, row: JobRow) -> dict[str, Any]:
        """A job's row."""
        return {
            "job": row,
            "state": STATES[row.state],
            "select": selection(row.queue, row.ident),
            "url": self.url("workjob_change", row.ident, alias=alias),
        }

    def detail(self, request: HttpRequest, number: int) -> HttpResponse:
        """All there is to know of a job."""
        self.demand(request, "view")
        alias = alias_of(request)
        job: WorkJob = or_404(self._job(alias, number))
        state = JobBrowser(alias).state_of(job.queue, job.id) or str(job.status)
        return self.shown(
            request,
            "job",
            _("Job %(number)d") % {"number": job.id},
            crumbs=[(self.plural, self.url("workjob_changelist", alias=alias)), (str(job.id), None)],
            job=job,
            alias=alias,
            state=state,
            status_text=STATES.get(state, state),
            task=job.metadata.get("task") if isinstance(job.metadata, dict) else None,
            timeline=timeline(job),
            errors=list(reversed(job.errors)) if isinstance(job.errors, list) else [],
            verbs=self._verbs_in(request, state, held=bool(job.lease_token)),
            priority_form=PriorityForm(auto_id="wq-%s"),
            select=selection(job.queue, job.id),
            act_url=self.url("workjob_act"),
            queue_url=self.url("queuerecord_detail", alias=alias, name=job.queue),
            like_url=self.url("workjob_changelist", alias=alias, queue=job.queue, kind=job.kind),
        )

    def log_ident(self, queue: str, ident: Any) -> str:
        """Its number."""
        return str(ident)

    def _job(self, alias: str, number: int) -> WorkJob | None:
        if abs(number) >= 2**63:
            return None
        with unmigrated.hinting(alias):
            found: WorkJob | None = WorkJob.objects.using(alias).filter(id=number).first()
        return found


def timeline(job: WorkJob) -> list[dict[str, Any]]:
    """What happened to a job, in order: moments with their words."""
    moments: list[dict[str, Any]] = [{"at": job.enqueued_at, "text": _("enqueued")}]
    for error in job.errors if isinstance(job.errors, list) else []:
        if not isinstance(error, dict):
            continue
        started, failed = (_moment(error.get(name)) for name in ("started", "at"))
        attempt = error.get("attempt")
        if started:
            moments.append({"at": started, "text": _("attempt %(attempt)s started") % {"attempt": attempt}})
        if failed:
            text = _("attempt %(attempt)s failed: %(type)s") % {
                "attempt": attempt,
                "type": str(error.get("type", "")).rpartition(".")[2],
            }
            moments.append({"at": failed, "text": text, "bad": True})
    if job.started_at and not any(moment["at"] == job.started_at for moment in moments):
        moments.append({"at": job.started_at, "text": _("attempt %(attempt)s started") % {"attempt": job.attempts}})
    if job.finished_at:
        ended = str(STATES.get(job.outcome or "", job.outcome))
        moments.append({"at": job.finished_at, "text": ended, "bad": job.outcome == "dead"})
    elif not job.lease_token:
        moments.append({"at": job.available_at, "text": _("due")})
    return sorted(moments, key=lambda moment: moment["at"])


def _moment(text: Any) -> Any:
    try:
        return parse_datetime(text) if isinstance(text, str) else None
    except ValueError:
        return None


__all__ = ["JobAdmin", "timeline"]
