"""Django's own tasks (`django.tasks`, or the backport `django-tasks`) on job queues.

A task is a job whose kind is the task's module path; the ordinary worker runs it. Nothing else in the package
imports this, so that a Django without tasks can do without.
"""

from .workqueue import WorkqueueBackend, bring

__all__ = ["WorkqueueBackend", "bring"]
