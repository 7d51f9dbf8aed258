"""The states of a job."""

from django.db.models import TextChoices
from django.utils.translation import gettext_lazy as _


class JobStatus(TextChoices):
    """Where a job stands. `PENDING` includes jobs whose time has not come and jobs between two attempts."""

    PENDING = "pending", _("pending")
    RUNNING = "running", _("running")
    COMPLETED = "completed", _("completed")
    DEAD = "dead", _("dead")
    CANCELLED = "cancelled", _("cancelled")
