"""Where handlers are found: a module of that name in each installed app, and whoever else brings queues."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

from django.apps import apps
from django.utils.module_loading import autodiscover_modules

from . import conf


def autodiscover(names: Sequence[str] = ()) -> None:
    """Import the `tasks` module (`WORKQUEUE_AUTODISCOVER`) of each installed app that has one; ask `others`.

    `names` are the queues that are wanted, if only some are. What goes wrong in importing one is raised as it is.
    """
    import_modules()
    bring(names)


def import_modules() -> None:
    """Import the module of each installed app that has one. What goes wrong is raised as it is."""
    module = conf.autodiscover()
    if module:
        autodiscover_modules(module)


def looked_in() -> list[str]:
    """The modules in which handlers were looked for: those that are imported of each installed app's."""
    module = conf.autodiscover()
    named = [f"{app.name}.{module}" for app in apps.get_app_configs()] if module else []
    return [name for name in named if name in sys.modules]


def bring(names: Sequence[str] = ()) -> None:
    """Have `others` make the queues of these names (none: all that they know of), if they are theirs."""
    for each in others:
        each(names)


others: list[Callable[[Sequence[str]], None]] = []
