"""Where handlers are found: a module of that name in each installed app."""

from __future__ import annotations

from django.utils.module_loading import autodiscover_modules

from . import conf


def autodiscover() -> None:
    """Import the `tasks` module (`WORKQUEUE_AUTODISCOVER`) of each installed app that has one.

    What goes wrong in importing one is raised as it is.
    """
    module = conf.autodiscover()
    if module:
        autodiscover_modules(module)
