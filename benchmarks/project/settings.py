"""The project's settings: the defaults, but for the database and what a setup under test says."""

from __future__ import annotations

from benchmarks.contestants.given import SETTINGS, django_database

DATABASES = {"default": django_database(**SETTINGS.get("database", {}))}
INSTALLED_APPS = ["django_workqueue", "benchmarks.project"]
SECRET_KEY = "not a secret"
USE_TZ = True
LOGGING_CONFIG = None
globals().update(SETTINGS.get("django", {}))
