"""Queues on a database of their own: the examples of docs/how-to/databases.md, run as they are printed there."""

import copy
import sys
import types

import pytest
from django.contrib.auth.models import Group, User
from django.core.management import call_command
from django.db import connections, router, transaction

from django_workqueue.checks import check_all
from django_workqueue.models import WorkItem
from tests import pages

pytestmark = pytest.mark.django_db(databases=["default", "other"])

PAGE = "how-to/databases.md"


@pytest.fixture
def page(db, django_db_blocker, monkeypatch, settings):
    """What the page defines, under its settings but for the address of `queue`, which is the tests' other database."""
    module = types.ModuleType("shop.routers")
    monkeypatch.setitem(sys.modules, "shop", types.ModuleType("shop"))
    monkeypatch.setitem(sys.modules, "shop.routers", module)
    monkeypatch.setitem(connections.settings, "queue", copy.deepcopy(connections.settings["other"]))
    vars(module).update(pages.run(PAGE))
    settings.WORKQUEUE_DATABASE = module.WORKQUEUE_DATABASE
    settings.DATABASE_ROUTERS = module.DATABASE_ROUTERS
    with django_db_blocker.unblock():
        yield module
        WorkItem.objects.using("queue").filter(queue="profiles").delete()
        connections["queue"].close()
    del connections["queue"]


def test_the_check_has_nothing_to_say_of_it(page):
    assert [message for message in check_all() if message.id.startswith(("workqueue.E", "workqueue.W"))] == []


def test_a_project_on_sqlite_migrates_both_and_each_has_its_own_tables(page, monkeypatch, tmp_path):
    lite = connections.settings["default"] | page.DATABASES["default"] | {"NAME": tmp_path / "lite", "OPTIONS": {}}
    monkeypatch.setitem(connections.settings, "lite", lite)
    try:
        for alias in ("lite", "queue"):
            call_command("migrate", database=alias, verbosity=0)
        tables = connections["lite"].introspection.table_names()
    finally:
        connections["lite"].close()
        del connections["lite"]
    assert "auth_user" in tables
    assert [table for table in tables if table.startswith("workqueue")] == []
    assert router.allow_migrate("queue", "workqueue")
    assert not router.allow_migrate("queue", "auth")
    assert not router.allow_migrate("default", "workqueue")


def test_models_are_looked_for_where_they_are(page):
    assert (router.db_for_read(WorkItem), router.db_for_write(WorkItem)) == ("queue", "queue")
    assert (router.db_for_read(Group), router.db_for_write(Group)) == ("default", "default")


@pytest.mark.django_db(transaction=True, databases=["default", "other"])
def test_what_is_renamed_is_enqueued_after_the_commit(page):
    user = User.objects.create(username="ada")
    with transaction.atomic():
        page.rename(user, "Ada")
        assert page.profiles.stats().pending == 0
    assert [item.key for item in page.profiles.claim()] == [user.pk]
    with transaction.atomic():
        page.rename(user, "Bob")
        transaction.set_rollback(True)
    assert page.profiles.claim() == []
