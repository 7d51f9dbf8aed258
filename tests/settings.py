"""The tests' settings: the test project on a throwaway server, and a second alias on the same server.

The address of the throwaway goes into the environment, so that the processes that a test starts, and pytest-xdist's,
use the same server. It is deleted when the process that got here first ends.
"""

import os
from copy import deepcopy

import psycopg
import pytest
from django.core.exceptions import ImproperlyConfigured

from testproject import postgres


def demand(url: str) -> None:
    """Refuse here, in a sentence, a server on which each test would fail by itself."""
    try:
        # Not to the database of the address: that one need not exist, the tests make their own.
        psycopg.connect(url, dbname="postgres", connect_timeout=10).close()
    except psycopg.Error as error:
        raise pytest.UsageError(f"The server of DATABASE_URL cannot be used: {error}") from None


try:
    if not os.environ.get("DATABASE_URL"):
        os.environ["DATABASE_URL"] = postgres.throwaway().start().url
    from testproject.settings import *  # noqa: F403
    from testproject.settings import DATABASES, MIDDLEWARE
except (ImproperlyConfigured, postgres.ServerError) as error:
    raise pytest.UsageError(str(error)) from None

demand(os.environ["DATABASE_URL"])

DATABASES["other"] = deepcopy(DATABASES["default"])
DATABASES["other"]["NAME"] = os.environ.get("WORKQUEUE_TEST_OTHER") or DATABASES["default"]["NAME"] + "_other"

MIDDLEWARE = [*MIDDLEWARE, "tests.admin.policy.StrictPolicy"]

DEBUG = False
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
