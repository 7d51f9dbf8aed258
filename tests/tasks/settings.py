"""The tests' settings with an app that has tasks, for the processes that these tests start."""

import json
import os

from tests.settings import *  # noqa: F403
from tests.settings import INSTALLED_APPS

INSTALLED_APPS = [app for app in INSTALLED_APPS if app != "testproject.tiles"] + ["tests.tasks.shop"]
TASKS = json.loads(os.environ["SHOP_TASKS"]) if os.environ.get("SHOP_TASKS") else {}
ROOT_URLCONF = "tests.tasks.shop.urls"
