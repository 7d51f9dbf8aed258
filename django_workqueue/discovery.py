"""Where handlers are found: a module of that name in each installed app, and whoever else brings queues."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from django.utils.module_loading import autodiscover_modules

from . import conf


def autodiscover(names: Sequence[str] = ()) -> None:
    """Import the `tasks` module (`WORKQUEUE_AUTODISCOVER`) of each installed app that has one; ask `others`.

    `names` are the queues that are wanted, if only some are. What goes wrong in importing one is raised as it is.
    """
    module = conf.autodiscover()
    if module:
        autodiscover_modules(module)
    bring(names)


def bring(names: Sequence[str] = ()) -> None:
    """Have `others` make the queues of these names (none: all that they know of), if they are theirs."""
    for each in others:
        each(names)


others: list[Callable[[Sequence[str]], None]] = []
