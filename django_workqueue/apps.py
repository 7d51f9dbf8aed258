"""The app. `ready()` wires, and does nothing else."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module

from django.apps import AppConfig
from django.conf import settings
from django.core import checks
from django.core.exceptions import ImproperlyConfigured
from django.utils.module_loading import import_string
from django.utils.translation import gettext_lazy as _

from . import discovery


class WorkqueueConfig(AppConfig):
    """Label `workqueue`: migrations, permissions and the admin stand under it."""

    name = "django_workqueue"
    label = "workqueue"
    verbose_name = _("Work queue")
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """Register the system checks, and where else queues come from."""
        from .checks import check_all  # noqa: PLC0415 - models are not ready at import

        checks.register(check_all, "workqueue")
        if getattr(settings, "TASKS", None):
            with suppress(ModuleNotFoundError):  # Django 5.2 has no tasks
                import_module("django.tasks.checks")  # registers, which Django itself leaves to nobody
        if bring_task_queues not in discovery.others:
            discovery.others.append(bring_task_queues)


def bring_task_queues(names: Sequence[str]) -> None:
    """Let the backends in `TASKS` that are ours bring their queues. Where there are none, tasks are not imported.

    Raises `ImproperlyConfigured` for one that is not there, or whose setting is wrong.
    """
    for alias, given in (getattr(settings, "TASKS", None) or {}).items():
        path = given.get("BACKEND", "")
        if path.startswith(f"{__package__}."):
            try:
                import_string(path)
            except ImportError as error:
                raise ImproperlyConfigured(f"TASKS[{alias!r}]: {error}.") from error
        elif not path.startswith(("django.tasks.", "django_tasks.")):
            with contextlib.suppress(ImportError):  # not ours to complain of: Django does when it is used
                import_string(path)
    backend = sys.modules.get(f"{__package__}.backend")
    if backend is not None:
        backend.bring(names)
