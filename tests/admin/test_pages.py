"""Each page answers, whatever it is asked for and whatever the queues hold."""

import pytest
from django.db.models import JSONField, Value

from tests.admin import scene
from tests.admin.conftest import address

pytestmark = pytest.mark.django_db

STATES = {
    "workjob": ["", "ready", "scheduled", "leased", "completed", "dead", "cancelled"],
    "items": ["", "ready", "scheduled", "leased", "stalled", "completed", "arriving"],
}


@pytest.mark.parametrize("name", ["dashboard", "workjob_changelist", "items_changelist"])
@pytest.mark.parametrize("also", ["queuerecord_changelist", "workerrecord_changelist"])
def test_every_page_answers_without_a_single_row(admin_client, name, also):
    assert admin_client.get(address(name)).status_code == 200
    assert admin_client.get(address(also)).status_code == 200


@pytest.mark.parametrize(("listed", "state"), [(listed, state) for listed in STATES for state in STATES[listed]])
def test_every_list_shows_its_rows(admin_client, listed, state):
    counts = {"ready": 3, "leased": 3, "scheduled": 3, "stalled": 3, "completed": 3}
    scene.items("products", **counts)
    scene.jobs("mails", **counts)
    for queue in ("", "products" if listed == "items" else "mails"):
        answer = admin_client.get(address(f"{listed}_changelist", state=state, queue=queue))
        assert answer.status_code == 200
        rows = answer.context["rows"]
        assert len(rows) == (18 if listed == "workjob" else 15) if not state else state == "arriving" or len(rows) == 3
        assert {row["item" if listed == "items" else "job"].state for row in rows} == {state} - {
            "",
            "arriving",
        } or not state


@pytest.mark.parametrize("span", ["", "1h", "24h", "7d", "nonsense"])
def test_the_dashboard_and_a_queue_show_every_span(admin_client, span):
    scene.whole()
    assert admin_client.get(address("dashboard", span=span)).status_code == 200
    shown = admin_client.get(address("queuerecord_detail", name="mails", span=span))
    assert shown.status_code == 200


def test_a_job_shows_its_payload_errors_and_tracebacks(admin_client):
    from django_workqueue.models import WorkJob

    scene.jobs("mails", stalled=1)
    job = WorkJob.objects.get(outcome="dead")
    shown = admin_client.get(address("workjob_change", job.id)).content.decode()
    assert "shop.mail.MailboxFull" in shown
    assert "server.deliver(message)" in shown
    assert "user1@example.org" in shown
    assert "attempt 2 failed: MailboxFull" in shown


def test_the_way_to_enqueue_a_key_is_on_the_list_of_items_once(admin_client):
    scene.items("products", ready=1)
    shown = admin_client.get(address("items_changelist", queue="products")).content.decode()
    assert shown.count('class="addlink">Enqueue a key<') == 1


def test_a_job_is_found_by_its_number(admin_client):
    from django_workqueue.models import WorkJob

    scene.jobs("mails", ready=2)
    job = WorkJob.objects.order_by("id")[0]
    answer = admin_client.get(address("workjob_changelist", id=job.id))
    assert answer["Location"] == address("workjob_change", job.id)


def test_jobs_are_found_by_kind_and_by_what_their_payload_contains(admin_client):
    scene.jobs("mails", ready=9)
    found = admin_client.get(address("workjob_changelist", kind="mail.invoice")).context["rows"]
    assert [row["job"].kind for row in found] == ["mail.invoice"] * 4 or len(found) == 4
    found = admin_client.get(address("workjob_changelist", payload='{"order": 4}', state="ready")).context["rows"]
    assert len(found) == 1


DEEP = "[" * 100_000 + "]" * 100_000
NOT_UNDERSTOOD = [
    ("workjob", {"payload": "notjson"}, "Enter a valid JSON"),
    ("workjob", {"payload": '{"order": '}, "Enter a valid JSON"),
    ("workjob", {"payload": "NaN"}, "Enter a valid JSON"),
    ("workjob", {"payload": '"\\u0000"'}, "Enter a valid JSON"),
    ("workjob", {"payload": '"\\ud800"'}, "Enter a valid JSON"),
    ("workjob", {"payload": "7" * 5000}, "Enter a valid JSON"),
    ("workjob", {"payload": DEEP}, "Enter a valid JSON"),
    ("workjob", {"id": 55555}, "There is no job 55555."),
    ("workjob", {"id": -(2**63) - 1}, "There is no job -9223372036854775809."),
    ("workjob", {"id": 99999999999999999999}, "There is no job 99999999999999999999."),
    ("workjob", {"id": "abc"}, "Enter a whole number"),
    ("workjob", {"id": "7" * 5000}, "Enter a whole number"),
    ("workjob", {"kind": "k" * 513}, "at most 512 characters"),
    ("workjob", {"key": "product"}, "There is no filter key."),
    ("workjob", {"state": "stalled"}, "There is no state stalled."),
    ("workjob", {"from": "5"}, "There is no filter from."),
    ("items", {"kind": "mail"}, "There is no filter kind."),
    ("items", {"id": "5"}, "There is no filter id."),
    ("items", {"key": "k" * 513}, "at most 512 characters"),
    ("items", {"state": "dead"}, "There is no state dead."),
    *((listed, {"after": "garbage"}, "There is no page garbage.") for listed in ("workjob", "items")),
    *((listed, {"after": "WzAsIDAsIG51bGwsICJ0aWxlcyJd"}, "There is no page W") for listed in ("workjob", "items")),
    *((listed, {"age": "bogus"}, "Select a valid choice") for listed in ("workjob", "items")),
    *((listed, {"queue": "a\nb"}, "Select a valid choice") for listed in ("workjob", "items")),
    *((listed, {"priority": "5"}, "There is no filter priority.") for listed in ("workjob", "items")),
    *((listed, {"queue__exact": "none"}, "There is no filter queue__exact.") for listed in ("workjob", "items")),
]


@pytest.mark.parametrize(("listed", "asked", "told"), NOT_UNDERSTOOD, ids=range(len(NOT_UNDERSTOOD)))
def test_what_is_not_understood_of_a_filter_is_told_and_lists_nothing(admin_client, listed, asked, told):
    scene.items("products", ready=3)
    scene.jobs("mails", ready=3)
    for more in ({}, {"queue": "products" if listed == "items" else "mails"}, {"state": "ready"}):
        answer = admin_client.get(address(f"{listed}_changelist", **(more | asked)))
        assert answer.status_code == 200
        shown = answer.content.decode()
        assert told in shown
        assert answer.context["rows"] == []
        assert "that match" not in shown
        assert 'name="select"' not in shown


@pytest.mark.parametrize("listed", ["workjob", "items"])
def test_a_filter_that_is_asked_for_twice_is_not_understood(admin_client, listed):
    scene.items("products", ready=3)
    scene.jobs("mails", ready=3)
    for asked in ("queue=none&queue=", "state=ready&state=", "age=-d7&age=", "after=x&after="):
        answer = admin_client.get(f"{address(f'{listed}_changelist')}?{asked}")
        assert "asked for more than once" in answer.content.decode()
        assert answer.context["rows"] == []


@pytest.mark.parametrize("listed", ["workjob", "items"])
def test_what_asks_for_nothing_is_no_filter(admin_client, listed):
    scene.items("products", ready=3)
    scene.jobs("mails", ready=3)
    for asked in ("_popup=1", "nonsense=", "queue=&age=&state=", "queue=&queue=", "after="):
        assert admin_client.get(f"{address(f'{listed}_changelist')}?{asked}").context["rows"], asked


def test_a_null_is_a_payload_like_others(admin_client):
    from django_workqueue.models import WorkJob

    scene.jobs("mails", ready=3)
    job = WorkJob.objects.order_by("id")[0]
    assert admin_client.get(address("workjob_changelist", payload="null")).context["rows"] == []
    WorkJob.objects.filter(id=job.id).update(payload=None)
    WorkJob.objects.filter(id=job.id + 1).update(payload=Value(None, JSONField()))
    found = admin_client.get(address("workjob_changelist", payload="null")).context["rows"]
    assert [row["job"].ident for row in found] == [job.id + 1]


@pytest.mark.parametrize("typed", [" {} ", "+{}", "{}.0"])
def test_a_number_leads_to_its_job_however_it_is_typed(admin_client, typed):
    from django_workqueue.models import WorkJob

    scene.jobs("mails", ready=1)
    job = WorkJob.objects.order_by("id")[0]
    answer = admin_client.get(address("workjob_changelist", id=typed.format(job.id)))
    assert answer["Location"] == address("workjob_change", job.id)


def test_items_are_found_by_the_beginning_of_their_key(admin_client):
    scene.items("products", ready=30)
    found = admin_client.get(address("items_changelist", key="product-00001")).context["rows"]
    assert [row["item"].ident for row in found] == [f"product-00001{n}" for n in range(10)]


def test_an_item_shows_its_error(admin_client):
    scene.items("products", stalled=1)
    shown = admin_client.get(address("items_detail", queue="products", key="product-000001"))
    assert "the supplier did not answer" in shown.content.decode()
    assert shown.context["state"] == "stalled"


DUE = [("ready", True), ("scheduled", True), ("leased", False), ("stalled", False), ("completed", False)]


@pytest.mark.parametrize(("state", "due"), DUE)
def test_an_item_is_due_where_it_waits_and_nowhere_else(admin_client, state, due):
    scene.items("products", **{state: 1})
    shown = admin_client.get(address("items_detail", queue="products", key="product-000001")).content.decode()
    assert ("<dt>Due</dt>" in shown) == due


def test_what_is_not_there_is_not_found(admin_client):
    for there in (
        address("workjob_change", 999),
        address("workjob_change", 2**70),
        address("items_detail", queue="none", key="none"),
        address("items_detail", queue="a\x00b", key="c"),
        address("queuerecord_detail", name="none"),
        address("dashboard") + "?database=none",
    ):
        assert admin_client.get(there).status_code == 404


def test_workers_that_fell_silent_are_told_apart(admin_client):
    from datetime import timedelta

    scene.worker("web-1", ["mails"])
    scene.worker("old-1", ["mails"], silence=timedelta(minutes=5))
    answer = admin_client.get(address("workerrecord_changelist"))
    assert [worker.id for worker in answer.context["workers"]] == ["web-1"]
    assert [worker.id for worker in answer.context["silent"]] == ["old-1"]


def test_pages_show_times_that_have_no_zone(admin_client, settings):
    scene.record("tiles", "items")
    scene.past("tiles", minutes=3, busy=3)
    settings.USE_TZ = False
    lists = ["dashboard", "queuerecord_changelist", "workerrecord_changelist", "workjob_changelist", "items_changelist"]
    for path in [*map(address, lists), address("queuerecord_detail", name="tiles")]:
        assert admin_client.get(path).status_code == 200, path
