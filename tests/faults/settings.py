"""The settings of the processes that a scenario starts: its own server, its own app with handlers."""

import os
from typing import Any

from testproject.settings import *  # noqa: F403
from testproject.settings import DATABASES

INSTALLED_APPS = ["django.contrib.auth", "django.contrib.contenttypes", "django_workqueue", "tests.faults.works"]
ROOT_URLCONF = "tests.faults.works.urls"
ALLOWED_HOSTS = ["*"]
DEBUG = False
MIDDLEWARE: list[str] = []
TEMPLATES: list[object] = []

default: dict[str, Any] = DATABASES["default"]  # type: ignore[assignment]
default.setdefault("OPTIONS", {})
if os.environ.get("FAULTS_POOL"):
    default["OPTIONS"]["pool"] = {"min_size": 1, "max_size": int(os.environ["FAULTS_POOL"])}
if os.environ.get("FAULTS_PGBOUNCER"):
    default["DISABLE_SERVER_SIDE_CURSORS"] = True
if os.environ.get("FAULTS_ATOMIC_REQUESTS"):
    default["ATOMIC_REQUESTS"] = True
if direct := os.environ.get("FAULTS_LISTEN_URL"):
    import dj_database_url

    DATABASES["direct"] = dj_database_url.parse(direct)
    WORKQUEUE_LISTEN_DATABASE = "direct"

if second := os.environ.get("FAULTS_SECOND_URL"):
    import dj_database_url

    DATABASES["second"] = dj_database_url.parse(second)

if os.environ.get("FAULTS_TASKS"):
    TASKS = {"default": {"BACKEND": "django_workqueue.backend.WorkqueueBackend", "QUEUES": ["faults-tasks"]}}

LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {"plain": {"format": "%(asctime)s %(process)d %(threadName)s %(levelname)s %(name)s %(message)s"}},
    "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": "plain"}},
    "root": {"handlers": ["stderr"], "level": "INFO"},
}
