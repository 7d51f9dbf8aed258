"""What the admin pages have in common: their context, the database they are about, permissions, the log.

Knows no SQL and decides nothing about queues.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import timedelta
from functools import update_wrapper
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

import django
from django.contrib import admin, messages
from django.contrib.admin.models import CHANGE, LogEntry
from django.contrib.admin.options import IS_POPUP_VAR
from django.contrib.contenttypes.models import ContentType
from django.core.exceptions import PermissionDenied
from django.db import transaction
from django.db.models import Model
from django.http import Http404, HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.urls import path, reverse
from django.urls.resolvers import URLPattern
from django.utils.text import capfirst
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from .. import conf, engine

APP = "workqueue"
HELD = gettext_lazy("An open transaction holds one of the rows. Go on once it has ended.")
MAX_REPR = 200  # characters that a log entry keeps of what it is about

View = Callable[..., HttpResponse]

if TYPE_CHECKING:
    ModelAdmin = admin.ModelAdmin[Any]
else:
    ModelAdmin = admin.ModelAdmin


class Page(ModelAdmin):
    """A model admin that shows pages of ours. `about` is the model whose permissions count."""

    about: type[Model]

    # Permissions

    def allows(self, request: HttpRequest, verb: str, model: type[Model] | None = None) -> bool:
        """Whether the user may: "view" (which "change" includes), "change", "add" or "delete"."""
        options = (model or self.about)._meta
        verbs = ("view", "change") if verb == "view" else (verb,)
        user = request.user
        label = options.app_label
        return user.is_active and any(user.has_perm(f"{label}.{verb}_{options.model_name}") for verb in verbs)

    def demand(self, request: HttpRequest, verb: str, model: type[Model] | None = None) -> None:
        """Raise `PermissionDenied` unless the user may."""
        if not self.allows(request, verb, model):
            raise PermissionDenied

    def has_view_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Whether the pages are to be seen."""
        return self.allows(request, "view")

    def has_module_permission(self, request: HttpRequest) -> bool:
        """Whether the admin lists them."""
        return self.allows(request, "view")

    def has_add_permission(self, request: HttpRequest) -> bool:
        """Nothing is added through Django's own form."""
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Nothing is changed through Django's own form."""
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Nothing is deleted through Django's own form."""
        return False

    # Pages

    def page(self, route: str, view: View, name: str) -> URLPattern:
        """A URL of the admin site for a view of ours, which is told who may in and sees each state anew."""

        def wrapper(*args: Any, **kwargs: Any) -> HttpResponse:
            return self.admin_site.admin_view(view)(*args, **kwargs)

        update_wrapper(wrapper, view)
        return path(route, transaction.non_atomic_requests(wrapper), name=f"{APP}_{name}")

    def get_urls(self) -> list[URLPattern]:
        """The list; children add theirs."""
        return [self.page("", self.changelist_view, f"{self.opts.model_name}_changelist")]

    def shown(
        self,
        request: HttpRequest,
        template: str,
        title: str,
        *,
        crumbs: Iterable[tuple[str, str | None]] = (),
        status: int = 200,
        **context: Any,
    ) -> TemplateResponse:
        """A page in the admin's frame. `crumbs` are what comes after the application: texts with where they lead."""
        way: list[dict[str, Any]] = [
            {"text": _("Home"), "url": reverse("admin:index", current_app=self.admin_site.name)},
            {"text": self.opts.app_config.verbose_name, "url": self.url_of_app()},
            *({"text": text, "url": url} for text, url in crumbs),
        ]
        way[-1]["url"] = None
        request.current_app = self.admin_site.name
        return TemplateResponse(
            request,
            f"workqueue/admin/{template}.html",
            {
                **self.admin_site.each_context(request),
                "title": title,
                "crumbs": way,
                "opts": self.opts,
                "here": request.get_full_path(),
                "is_popup": IS_POPUP_VAR in request.GET,
                "tools_in_content": django.VERSION < (6, 1),  # where object-tools is a block within block content
                **context,
            },
            status=status,
        )

    def url_of_app(self) -> str:
        """Where the application's models are listed."""
        return reverse("admin:app_list", kwargs={"app_label": APP}, current_app=self.admin_site.name)

    def url(self, name: str, /, *args: Any, alias: str | None = None, **query: Any) -> str:
        """The address of a page of ours; `alias` is told where it is not the usual one."""
        return url(self.admin_site.name, name, *args, alias=alias, **query)

    def log(
        self,
        request: HttpRequest,
        model: type[Model],
        objects: Iterable[tuple[str, str]],
        message: str,
        *,
        flag: int = CHANGE,
    ) -> None:
        """Note in Django's log who did what, to objects of a model: their idents, and how they are called."""
        content_type = ContentType.objects.get_for_model(model, for_concrete_model=True)
        LogEntry.objects.bulk_create(
            LogEntry(
                user_id=request.user.pk or 0,
                content_type=content_type,
                object_id=ident,
                object_repr=text[:MAX_REPR],
                action_flag=flag,
                change_message=message,
            )
            for ident, text in objects
        )

    def say(self, request: HttpRequest, text: str, level: int = messages.SUCCESS) -> None:
        """Tell the user on the next page."""
        messages.add_message(request, level, text, fail_silently=True)

    @property
    def plural(self) -> str:
        """What the pages are about, as a title."""
        return capfirst(str(self.opts.verbose_name_plural))


def url(site: str, name: str, /, *args: Any, alias: str | None = None, **query: Any) -> str:
    """The address of a page of ours in an admin site."""
    given = {key: value for key, value in query.items() if value not in (None, "")}
    if alias is not None and alias != conf.database():
        given["database"] = alias
    address = reverse(f"admin:{APP}_{name}", args=args, current_app=site)
    return f"{address}?{urlencode(given)}" if given else address


def aliases() -> list[str]:
    """The database aliases that hold queues, as far as this process knows; the usual one first."""
    usual = conf.database()
    return [usual, *sorted({source.alias for source in engine.registered()} - {usual})]


def alias_of(request: HttpRequest) -> str:
    """The alias that a request is about. One that holds no queues is not found."""
    alias = request.POST.get("database") or request.GET.get("database") or conf.database()
    if alias not in aliases():
        raise Http404
    return alias


def databases(chosen: str, address: Callable[[str], str]) -> list[dict[str, Any]]:
    """What there is to choose from."""
    return [{"name": alias, "url": address(alias), "chosen": alias == chosen} for alias in aliases()]


REFRESH_EVERY = timedelta(seconds=5)
