"""Whoever lacks a permission sees nothing of it, and can do nothing with it."""

import json

import pytest
from django.contrib.admin.models import LogEntry
from django.urls import reverse

from django_workqueue.admin import ItemAdmin, JobAdmin
from django_workqueue.admin.queues import LEVERS
from django_workqueue.models import QueueRecord, WorkItem, WorkJob
from tests.admin import scene
from tests.admin.conftest import address

pytestmark = pytest.mark.django_db

MODELS = ("workjob", "workitem", "queuerecord")
ALL = [f"{verb}_{model}" for verb in ("view", "change", "delete", "add") for model in MODELS]
STATES = {"retry": "dead", "hurry": "scheduled", "release": "scheduled", "complete": "leased", "revive": "stalled"}
PAGES = {
    "dashboard": "view_queuerecord",
    "queuerecord_changelist": "view_queuerecord",
    "workjob_changelist": "view_workjob",
    "items_changelist": "view_workitem",
    "workerrecord_changelist": "view_workerrecord",
}
ONE_OF_EACH = {"ready": 1, "leased": 1, "scheduled": 1, "stalled": 1, "completed": 1}


def everything():
    rows = [*WorkJob.objects.order_by("id").values_list(), *WorkItem.objects.order_by("queue", "key").values_list()]
    return [*rows, *QueueRecord.objects.order_by("name").values_list()]


@pytest.mark.parametrize("page", PAGES)
def test_a_page_is_only_for_those_who_may_view_it(user_who_may, page):
    others = [permission for permission in (*ALL, "view_workerrecord") if permission != PAGES[page]]
    others = [each for each in others if each != PAGES[page].replace("view", "change")]  # who may change may view
    assert user_who_may(*others).get(address(page)).status_code == 403
    assert user_who_may(PAGES[page]).get(address(page)).status_code == 200


def test_a_stranger_is_asked_to_log_in(client):
    for page in PAGES:
        assert reverse("admin:login") in client.get(address(page))["Location"]


def test_details_are_only_for_those_who_may_view_them(user_who_may):
    scene.items("products", ready=1)
    scene.jobs("mails", ready=1)
    job = WorkJob.objects.first()
    there = [
        address("workjob_change", job.id),
        address("items_detail", queue="products", key="product-000001"),
        address("queuerecord_detail", name="mails"),
    ]
    nobody = user_who_may()
    assert [nobody.get(each).status_code for each in there] == [403] * 3


def test_the_index_lists_only_what_one_may_view(user_who_may, index):
    shown = user_who_may("view_workjob").get(index).content.decode()
    assert address("workjob_changelist") in shown
    for page in ("dashboard", "items_changelist", "queuerecord_changelist", "workerrecord_changelist"):
        assert address(page) not in shown


def test_the_dashboard_hides_workers_and_links_from_those_who_may_not_follow_them(user_who_may):
    scene.jobs("mails", ready=1)
    scene.worker("web-1", ["mails"])
    shown = user_who_may("view_queuerecord").get(address("dashboard")).content.decode()
    assert "web-1" not in shown
    assert address("workjob_changelist") not in shown


def needed(admin, verb):
    return f"{verb.permission}_{'workjob' if admin is JobAdmin else 'workitem'}"


VERBS = [(admin, verb) for admin in (JobAdmin, ItemAdmin) for verb in admin.verbs.values()]


@pytest.mark.parametrize(("admin", "verb"), VERBS, ids=[f"{admin.listed}-{verb.name}" for admin, verb in VERBS])
@pytest.mark.parametrize("scope", ["chosen", "all"])
def test_a_verb_is_only_for_those_who_have_its_permission(user_who_may, admin, verb, scope):
    scene.items("products", **ONE_OF_EACH)
    scene.jobs("mails", **ONE_OF_EACH)
    if admin is JobAdmin:
        rows = [["mails", number] for number in WorkJob.objects.values_list("id", flat=True)]
    else:
        rows = [["products", key] for key in WorkItem.objects.values_list("key", flat=True)]
    data = {
        "verb": verb.name,
        "scope": scope,
        "select": [json.dumps(row) for row in rows],
        "confirmed": "yes",
        "priority": "77",
        "state": STATES.get(verb.name, "ready"),
    }
    before = everything()
    without = user_who_may(*(each for each in ALL if each != needed(admin, verb)))
    page = without.get(address(f"{admin.listed}_changelist")).content.decode()
    assert f'value="{verb.name}"' not in page
    assert without.post(address(f"{admin.listed}_act"), data).status_code == 403
    assert everything() == before
    assert not LogEntry.objects.exists()
    having = user_who_may(f"view_{needed(admin, verb).split('_')[1]}", needed(admin, verb))
    assert f'value="{verb.name}"' in having.get(address(f"{admin.listed}_changelist")).content.decode()
    assert having.post(address(f"{admin.listed}_act"), data).status_code == 302
    assert everything() != before


@pytest.mark.parametrize("lever", LEVERS.values(), ids=list(LEVERS))
def test_a_lever_is_only_for_those_who_have_its_permission(user_who_may, lever):
    scene.jobs("mails", **ONE_OF_EACH)
    scene.record("mails", "jobs", paused=lever.name == "resume")
    permission = f"{lever.permission}_{'workjob' if lever.of_work else 'queuerecord'}"
    data = {"verb": lever.name, "name": "mails", "what": "everything", "confirmed": "yes"}
    before = everything()
    without = user_who_may(*(each for each in ALL if each != permission))
    assert f'value="{lever.name}"' not in without.get(address("queuerecord_detail", name="mails")).content.decode()
    assert without.post(address("queuerecord_act"), data).status_code == 403
    assert everything() == before
    assert not LogEntry.objects.exists()
    if lever.name not in ("partition", "unpartition"):  # not inside a transaction
        having = user_who_may("view_queuerecord", permission)
        assert f'value="{lever.name}"' in having.get(address("queuerecord_detail", name="mails")).content.decode()
        assert having.post(address("queuerecord_act"), data).status_code == 302
        assert everything() != before


def test_enqueueing_by_hand_is_only_for_those_who_may_add(user_who_may):
    scene.record("products", "items")
    form = {"queue": "products", "key": "a", "priority": "0", "delay": "0"}
    without = user_who_may(*(each for each in ALL if each != "add_workitem"))
    assert address("items_enqueue") not in without.get(address("items_changelist")).content.decode()
    assert without.post(address("items_enqueue"), form).status_code == 403
    assert user_who_may("add_workitem", "view_workitem").post(address("items_enqueue"), form).status_code == 302
