"""What the lists of jobs and of items have in common: filters, pages, and what can be done to what is listed."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, ClassVar

from django import forms
from django.contrib import messages
from django.contrib.admin.models import CHANGE, DELETION
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect, QueryDict
from django.urls.resolvers import URLPattern
from django.utils.http import url_has_allowed_host_and_scheme
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from .. import figures, steering
from ..browsing import LOOK, Browser, Cursor, Filters, TookTooLong, read_cursor, told_cursor
from ..keys import MAX_PRIORITY, MIN_PRIORITY, has_control_characters
from .pages import HELD, Page, alias_of, databases

MOST_CHOSEN = 1000  # rows that one request names
SHOWN = 20  # of these, on the page that asks whether it is meant

# What an order has besides filters.
ORDERING = frozenset({"csrfmiddlewaretoken", "verb", "scope", "select", "confirmed", "back", "done", "priority"})

AGES: dict[str, tuple[Any, timedelta | None, timedelta | None]] = {
    "m5": (gettext_lazy("in the last 5 minutes"), timedelta(minutes=5), None),
    "h1": (gettext_lazy("in the last hour"), timedelta(hours=1), None),
    "d1": (gettext_lazy("in the last day"), timedelta(days=1), None),
    "-h1": (gettext_lazy("more than an hour ago"), None, timedelta(hours=1)),
    "-d1": (gettext_lazy("more than a day ago"), None, timedelta(days=1)),
    "-d7": (gettext_lazy("more than 7 days ago"), None, timedelta(days=7)),
}

STATES = {
    "ready": gettext_lazy("ready"),
    "scheduled": gettext_lazy("scheduled"),
    "leased": gettext_lazy("leased"),
    "spent": gettext_lazy("lapsed on its last attempt"),
    "completed": gettext_lazy("completed"),
    "dead": gettext_lazy("dead"),
    "cancelled": gettext_lazy("cancelled"),
    "stalled": gettext_lazy("stalled"),
    "arriving": gettext_lazy("arriving"),
}


@dataclass(frozen=True, slots=True)
class Verb:
    """Something to do to what is listed. `permission` is Django's; `asks` names the field it wants filled in.

    `states` are those in which it does something; none are all.
    """

    name: str
    label: Any
    question: Any
    permission: str = "change"
    dangerous: bool = False
    asks: str | None = None
    ends: bool = False  # whether what it is done to may be gone afterwards
    states: frozenset[str] = frozenset()

    @property
    def flag(self) -> int:
        """How Django's log marks it."""
        return DELETION if self.permission == "delete" else CHANGE


@dataclass(frozen=True, slots=True)
class Order:
    """What a user wants done. It is given when it was confirmed, and what it asks for was filled in."""

    verb: Verb
    browser: Browser[Any]
    asks: forms.Form | None
    confirmed: bool

    @property
    def is_given(self) -> bool:
        """Whether it is to be done now."""
        return self.confirmed and (self.asks is None or self.asks.is_valid())

    @property
    def options(self) -> dict[str, Any]:
        """What was filled in."""
        return {} if self.asks is None else dict(self.asks.cleaned_data)

    @property
    def told(self) -> str:
        """In words, for the log."""
        told = ", ".join(f"{name}={value}" for name, value in self.options.items())
        return f"{self.verb.label} ({told})" if told else str(self.verb.label)


class FilterForm(forms.Form):
    """What both lists can be asked for. Where some of it is not understood, that is said, and nothing is listed.

    `tabs` are the states to ask for; `beside` names what else is in the data and asks for no rows; `after` is where
    the list goes on from, at a row whose number or key is an `ident`.
    """

    required_css_class = "required"

    queue = forms.ChoiceField(label=gettext_lazy("Queue"), required=False)
    age = forms.ChoiceField(label=gettext_lazy("Enqueued"), required=False)

    def __init__(
        self,
        data: QueryDict | None,
        *,
        queues: Iterable[str],
        tabs: Sequence[str],
        beside: frozenset[str],
        ident: type[Any],
    ) -> None:
        super().__init__(data, auto_id="wq-%s", label_suffix="")
        self.asked, self.tabs, self.beside = data or QueryDict(), tabs, beside
        self.after = read_cursor(self.asked.get("after", ""), ident)
        names = list(queues)
        given = self.asked.get("queue", "")
        if given and given not in names and not has_control_characters(given):
            names.append(given)
        self.fields["queue"].choices = [("", _("all")), *((name, figures.visible(name)) for name in names)]  # type: ignore[attr-defined]
        self.fields["age"].choices = [("", _("at any time")), *((name, text) for name, (text, *_rest) in AGES.items())]  # type: ignore[attr-defined]

    def clean(self) -> None:
        """Refuse what no field knows: passed over, it would ask for all there is."""
        if self.asked.get("state") and self.state is None:
            self.add_error(None, _("There is no state %(name)s.") % {"name": self.asked["state"]})
        if self.asked.get("after") and self.after is None:
            self.add_error(None, _("There is no page %(name)s.") % {"name": self.asked["after"]})
        for name, values in self.asked.lists():
            if name in self.fields or name in ("state", "after"):
                if len(set(values)) > 1:
                    self.add_error(None, _("%(name)s is asked for more than once.") % {"name": name})
            elif name not in self.beside and not name.startswith("_") and any(values):  # _popup and such are Django's
                self.add_error(None, _("There is no filter %(name)s.") % {"name": name})

    @property
    def state(self) -> str | None:
        """The state that is asked for."""
        state = self.asked.get("state")
        return state if state in self.tabs else None

    @property
    def is_understood(self) -> bool:
        """Whether all that is asked for is; it is where nothing is."""
        return not self.is_bound or self.is_valid()

    def filters(self) -> Filters:
        """What is asked for, once it is understood."""
        given = self.cleaned_data if self.is_bound else {}
        _text, within, beyond = AGES.get(given.get("age", ""), ("", None, None))
        return Filters(
            queue=given.get("queue") or None,
            state=self.state,
            kind=given.get("kind") or None,
            payload=given.get("payload") or None,
            prefix=given.get("key") or None,
            within=within,
            beyond=beyond,
        )


class PriorityForm(forms.Form):
    """The priority to give."""

    priority = forms.IntegerField(
        label=gettext_lazy("New priority"),
        help_text=gettext_lazy("The higher goes first; 0 is usual."),
        min_value=MIN_PRIORITY,
        max_value=MAX_PRIORITY,
        initial=0,
    )


class ListPage(Page):
    """A list with filters, and actions that are asked about before they are done."""

    listed: ClassVar[str]  # the name of the list's URL, without `_changelist`
    browser: ClassVar[type[Browser[Any]]]
    filter_form: ClassVar[type[FilterForm]]
    verbs: ClassVar[Mapping[str, Verb]]
    deeds: ClassVar[Mapping[str, steering.Deed]]
    tabs: ClassVar[tuple[str, ...]]
    template: ClassVar[str]
    ident: ClassVar[type[Any]]
    beside: ClassVar[frozenset[str]] = frozenset({"database", "after"})  # what an address has besides filters

    def get_urls(self) -> list[URLPattern]:
        """The list, and what is done to it."""
        return [self.page("act/", self.act, f"{self.listed}_act"), *super().get_urls()]

    # Looking

    def changelist_view(self, request: HttpRequest, extra_context: Any = None) -> HttpResponse:
        """One page of the list."""
        self.demand(request, "view")
        alias = alias_of(request)
        browser = self.browser(alias)
        form = self._form(request.GET, browser)
        context: dict[str, Any] = {"too_long": False, "rows": [], "page": None, "count": ""}
        try:
            if form.is_understood:
                context |= self._looked(browser, form.filters(), form.after, request)
        except TookTooLong:
            context["too_long"] = True
        return self.shown(
            request,
            self.template,
            self.plural,
            crumbs=[(self.plural, None)],
            alias=alias,
            databases=databases(alias, lambda other: self.url(f"{self.listed}_changelist", alias=other)),
            form=form,
            state=form.state or "",
            tabs=self._tabs(request),
            verbs=self._verbs(request),
            act_url=self.url(f"{self.listed}_act"),
            first_url=self._address(request, after=None),
            after=form.after,
            asked=self._asked(request),
            priority_form=PriorityForm(auto_id="wq-%s"),
            look=figures.number(LOOK),
            **context,
        )

    def _form(self, data: QueryDict, browser: Browser[Any], *, beside: frozenset[str] = frozenset()) -> FilterForm:
        names = [queue.name for queue in browser.queues]
        beside |= self.beside
        return self.filter_form(data or None, queues=names, tabs=self.tabs, beside=beside, ident=self.ident)

    def _looked(
        self, browser: Browser[Any], filters: Filters, after: Cursor | None, request: HttpRequest
    ) -> dict[str, Any]:
        page = browser.page(filters, after)
        count = told_count(*browser.count(filters))
        return {
            "page": page,
            "rows": [self.row(request, browser.alias, row) for row in page.rows],
            "count": count,
            "next_url": self._address(request, after=told_cursor(page.next)) if page.next else None,
        }

    def row(self, request: HttpRequest, alias: str, row: Any) -> dict[str, Any]:
        """A row as the template wants it."""
        raise NotImplementedError

    def _tabs(self, request: HttpRequest) -> list[dict[str, Any]]:
        state = request.GET.get("state", "")
        tabs = [{"text": _("all"), "url": self._address(request, after=None, state=None), "chosen": not state}]
        return tabs + [
            {"text": STATES[name], "url": self._address(request, after=None, state=name), "chosen": state == name}
            for name in self.tabs
        ]

    def _address(self, request: HttpRequest, **changes: str | None) -> str:
        query = request.GET.copy()
        for name, value in changes.items():
            query.pop(name, None)
            if value:
                query[name] = value
        return f"?{query.urlencode()}" if query else request.path

    def _asked(self, request: HttpRequest) -> list[tuple[str, str]]:
        """The filters, as hidden fields."""
        source = request.POST if request.method == "POST" else request.GET
        names = ("database", "state", *self.filter_form.base_fields)
        return [(name, value) for name in names if (value := source.get(name))]

    # Doing

    def _verbs(self, request: HttpRequest) -> list[Verb]:
        return [verb for verb in self.verbs.values() if self.allows(request, verb.permission)]

    def _verbs_in(self, request: HttpRequest, state: str, *, held: bool) -> list[Verb]:
        """What can be done to a row as it stands. `held`: under a lease, also one that lapsed and nobody took over."""
        standing = "leased" if held else state
        return [verb for verb in self._verbs(request) if not verb.states or standing in verb.states]

    def act(self, request: HttpRequest) -> HttpResponse:
        """Ask whether it is meant, then do it."""
        if request.method != "POST":
            return HttpResponseRedirect(self.url(f"{self.listed}_changelist"))
        verb = self.verbs.get(request.POST.get("verb", ""))
        if verb is None:
            self.say(request, _("Choose what to do."), messages.WARNING)
            return self._back(request)
        self.demand(request, verb.permission)
        alias = alias_of(request)
        browser = self.browser(alias)
        given = PriorityForm(request.POST if "confirmed" in request.POST else None, auto_id="wq-%s")
        order = Order(verb, browser, given if verb.asks else None, confirmed="confirmed" in request.POST)
        return self._act_on_all(request, order) if request.POST.get("scope") == "all" else self._act_on(request, order)

    def _act_on(self, request: HttpRequest, order: Order) -> HttpResponse:
        chosen = self._chosen(request)
        if not chosen:
            self.say(request, _("Nothing was ticked, so nothing was done."), messages.WARNING)
            return self._back(request)
        if not order.is_given:
            return self._confirm(request, order, chosen=chosen, count=figures.number(len(chosen)))
        queues = {queue.name: queue for queue in order.browser.queues}
        done, of = _number(request, "done"), _number(request, "of") or len(chosen)
        left, held = chosen, []
        for (queue, ident), changed in steering.to_each(queues, self.deeds[order.verb.name], chosen, **order.options):
            left = left[1:]
            if changed is None:
                held.append((queue, ident))
            if changed:
                named = (self.log_ident(queue, ident), self.log_text(queue, ident))
                self.log(request, self.about, [named], order.told, flag=order.verb.flag)
                done += 1
        if held:
            self.say(request, str(HELD), messages.WARNING)
        if left or held:
            return self._confirm(
                request, order, chosen=[*left, *held], begun=True, done=done, of=of, options=order.options
            )
        self._say_done(request, order.verb, done, of)
        return self._back(request, gone=order.verb.ends)

    def _act_on_all(self, request: HttpRequest, order: Order) -> HttpResponse:
        form = self._form(request.POST, order.browser, beside=ORDERING)
        if not form.is_valid():
            self.say(request, _("The filter is not understood, so nothing was done."), messages.ERROR)
            return self._back(request)
        filters = form.filters()
        try:
            if not order.is_given:
                return self._confirm(request, order, count=told_count(*order.browser.count(filters)))
            progress, held = self._done_to_all(request, order, filters)
        except TookTooLong:
            self.say(request, _("The database took too long. Narrow the filter, or choose a queue."), messages.ERROR)
            return self._back(request)
        done = progress.done + _number(request, "done")
        if held:
            self.say(request, str(HELD), messages.WARNING)
        if held or progress.next is not None:
            goes_on = told_cursor(progress.next)
            return self._confirm(request, order, begun=True, goes_on=goes_on, done=done, options=order.options)
        self._say_done(request, order.verb, done, done)
        return self._back(request)

    def _done_to_all(self, request: HttpRequest, order: Order, filters: Filters) -> tuple[steering.Progress, bool]:
        """Do it to all that match; how far that went, and whether a row that is held ended it.

        It is noted in the log also where it fails half-way.
        """
        held = False
        progress = steering.Progress(next=read_cursor(request.POST.get("after", ""), self.ident))
        try:
            steering.to_all(order.browser, filters, self.deeds[order.verb.name], progress, **order.options)
        except steering.Held:
            held = True
        except TookTooLong:
            if not progress.done:
                raise
        finally:
            if progress.done:
                text = "; ".join(f"{name}={value}" for name, value in self._asked(request)) or _("everything")
                message = f"{order.told}: {text}: {progress.done}"
                self.log(request, self.about, [("", f"{self.plural}: {text}")], message, flag=order.verb.flag)
        return progress, held

    def _confirm(self, request: HttpRequest, order: Order, **context: Any) -> HttpResponse:
        verb = order.verb
        chosen = context.pop("chosen", [])
        return self.shown(
            request,
            "confirm",
            str(verb.label),
            crumbs=[(self.plural, self.url(f"{self.listed}_changelist")), (str(verb.label), None)],
            verb=verb,
            asks=order.asks,
            asked=self._asked(request),
            scope=request.POST.get("scope", "chosen"),
            selected=[selection(queue, ident) for queue, ident in chosen],
            names=[self.log_text(queue, ident) for queue, ident in chosen[:SHOWN]],
            more=max(len(chosen) - SHOWN, 0),
            act_url=self.url(f"{self.listed}_act"),
            back=self._way_back(request),
            **context,
        )

    def _chosen(self, request: HttpRequest) -> list[tuple[str, Any]]:
        chosen = []
        for text in request.POST.getlist("select")[:MOST_CHOSEN]:
            try:
                queue, ident = json.loads(text)
            except (ValueError, TypeError):
                continue
            fits = type(ident) is self.ident and isinstance(queue, str) and "\x00" not in f"{queue}{ident}"
            if fits and not (isinstance(ident, int) and abs(ident) >= 2**63):
                chosen.append((queue, ident))
        return list(dict.fromkeys(chosen))

    def _say_done(self, request: HttpRequest, verb: Verb, done: int, of: int) -> None:
        text = ngettext("%(verb)s: %(count)s was changed.", "%(verb)s: %(count)s were changed.", done) % {
            "verb": verb.label,
            "count": figures.number(done),
        }
        if done < of:
            text = _("%(text)s The others were not in a state for it.") % {"text": text}
        self.say(request, text, messages.SUCCESS if done else messages.WARNING)

    def _way_back(self, request: HttpRequest) -> str:
        back = request.POST.get("back", "")
        if url_has_allowed_host_and_scheme(back, allowed_hosts=None):
            return back
        return self.url(f"{self.listed}_changelist", **dict(self._asked(request)))

    def _back(self, request: HttpRequest, *, gone: bool = False) -> HttpResponse:
        back, changelist = self._way_back(request), self.url(f"{self.listed}_changelist")
        return HttpResponseRedirect(changelist if gone and back.partition("?")[0] != changelist else back)

    def log_ident(self, queue: str, ident: Any) -> str:
        """How the log's link finds it."""
        raise NotImplementedError

    def log_text(self, queue: str, ident: Any) -> str:
        """How the log calls it."""
        return f"{figures.visible(queue)}: {figures.visible(str(ident))}"


def told_count(found: int, more: bool) -> str:  # noqa: FBT001
    """A bounded count: "10,000+"."""
    return f"{figures.number(found)}+" if more else figures.number(found)


def _number(request: HttpRequest, name: str) -> int:
    """A number that was sent along by the page before."""
    text = request.POST.get(name, "")
    return int(text) if text.isdecimal() and len(text) < 16 else 0


def selection(queue: str, ident: Any) -> str:
    """A row as a tick box names it."""
    return json.dumps([queue, ident])


def or_404(found: Any) -> Any:
    """What was found."""
    if found is None:
        raise Http404
    return found
