"""The app. `ready()` wires, and does nothing else."""

from django.apps import AppConfig
from django.core import checks
from django.utils.translation import gettext_lazy as _


class WorkqueueConfig(AppConfig):
    """Label `workqueue`: migrations, permissions and the admin stand under it."""

    name = "django_workqueue"
    label = "workqueue"
    verbose_name = _("Work queue")
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """Register the system checks."""
        from .checks import check_all  # noqa: PLC0415 - models are not ready at import

        checks.register(check_all, "workqueue")
