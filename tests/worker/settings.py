"""The tests' settings with an app that has handlers, for the processes that these tests start."""

import os

from tests.settings import *  # noqa: F403
from tests.settings import INSTALLED_APPS

INSTALLED_APPS = [*INSTALLED_APPS, "tests.worker.shop"]
WORKQUEUE_AUTODISCOVER = os.environ.get("SHOP_AUTODISCOVER", "tasks") or None
