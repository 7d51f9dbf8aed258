"""The tests' settings with an app that has handlers, for the processes that these tests start."""

import os

from tests.settings import *  # noqa: F403
from tests.settings import DATABASES, INSTALLED_APPS

INSTALLED_APPS = [*(app for app in INSTALLED_APPS if app != "testproject.tiles"), "tests.worker.shop"]
WORKQUEUE_AUTODISCOVER = os.environ.get("SHOP_AUTODISCOVER", "tasks") or None
database = os.environ.get("SHOP_DATABASE", "")  # a port of this machine's, or "bare", where our tables are not seen
if database.isdigit():
    DATABASES["default"] |= {"HOST": "127.0.0.1", "PORT": database}
if database == "bare":
    DATABASES["default"]["OPTIONS"] = {"options": "-c search_path=nowhere"}
if middleware := os.environ.get("SHOP_MIDDLEWARE"):
    WORKQUEUE_MIDDLEWARE = [middleware]
ROOT_URLCONF = "tests.worker.shop.urls"
