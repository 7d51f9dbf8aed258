"""How figures, JSON and our own assets get into the admin's templates."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import django
from django import template
from django.template.context import Context
from django.templatetags.static import static
from django.utils.html import format_html
from django.utils.safestring import SafeString

from .. import figures

register = template.Library()

register.filter("wq_number", figures.number)
register.filter("wq_count", figures.count)


@register.filter
def wq_age(duration: timedelta | None) -> str:
    """A duration to two units; a dash for none."""
    return figures.NOTHING if duration is None else figures.age(duration)


@register.filter
def wq_json(value: object) -> str:
    """JSON to be read, not yet escaped."""
    return json.dumps(value, indent=2, ensure_ascii=False, default=str)


@register.filter
def wq_shown(text: object) -> str:
    """Text of strangers' making with what cannot be seen made visible, so that no two keys look the same."""
    return figures.visible(str(text))


@register.filter
def wq_lines(text: object) -> str:
    """The same of text with lines."""
    return "\n".join(figures.visible(line.replace("\t", "    ")) for line in str(text).split("\n"))


@register.simple_tag(takes_context=True)
def wq_assets(context: Context) -> SafeString:
    """The style sheet and the script, with the nonce of a Content-Security-Policy that wants one."""
    nonce = context.get("csp_nonce")
    stamp = format_html(' nonce="{}"', nonce) if nonce else ""
    return format_html(
        '<link rel="stylesheet" href="{}"{}><script src="{}" defer{}></script>',
        static("workqueue/admin.css"),
        stamp,
        static("workqueue/admin.js"),
        stamp,
    )


@register.inclusion_tag("workqueue/admin/includes/breadcrumbs.html")
def wq_breadcrumbs(crumbs: list[Mapping[str, Any]]) -> dict[str, Any]:
    """The way here, as this Django's admin writes it: a list from 6.1 on."""
    return {"crumbs": crumbs, "as_list": django.VERSION >= (6, 1)}
