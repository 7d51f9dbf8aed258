"""The tests' settings: the test project on a throwaway server, and a second alias on the same server.

The address of the throwaway goes into the environment, so that the processes that a test starts, and pytest-xdist's,
use the same server. It is deleted when the process that got here first ends.
"""

import os
from copy import deepcopy

from testproject import postgres

if not os.environ.get("DATABASE_URL"):
    os.environ["DATABASE_URL"] = postgres.throwaway().start().url

from testproject.settings import *  # noqa: E402, F403
from testproject.settings import DATABASES

DATABASES["other"] = deepcopy(DATABASES["default"])
DATABASES["other"]["NAME"] = os.environ.get("WORKQUEUE_TEST_OTHER") or DATABASES["default"]["NAME"] + "_other"

DEBUG = False
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
