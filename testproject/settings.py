"""The demo's settings, and what the tests' settings start from.

On the server of `DATABASE_URL` where that is set, else on an embedded PostgreSQL of our own.
"""

import os
from pathlib import Path
from typing import Any

import dj_database_url
import django
from django.core.exceptions import ImproperlyConfigured

from testproject import postgres

BASE_DIR = Path(__file__).resolve().parent


def database() -> dj_database_url.DBConfig:
    """The server of `DATABASE_URL`, or the embedded one."""
    url = os.environ.get("DATABASE_URL")
    if not url:
        return dj_database_url.parse(postgres.lasting().start().url)
    try:
        config = dj_database_url.parse(url)
    except ValueError as error:
        raise ImproperlyConfigured(f"DATABASE_URL cannot be read: {error}") from error
    if config["ENGINE"] != "django.db.backends.postgresql":
        wanted = "postgresql://user:password@host:port/name"
        raise ImproperlyConfigured(f"DATABASE_URL must name a PostgreSQL server: {wanted}")
    return config


DEBUG = True
SECRET_KEY = "the demo listens on this machine only, and keeps no secrets"  # noqa: S105
ALLOWED_HOSTS = ["localhost", "127.0.0.1", "[::1]"]

INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "django_workqueue",
    "testproject.tiles",
]

MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
]

ROOT_URLCONF = "testproject.urls"
WSGI_APPLICATION = "testproject.wsgi.application"
ASGI_APPLICATION = "testproject.asgi.application"

TEMPLATES: list[dict[str, Any]] = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ],
        },
    },
]

DATABASES = {"default": database()}

DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
LANGUAGE_CODE = "en-us"
TIME_ZONE = "UTC"
USE_I18N = True
USE_TZ = True
STATIC_URL = "static/"

MAIL_FOLDER = Path(os.environ.get("DEMO_MAIL_FOLDER") or BASE_DIR.parent / ".demo" / "mail")
if django.VERSION >= (6, 1):
    MAILERS = {
        "default": {
            "BACKEND": "django.core.mail.backends.filebased.EmailBackend",
            "OPTIONS": {"file_path": MAIL_FOLDER},
        }
    }
else:
    EMAIL_BACKEND = "django.core.mail.backends.filebased.EmailBackend"
    EMAIL_FILE_PATH = MAIL_FOLDER
