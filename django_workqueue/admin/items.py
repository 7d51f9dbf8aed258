"""The items' pages. (Their own model has a composite primary key, which the admin does not register.)"""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

from django import forms
from django.contrib import admin, messages
from django.contrib.admin.models import ADDITION
from django.contrib.admin.utils import unquote
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls.resolvers import URLPattern
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from .. import figures, inventory, steering, unmigrated
from ..browsing import Filters, ItemBrowser, ItemRow
from ..exceptions import KeyDecodeError, KeyHasControlCharacter, KeyTooLong, WorkqueueError
from ..keys import MAX_KEY_BYTES, MAX_PRIORITY, MIN_PRIORITY
from ..models import InboxEntry, Items, WorkItem
from .lists import STATES, FilterForm, ListPage, PriorityForm, Verb, or_404, selection
from .pages import alias_of

MOST_DELAY = 10 * 365 * 24 * 3600  # seconds


class ItemFilterForm(FilterForm):
    """What items can be asked for."""

    key = forms.CharField(label=gettext_lazy("Key begins with"), required=False, strip=False, max_length=512)


class EnqueueForm(forms.Form):
    """A key to enqueue by hand."""

    queue = forms.ChoiceField(label=gettext_lazy("Queue"))
    key = forms.CharField(
        label=gettext_lazy("Key"),
        strip=False,
        max_length=512,
        help_text=gettext_lazy("As the table holds it: plain text, or the JSON of the fields in order."),
    )
    priority = forms.IntegerField(
        label=gettext_lazy("Priority"), initial=0, min_value=MIN_PRIORITY, max_value=MAX_PRIORITY
    )
    delay = forms.IntegerField(label=gettext_lazy("Delay in seconds"), initial=0, min_value=0, max_value=MOST_DELAY)

    def __init__(self, data: Any, *, queues: list[str], initial: dict[str, Any]) -> None:
        super().__init__(data, initial=initial, auto_id="wq-%s", label_suffix="")
        self.fields["queue"].choices = [(name, figures.visible(name)) for name in queues]  # type: ignore[attr-defined]


@admin.register(Items)
class ItemAdmin(ListPage):
    """Items: which keys wait, are leased, stalled or completed."""

    about = WorkItem
    listed = "items"
    browser = ItemBrowser
    filter_form = ItemFilterForm
    deeds = steering.ITEM_DEEDS
    tabs = (*ItemBrowser.states, "arriving")
    template = "items"
    ident = str
    beside = ListPage.beside | {"from"}
    verbs = {
        verb.name: verb
        for verb in (
            Verb(
                "release",
                gettext_lazy("Release now"),
                gettext_lazy("They are due at once: those leased are given back, those scheduled wait no longer."),
                states=frozenset({"leased", "scheduled"}),
            ),
            Verb(
                "complete",
                gettext_lazy("Complete"),
                gettext_lazy("Those leased are finished, whoever holds them; what was asked for since runs once more."),
                ends=True,
                states=frozenset({"leased"}),
            ),
            Verb(
                "revive",
                gettext_lazy("Revive"),
                gettext_lazy("Those stalled start afresh."),
                states=frozenset({"stalled"}),
            ),
            Verb(
                "priority",
                gettext_lazy("Change priority"),
                gettext_lazy("Items that wait get another priority."),
                asks="priority",
                states=frozenset({"ready", "scheduled", "spent"}),
            ),
            Verb(
                "remove",
                gettext_lazy("Remove"),
                gettext_lazy("They are gone from the queue. A run that is under way is not stopped."),
                permission="delete",
                dangerous=True,
                ends=True,
            ),
        )
    }

    def get_urls(self) -> list[URLPattern]:
        """The list, the detail, and the form for a key."""
        return [
            self.page("item/", self.detail, "items_detail"),
            self.page("enqueue/", self.enqueue, "items_enqueue"),
            self.page("<path:ident>/change/", self.by_ident, "workitem_change"),  # where Django's log leads
            self.page("workitem/", self.changelist_view, "workitem_changelist"),
            *super().get_urls(),
        ]

    def _looked(self, browser: Any, filters: Filters, after: Any, request: HttpRequest) -> dict[str, Any]:
        may_add = self.allows(request, "add")
        add = self.url("items_enqueue", alias=browser.alias, queue=filters.queue or "") if may_add else None
        if filters.state == "arriving":
            start = request.GET.get("from", "")
            arriving = browser.arriving(filters, int(start) if start.isdecimal() and len(start) < 19 else 0)
            more = self._address(request, **{"from": str(arriving[-1].id)}) if len(arriving) >= 100 else None
            return {"arriving": arriving, "next_url": more, "enqueue_url": add}
        found = super()._looked(browser, filters, after, request)
        waiting = browser.arriving(filters, limit=1) if filters.state in (None, "ready", "scheduled") else []
        there = self._address(request, after=None, state="arriving") if waiting else None
        return {**found, "arriving_url": there, "enqueue_url": add}

    def row(self, request: HttpRequest, alias: str, row: ItemRow) -> dict[str, Any]:
        """An item's row."""
        return {
            "item": row,
            "state": STATES[row.state],
            "select": selection(row.queue, row.ident),
            "url": self.url("items_detail", alias=alias, queue=row.queue, key=row.ident),
        }

    def act(self, request: HttpRequest) -> HttpResponse:
        """As for all lists; but what is still arriving is no item yet."""
        if request.POST.get("state") == "arriving" and request.POST.get("scope") == "all":
            raise Http404
        return super().act(request)

    def detail(self, request: HttpRequest) -> HttpResponse:
        """All there is to know of a key."""
        self.demand(request, "view")
        alias = alias_of(request)
        queue, key = request.GET.get("queue", ""), request.GET.get("key", "")
        if "\x00" in queue + key:
            raise Http404
        with unmigrated.hinting(alias):
            item: WorkItem | None = WorkItem.objects.using(alias).filter(queue=queue, key=key).first()
            arriving = list(InboxEntry.objects.using(alias).filter(queue=queue, key=key).order_by("id")[:20])
        or_404(item or arriving or None)
        held = item is not None and bool(item.lease_token)
        state = (ItemBrowser(alias).state_of(queue, key) if item else None) or "arriving"
        return self.shown(
            request,
            "item",
            _("Item"),
            crumbs=[(self.plural, self.url("items_changelist", alias=alias)), (figures.visible(key), None)],
            item=item,
            queue=queue,
            key=key,
            alias=alias,
            leased=held,
            state=state,
            status_text=STATES[state],
            arriving=arriving,
            verbs=self._verbs_in(request, state, held=held),
            priority_form=PriorityForm(auto_id="wq-%s"),
            select=selection(queue, key),
            act_url=self.url("items_act"),
            queue_url=self.url("queuerecord_detail", alias=alias, name=queue),
        )

    def by_ident(self, request: HttpRequest, ident: str) -> HttpResponse:
        """The page of an item as Django's log names it."""
        self.demand(request, "view")
        try:
            queue, key = json.loads(unquote(ident))
        except (ValueError, TypeError):
            raise Http404 from None
        return HttpResponseRedirect(self.url("items_detail", queue=queue, key=key))

    def enqueue(self, request: HttpRequest) -> HttpResponse:
        """Enqueue a key by hand."""
        self.demand(request, "add")
        alias = alias_of(request)
        queues = {queue.name: queue for queue in inventory.queues(using=alias) if queue.face == "items"}
        form = EnqueueForm(request.POST or None, queues=list(queues), initial={"queue": request.GET.get("queue", "")})
        if request.method == "POST" and form.is_valid():
            given = form.cleaned_data
            delay = timedelta(seconds=given["delay"])
            try:
                queue = given["queue"]
                key = steering.enqueue(queues[queue], given["key"], priority=given["priority"], delay=delay)
            except WorkqueueError as error:
                form.add_error("key", _refusal(error))
            else:
                named = [(self.log_ident(queue, key), self.log_text(queue, key))]
                self.log(request, WorkItem, named, _("Enqueued by hand"), flag=ADDITION)
                self.say(request, _("The key is enqueued."), messages.SUCCESS)
                return HttpResponseRedirect(self.url("items_detail", alias=alias, queue=queue, key=key))
        return self.shown(
            request,
            "enqueue",
            _("Enqueue a key"),
            crumbs=[(self.plural, self.url("items_changelist", alias=alias)), (_("Enqueue a key"), None)],
            form=form,
            alias=alias,
        )

    def log_ident(self, queue: str, ident: Any) -> str:
        """Queue and key."""
        return json.dumps([queue, ident])


def _refusal(error: WorkqueueError) -> str:
    """Why a key is not taken, in the reader's language."""
    if isinstance(error, KeyHasControlCharacter):
        return _("A key holds neither NUL nor line breaks nor lone surrogates.")
    if isinstance(error, KeyTooLong):
        return _("A key is no longer than %(bytes)s bytes.") % {"bytes": MAX_KEY_BYTES}
    if isinstance(error, KeyDecodeError):
        return _("The code of this queue does not understand the key: it does not decode (%(error)s).") % {
            "error": error.__cause__ or error
        }
    return str(error)
