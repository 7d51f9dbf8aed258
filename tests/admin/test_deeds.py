"""What is done to jobs, items and queues: asked about first, done by POST, noted in the log, to the right rows only."""

import html
import json
import re
from contextlib import nullcontext
from datetime import timedelta
from types import SimpleNamespace

import pytest
from django.contrib.admin.models import LogEntry
from django.db import OperationalError, connection, transaction
from django.db.models.functions import Now
from django.test import Client

from django_workqueue import Queue
from django_workqueue.admin import ItemAdmin, JobAdmin
from django_workqueue.listed import ListedSource
from django_workqueue.managers import WorkItemQuerySet
from django_workqueue.models import InboxEntry, QueueRecord, WorkItem, WorkJob
from tests.admin import scene
from tests.admin.conftest import address

pytestmark = pytest.mark.django_db

ONE_OF_EACH = {"ready": 1, "leased": 1, "scheduled": 1, "stalled": 1, "completed": 1}


def job_of(state):
    waiting = WorkJob.objects.filter(outcome=None, lease_token=0).order_by("available_at")
    return {
        "ready": waiting.first,
        "scheduled": waiting.last,
        "leased": lambda: WorkJob.objects.exclude(lease_token=0).get(),
    }.get(state, lambda: WorkJob.objects.filter(outcome=state).first())()


def post(client, listed, verb, rows=(), *, confirmed=True, **more):
    data = {"verb": verb, "scope": "chosen", "select": [json.dumps(row) for row in rows], **more}
    if confirmed:
        data["confirmed"] = "yes"
    return client.post(address(f"{listed}_act"), data)


@pytest.mark.parametrize(
    ("verb", "state", "outcome"),
    [
        ("retry", "dead", None),
        ("retry", "cancelled", None),
        ("cancel", "ready", "cancelled"),
        ("cancel", "leased", "cancelled"),
        ("retry", "completed", "completed"),
        ("cancel", "completed", "completed"),
    ],
)
def test_a_job_is_retried_or_cancelled_where_it_can_be(admin_client, verb, state, outcome):
    scene.jobs("mails", **ONE_OF_EACH)
    job = job_of(state)
    assert post(admin_client, "workjob", verb, [["mails", job.id]]).status_code == 302
    assert WorkJob.objects.get(id=job.id).outcome == outcome


def test_a_scheduled_job_runs_now(admin_client):
    scene.jobs("mails", **ONE_OF_EACH)
    job = job_of("scheduled")
    post(admin_client, "workjob", "hurry", [["mails", job.id]])
    assert WorkJob.objects.get(id=job.id).available_at < job.available_at


def test_a_waiting_job_gets_another_priority_and_a_running_one_does_not(admin_client):
    scene.jobs("mails", **ONE_OF_EACH)
    jobs = [job_of("ready"), job_of("leased")]
    post(admin_client, "workjob", "priority", [["mails", job.id] for job in jobs], priority="7")
    assert [WorkJob.objects.get(id=job.id).priority == 7 for job in jobs] == [True, False]


def test_a_priority_that_is_none_is_asked_for_again(admin_client):
    scene.jobs("mails", ready=1)
    answer = post(admin_client, "workjob", "priority", [["mails", job_of("ready").id]], priority="loud")
    assert answer.status_code == 200
    assert answer.context["asks"].errors


def test_jobs_are_deleted(admin_client):
    scene.jobs("mails", **ONE_OF_EACH)
    rows = [["mails", number] for number in WorkJob.objects.values_list("id", flat=True)[:3]]
    post(admin_client, "workjob", "delete", rows)
    assert not WorkJob.objects.filter(id__in=[number for _, number in rows]).exists()
    assert WorkJob.objects.count() == 8 - 3


@pytest.mark.parametrize(
    ("verb", "key", "check"),
    [
        ("release", "product-000002", lambda item: item.lease_token == 0),
        ("complete", "product-000002", lambda item: item.completed_at is not None),
        ("revive", "product-000004", lambda item: item.stalled_at is None and item.attempts == 0),
        ("priority", "product-000001", lambda item: item.priority == 9),
        ("remove", "product-000001", lambda item: item is None),
    ],
)
def test_items_are_steered(admin_client, verb, key, check):
    scene.items("products", **ONE_OF_EACH)
    scene.record("products", "items")
    post(admin_client, "items", verb, [["products", key]], priority="9")
    assert check(WorkItem.objects.filter(queue="products", key=key).first())


def test_a_scheduled_item_is_released_now(admin_client):
    scene.items("products", **ONE_OF_EACH)
    before = WorkItem.objects.get(key="product-000003").available_at
    post(admin_client, "items", "release", [["products", "product-000003"]])
    assert WorkItem.objects.get(key="product-000003").available_at < before


def test_nothing_is_done_before_it_was_confirmed(admin_client):
    scene.jobs("mails", ready=2)
    rows = [["mails", number] for number in WorkJob.objects.values_list("id", flat=True)[:2]]
    for scope in ("chosen", "all"):
        answer = post(admin_client, "workjob", "delete", rows, confirmed=False, scope=scope)
        assert answer.status_code == 200
        assert "Are you sure" in answer.content.decode()
    assert WorkJob.objects.filter(outcome=None).count() == 2
    assert not LogEntry.objects.exists()


def test_nothing_is_done_by_get(admin_client):
    scene.jobs("mails", ready=1)
    job = job_of("ready")
    row = json.dumps(["mails", job.id])
    data = {"verb": "delete", "scope": "chosen", "select": row, "confirmed": "yes"}
    assert admin_client.get(address("workjob_act"), data).status_code == 302
    assert admin_client.get(address("queuerecord_act"), {"verb": "pause", "name": "mails"}).status_code == 302
    assert WorkJob.objects.filter(id=job.id).exists()
    assert not QueueRecord.objects.filter(paused_at__isnull=False).exists()


@pytest.mark.parametrize("there", ["workjob_act", "items_act", "queuerecord_act", "items_enqueue"])
def test_every_change_wants_its_token_against_forgery(admin_user, there):
    client = Client(enforce_csrf_checks=True)
    client.force_login(admin_user)
    assert client.post(address(there), {"verb": "pause", "name": "x", "confirmed": "yes"}).status_code == 403


def test_all_that_match_is_steered_in_batches_and_nothing_else(admin_client, monkeypatch):
    from django_workqueue import steering

    monkeypatch.setattr(steering, "BATCH", 10)
    scene.jobs("mails", ready=47, stalled=5)
    scene.jobs("others", ready=5)
    answer = post(admin_client, "workjob", "cancel", scope="all", state="ready", queue="mails", kind="mail.invoice")
    assert answer.status_code == 302
    cancelled = WorkJob.objects.filter(outcome="cancelled").exclude(kind="mail.welcome", enqueued_at=None)
    assert {job.kind for job in cancelled if job.available_at and not job.started_at} >= {"mail.invoice"}
    assert not WorkJob.objects.filter(outcome=None, queue="mails", kind="mail.invoice").exists()
    assert WorkJob.objects.filter(outcome=None, queue="mails").exclude(kind="mail.invoice").count() > 25
    assert WorkJob.objects.filter(outcome=None, queue="others").count() == 5


MATCHES_NOTHING = [
    ("workjob", "delete", {"id": "55555"}),
    ("workjob", "delete", {"id": "99999999999999999999"}),
    ("workjob", "delete", {"id": "abc"}),
    ("workjob", "delete", {"payload": "notjson"}),
    ("workjob", "delete", {"payload": "null"}),
    ("workjob", "delete", {"key": "none"}),
    ("workjob", "delete", {"kind": "none"}),
    ("workjob", "delete", {"from": "5"}),
    ("items", "remove", {"key": "none"}),
    ("items", "remove", {"key": "k" * 513}),
    ("items", "remove", {"id": "55555"}),
    ("items", "remove", {"kind": "none"}),
    *(
        (listed, verb, more)
        for listed, verb in (("workjob", "delete"), ("items", "remove"))
        for more in (
            {"queue": "none"},
            {"queue": "a\nb"},
            {"age": "bogus"},
            {"state": "bogus"},
            {"after": "garbage"},
            {"queue": ["none", ""]},
            {"queue__exact": "none"},
        )
    ),
]


@pytest.mark.parametrize(("listed", "verb", "asked"), MATCHES_NOTHING, ids=range(len(MATCHES_NOTHING)))
def test_what_matches_nothing_or_is_not_understood_changes_nothing(admin_client, listed, verb, asked):
    scene.items("products", **ONE_OF_EACH)
    scene.jobs("mails", **ONE_OF_EACH)
    for confirmed in (False, True):
        answer = post(admin_client, listed, verb, scope="all", confirmed=confirmed, **asked)
        assert answer.status_code == 302 or answer.context["count"] == "0"
    assert (WorkItem.objects.count(), WorkJob.objects.count()) == (5, 8)
    assert not LogEntry.objects.exists()


def test_a_number_of_a_job_that_there_is_does_not_stand_for_all(admin_client):
    scene.jobs("mails", ready=3)
    post(admin_client, "workjob", "delete", scope="all", id=str(job_of("ready").id))
    assert WorkJob.objects.filter(outcome=None).count() == 3


def test_what_takes_too_long_goes_on_when_told_to(admin_client, monkeypatch):
    from django_workqueue import steering

    monkeypatch.setattr(steering, "BATCH", 10)
    monkeypatch.setattr(steering.to_all, "__kwdefaults__", {"budget": timedelta(0)})
    scene.items("products", ready=25)
    data = {"verb": "remove", "scope": "all", "state": "ready", "confirmed": "yes"}
    left = []
    for _ in range(5):
        answer = admin_client.post(address("items_act"), data)
        left.append(WorkItem.objects.count())
        if answer.status_code == 302:
            break
        assert "There is more" in answer.content.decode()
        data |= {"after": answer.context["goes_on"], "done": answer.context["done"]}
    assert left == [15, 5, 0]


class Clock:
    """A clock that stands still but for what `let` says."""

    def __init__(self, monkeypatch):
        from django_workqueue import steering

        self.now = 0.0
        self.sent = []  # rows of each statement
        self._monkeypatch = monkeypatch
        monkeypatch.setattr(steering, "time", SimpleNamespace(monotonic=lambda: self.now))

    def let(self, holder, name, rows, cost):
        """Let a function take `cost` seconds for each of the rows that `rows` finds in its arguments and answer."""
        call = getattr(holder, name)

        def slow(*args):
            answer = call(*args)
            self.sent.append(rows(args, answer))
            self.now += self.sent[-1] * cost
            return answer

        self._monkeypatch.setattr(holder, name, slow)


@pytest.mark.parametrize("cost", [0.3, 0.1, 0.04])
def test_an_act_on_all_that_match_keeps_to_its_time_however_slow_a_row_is(admin_client, monkeypatch, cost):
    clock = Clock(monkeypatch)
    clock.let(ListedSource, "cancel_here", lambda args, _answer: len(args[1]), cost)
    scene.jobs("mails", ready=200)
    answer = post(admin_client, "workjob", "cancel", scope="all", state="ready", queue="mails")
    assert "There is more" in answer.content.decode()
    assert WorkJob.objects.filter(outcome=None).count() == 200 - sum(clock.sent)
    assert 3 < clock.now <= 5


def test_an_act_on_all_that_match_takes_more_at_once_as_long_as_that_is_quick(admin_client, monkeypatch):
    clock = Clock(monkeypatch)
    clock.let(ListedSource, "cancel_here", lambda args, _answer: len(args[1]), 0.0001)
    scene.jobs("mails", ready=2500)
    assert post(admin_client, "workjob", "cancel", scope="all", state="ready", queue="mails").status_code == 302
    assert clock.sent == [10, 40, 160, 640, 1000, 650]


@pytest.mark.parametrize("verb", ["purge", "retry"])
def test_a_lever_keeps_to_its_time_however_slow_a_row_is(admin_client, monkeypatch, verb):
    clock = Clock(monkeypatch)
    scene.record("products", "items")
    scene.items("products", stalled=200)
    clock.let(WorkItemQuerySet, "send", lambda _args, answer: answer[0][0], 0.1)
    for _ in range(4):
        before = clock.now
        answer = lever(admin_client, verb, "products", what="finished")
        assert "There is more" in answer.content.decode()
        assert before + 3 < clock.now <= before + 5
    assert WorkItem.objects.filter(stalled_at__isnull=False).count() == 200 - sum(clock.sent) <= 20


def test_a_row_that_those_ticked_have_no_time_for_is_left(admin_client, monkeypatch):
    clock = Clock(monkeypatch)
    clock.let(ListedSource, "cancel_here", lambda args, _answer: len(args[1]), 2)
    scene.jobs("mails", ready=5)
    rows = [["mails", number] for number in WorkJob.objects.filter(outcome=None).values_list("id", flat=True)]
    assert len(post(admin_client, "workjob", "cancel", rows).context["selected"]) == 3


def test_what_takes_too_long_for_those_ticked_goes_on_with_those_left(admin_client, monkeypatch):
    from django_workqueue import steering

    monkeypatch.setattr(steering.to_each, "__kwdefaults__", {"budget": timedelta(0)})
    scene.items("products", ready=2, completed=1)
    rows = [["products", f"product-00000{number}"] for number in (3, 1, 2)]
    answer = post(admin_client, "items", "priority", rows, priority="77")
    told = []
    for _ in range(2):
        shown = answer.content.decode()
        assert "There is more" in shown
        told.append((answer.context["done"], len(answer.context["selected"])))
        hidden = {field: values[-1] for field, values in _fields(shown).items() if field != "select"}
        answer = admin_client.post(address("items_act"), hidden | {"select": _fields(shown)["select"]})
    assert answer.status_code == 302
    assert told == [(0, 2), (1, 1)]
    assert sorted(WorkItem.objects.filter(priority=77).values_list("key", flat=True)) == [
        "product-000001",
        "product-000002",
    ]
    assert LogEntry.objects.count() == 2
    said = admin_client.get(address("items_changelist")).content.decode()
    assert "2 were changed" in said
    assert "The others were not in a state for it" in said


def _fields(shown, listed="items"):
    """What the form of a page sends."""
    form = shown[shown.index('<form method="post" action="' + address(f"{listed}_act")) :]
    found = {}
    for name, value in re.findall(
        r'<input type="hidden" name="([^"]+)" value="([^"]*)"', form[: form.index("</form>")]
    ):
        found.setdefault(name, []).append(html.unescape(value))
    return found


def failing_after(monkeypatch, holder, name, calls):
    """Let a function that deeds are done by fail after so many calls."""
    deed, left = getattr(holder, name), iter(range(calls))

    def deed_or_failure(*args, **options):
        if next(left, None) is None:
            raise OperationalError("the server has gone away")
        return deed(*args, **options)

    monkeypatch.setattr(holder, name, deed_or_failure)


def test_what_was_done_to_those_ticked_before_one_failed_is_in_the_log(admin_client, monkeypatch):
    scene.jobs("mails", ready=5)
    failing_after(monkeypatch, ListedSource, "cancel_here", 3)
    waiting = WorkJob.objects.filter(outcome=None)
    rows = [["mails", number] for number in waiting.values_list("id", flat=True)]
    cancelled = WorkJob.objects.filter(outcome="cancelled", id__in=[number for _, number in rows])
    with pytest.raises(OperationalError):
        post(admin_client, "workjob", "cancel", rows)
    assert len(cancelled) == 3
    assert {entry.object_id for entry in LogEntry.objects.all()} == {str(job.id) for job in cancelled}


def test_what_was_done_to_all_that_match_before_a_batch_failed_is_in_the_log(admin_client, monkeypatch):
    from django_workqueue import steering

    monkeypatch.setattr(steering, "BATCH", 2)
    scene.jobs("mails", ready=5)
    failing_after(monkeypatch, ListedSource, "cancel_here", 2)
    with pytest.raises(OperationalError):
        post(admin_client, "workjob", "cancel", scope="all", state="ready", queue="mails")
    assert LogEntry.objects.get().get_change_message().endswith(": 4")


def test_all_that_match_goes_on_when_told_to_where_a_later_page_was_given_up(admin_client, monkeypatch):
    from django_workqueue import browsing, steering

    def page(browser, filters, after=None, *, limit, page=browsing.Browser.page):
        if after is not None:
            raise browsing.TookTooLong
        return page(browser, filters, after, limit=limit)

    monkeypatch.setattr(steering, "BATCH", 2)
    monkeypatch.setattr(browsing.Browser, "page", page)
    scene.jobs("mails", ready=5)
    answer = post(admin_client, "workjob", "cancel", scope="all", state="ready", queue="mails")
    assert "2 were changed so far. There is more." in answer.content.decode()
    assert LogEntry.objects.get().get_change_message().endswith(": 2")


def test_what_a_queue_was_purged_of_before_a_batch_failed_is_in_the_log(admin_client, monkeypatch):
    from django_workqueue import steering

    monkeypatch.setattr(steering, "BATCH", 2)
    scene.record("products", "items")
    scene.items("products", ready=5)
    failing_after(monkeypatch, WorkItemQuerySet, "send", 2)
    purge = {"verb": "purge", "name": "products", "what": "waiting", "confirmed": "yes"}
    with pytest.raises(OperationalError):
        admin_client.post(address("queuerecord_act"), purge)
    assert WorkItem.objects.count() == 3
    assert LogEntry.objects.get().get_change_message().endswith(": 2 rows.")


def test_each_deed_is_in_the_log_with_its_object_and_leads_to_it(admin_client, admin_user):
    scene.items("products", ready=1)
    scene.jobs("mails", ready=1)
    job = job_of("ready")
    post(admin_client, "items", "priority", [["products", "product-000001"]], priority="3")
    post(admin_client, "workjob", "cancel", [["mails", job.id]])
    admin_client.post(address("queuerecord_act"), {"verb": "pause", "name": "mails", "confirmed": "yes"})
    entries = list(LogEntry.objects.order_by("id"))
    assert [entry.user for entry in entries] == [admin_user] * 3
    assert [entry.content_type.model for entry in entries] == ["workitem", "workjob", "queuerecord"]
    for entry in entries:
        assert admin_client.get(entry.get_admin_url(), follow=True).status_code == 200


def test_a_deed_on_all_that_match_is_one_entry_that_tells_the_filter(admin_client):
    scene.jobs("mails", ready=5)
    post(admin_client, "workjob", "cancel", scope="all", state="ready", queue="mails")
    (entry,) = LogEntry.objects.all()
    assert "queue=mails" in entry.get_change_message()
    assert entry.get_change_message().endswith(": 5")


VERBS = [(admin.listed, verb) for admin in (JobAdmin, ItemAdmin) for verb in admin.verbs.values()]


def everything():
    jobs = {str(job["id"]): job for job in WorkJob.objects.values()}
    return jobs | {json.dumps([item["queue"], item["key"]]): item for item in WorkItem.objects.values()}


@pytest.mark.parametrize(("listed", "verb"), VERBS, ids=[f"{listed}-{verb.name}" for listed, verb in VERBS])
def test_the_log_tells_of_those_that_were_changed_and_of_no_others(admin_client, listed, verb):
    scene.items("products", **ONE_OF_EACH)
    scene.jobs("mails", **ONE_OF_EACH)
    if listed == "workjob":
        rows = [["mails", number] for number in WorkJob.objects.values_list("id", flat=True)]
    else:
        rows = [["products", key] for key in WorkItem.objects.values_list("key", flat=True)]
    before = everything()
    post(admin_client, listed, verb.name, [*rows, *rows, ["none", rows[0][1]]], priority="77")
    after = everything()
    changed = {ident for ident in before if before[ident] != after.get(ident)}
    assert changed
    assert sorted(entry.object_id for entry in LogEntry.objects.all()) == sorted(changed)
    told = f"{len(changed)} was changed" if len(changed) == 1 else f"{len(changed)} were changed"
    assert told in admin_client.get(address(f"{listed}_changelist")).content.decode()


@pytest.mark.parametrize(("listed", "verb"), VERBS, ids=[f"{listed}-{verb.name}" for listed, verb in VERBS])
@pytest.mark.parametrize("scope", ["chosen", "all"])
def test_what_changed_nothing_is_not_in_the_log(admin_client, listed, verb, scope):
    scene.items("products", completed=1)
    scene.jobs("mails", completed=1)
    WorkJob.objects.exclude(outcome="completed").delete()
    rows = [["mails", WorkJob.objects.get().id]] if listed == "workjob" else [["products", "product-000001"]]
    if verb.permission == "delete":
        rows = [["none", rows[0][1]], [rows[0][0], 10**9 if listed == "workjob" else "none"]]
    more = {"state": "ready"} if verb.permission == "delete" else {"state": "completed"}
    before = everything()
    post(admin_client, listed, verb.name, rows, scope=scope, priority="77", **more)
    assert everything() == before
    assert not LogEntry.objects.exists()
    assert "0 were changed" in admin_client.get(address(f"{listed}_changelist")).content.decode()


LAPSED = {"lease_until": Now() - timedelta(seconds=1)}
STANDINGS = {  # where a row stands: of which scene, changed how, offering what besides to delete it
    ("workjob", "ready"): ("ready", {}, {"priority", "cancel"}),
    ("workjob", "scheduled"): ("scheduled", {}, {"hurry", "priority", "cancel"}),
    ("workjob", "leased"): ("leased", {}, {"cancel"}),
    ("workjob", "lapsed"): ("leased", LAPSED, {"cancel"}),
    ("workjob", "spent"): ("leased", LAPSED | {"attempts": 5}, {"cancel"}),
    ("workjob", "completed"): ("completed", {}, set()),
    ("workjob", "dead"): ("dead", {}, {"retry"}),
    ("workjob", "cancelled"): ("cancelled", {}, {"retry"}),
    ("items", "ready"): ("ready", {}, {"priority"}),
    ("items", "scheduled"): ("scheduled", {}, {"release", "priority"}),
    ("items", "leased"): ("leased", {}, {"release", "complete"}),
    ("items", "lapsed"): ("leased", LAPSED, {"release", "complete"}),
    ("items", "spent"): ("leased", LAPSED | {"attempts": 5}, {"release", "complete"}),
    ("items", "completed"): ("completed", {}, set()),
    ("items", "stalled"): ("stalled", {}, {"revive"}),
    ("items", "arriving"): ("", {}, set()),
}


@pytest.mark.parametrize(("listed", "standing"), STANDINGS, ids=["-".join(each) for each in STANDINGS])
def test_a_page_offers_what_can_be_done_and_nothing_else(admin_client, listed, standing):
    begun, change, offered = STANDINGS[listed, standing]
    if listed == "workjob":
        scene.jobs("mails", **{**ONE_OF_EACH, "completed": 2})
        job = job_of(begun)
        WorkJob.objects.filter(id=job.id).update(**change)
        row, page = ["mails", job.id], address("workjob_change", job.id)
    else:
        scene.record("products", "items")
        key = "product-000001"
        if begun:
            scene.items("products", **{begun: 1})
        else:
            Queue("products").enqueue(key)
        WorkItem.objects.filter(key=key).update(**change)
        row, page = ["products", key], address("items_detail", queue="products", key=key)
    shown = admin_client.get(page).context
    assert shown["state"] == {"lapsed": "ready"}.get(standing, standing)
    gone = "delete" if listed == "workjob" else "remove"
    assert {verb.name for verb in shown["verbs"]} == offered | {gone}
    done = set()
    for verb in {verb.name for each, verb in VERBS if each == listed} - {gone}:
        with transaction.atomic():
            before = everything()
            post(admin_client, listed, verb, [row], priority="77")
            if everything() != before:
                done.add(verb)
            transaction.set_rollback(True)
    assert done == offered


@pytest.mark.parametrize(
    ("verb", "more"),
    [("resume", {}), ("retry", {}), *(("purge", {"what": what}) for what in ("waiting", "finished", "everything"))],
)
def test_a_lever_that_changed_nothing_is_not_in_the_log(admin_client, verb, more):
    for name, face in (("products", "items"), ("mails", "jobs")):
        scene.record(name, face)
        lever(admin_client, verb, name, **more)
    assert not LogEntry.objects.exists()


def test_a_queue_that_is_paused_already_is_not_paused_in_the_log(admin_client):
    scene.record("mails", "jobs")
    for _ in range(2):
        lever(admin_client, "pause", "mails")
    assert LogEntry.objects.count() == 1


@pytest.mark.django_db(transaction=True)
def test_a_partition_that_was_not_given_up_is_not_in_the_log(admin_client):
    scene.record("mails", "jobs")
    lever(admin_client, "unpartition", "mails")
    assert not LogEntry.objects.exists()


NO_SELECTIONS = ["[", "[1]", '["mails", "1"]', '["mails", 1.5]', '{"a": 1}', '["a\\u0000b", 1]', f'["a", {2**70}]']


@pytest.mark.parametrize("selection", NO_SELECTIONS)
def test_a_selection_that_is_none_is_passed_over(admin_client, selection):
    data = {"verb": "cancel", "scope": "chosen", "select": selection, "confirmed": "yes"}
    assert admin_client.post(address("workjob_act"), data).status_code == 302
    assert not LogEntry.objects.exists()


@pytest.mark.parametrize("cursor", ["x", "W10=", "WzEsMiwzXQ==", "bnVsbA==", "Ly8=", "é"])
def test_a_cursor_that_is_none_is_told_so_and_lists_nothing(admin_client, cursor):
    scene.items("products", ready=2)
    answer = admin_client.get(address("items_changelist", after=cursor))
    assert answer.context["rows"] == []
    assert f"There is no page {cursor}." in answer.content.decode()


def test_nobody_is_sent_to_another_site(admin_client):
    answer = post(admin_client, "workjob", "", back="https://elsewhere.example/")
    assert answer["Location"].startswith("/admin/")


# Queues


def lever(client, verb, name, **more):
    return client.post(address("queuerecord_act"), {"verb": verb, "name": name, "confirmed": "yes", **more})


HELD = "An open transaction holds one of the rows. Go on once it has ended."


def lock_timeout():
    with connection.cursor() as cursor:
        cursor.execute("SHOW lock_timeout")
        return cursor.fetchone()[0]


@pytest.fixture
def held(connect, monkeypatch):
    """`held(table, where)`: a stranger's open transaction that holds some rows; a connection."""
    from django_workqueue import steering

    monkeypatch.setattr(steering, "PATIENCE", timedelta(milliseconds=50))

    def hold(table, where):
        stranger = connect(autocommit=False)
        assert stranger.execute(f"SELECT 1 FROM {table} WHERE {where} FOR UPDATE").fetchall()
        return stranger

    return hold


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("around", [nullcontext, transaction.atomic])
def test_a_ticked_row_that_a_transaction_holds_is_left_and_the_others_are_done(admin_client, held, around):
    scene.jobs("mails", ready=5)
    numbers = list(WorkJob.objects.filter(outcome=None).order_by("id").values_list("id", flat=True))
    stranger = held("workqueue_job", f"id = {numbers[1]}")
    with around():
        answer = post(admin_client, "workjob", "priority", [["mails", number] for number in numbers], priority="7")
        assert HELD in answer.content.decode()
        assert answer.context["done"] == 4
        assert answer.context["selected"] == [json.dumps(["mails", numbers[1]])]
        assert lock_timeout() == "0"
    changed = set(WorkJob.objects.filter(priority=7).values_list("id", flat=True))
    assert changed == set(numbers) - {numbers[1]}
    assert {entry.object_id for entry in LogEntry.objects.all()} == {str(number) for number in changed}
    stranger.rollback()
    hidden = _fields(answer.content.decode(), "workjob")
    answer = admin_client.post(address("workjob_act"), hidden)
    assert answer.status_code == 302
    assert WorkJob.objects.filter(priority=7).count() == LogEntry.objects.count() == 5
    assert "5 were changed" in admin_client.get(address("workjob_changelist")).content.decode()


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("around", [nullcontext, transaction.atomic])
@pytest.mark.parametrize("done", [0, 2])
def test_an_act_on_all_that_match_ends_at_a_row_that_a_transaction_holds(admin_client, held, monkeypatch, around, done):
    from django_workqueue import steering

    monkeypatch.setattr(steering, "BATCH", 2)
    scene.items("products", ready=5)
    stranger = held("workqueue_item", f"key = 'product-00000{done + 1}'")
    asked = {"scope": "all", "queue": "products", "key": "product"}
    with around():
        answer = post(admin_client, "items", "priority", priority="77", **asked)
        assert HELD in answer.content.decode()
        assert answer.context["done"] == done
        assert lock_timeout() == "0"
    assert WorkItem.objects.filter(priority=77).count() == done
    assert [entry.get_change_message()[-3:] for entry in LogEntry.objects.all()] == [f": {done}"] * (done > 0)
    stranger.rollback()
    answer = admin_client.post(address("items_act"), _fields(answer.content.decode()))
    assert answer.status_code == 302
    assert WorkItem.objects.filter(priority=77).count() == 5
    assert "5 were changed" in admin_client.get(address("items_changelist")).content.decode()


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(("listed", "verb"), VERBS, ids=[f"{listed}-{verb.name}" for listed, verb in VERBS])
def test_no_act_waits_for_a_transaction_to_let_go(admin_client, held, listed, verb):
    scene.jobs("mails", **ONE_OF_EACH)
    scene.items("products", **ONE_OF_EACH)
    if listed == "workjob":
        held("workqueue_job", "true")
        rows = [["mails", number] for number in WorkJob.objects.values_list("id", flat=True)]
    else:
        held("workqueue_item", "true")
        rows = [["products", key] for key in WorkItem.objects.values_list("key", flat=True)]
    before = everything()
    assert HELD in post(admin_client, listed, verb.name, rows, priority="77").content.decode()
    assert everything() == before
    assert not LogEntry.objects.exists()


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("verb", ["pause", "resume", "retry", "purge"])
def test_no_lever_waits_for_a_transaction_to_let_go(admin_client, held, verb):
    scene.record("products", "items")
    scene.items("products", stalled=2)
    if verb == "resume":
        QueueRecord.objects.update(paused_at=Now())
    held("workqueue_queue", "true").execute("LOCK TABLE workqueue_item IN SHARE MODE")
    answer = lever(admin_client, verb, "products", what="finished")
    assert HELD in admin_client.get(answer["Location"]).content.decode()
    assert not LogEntry.objects.exists()


def test_a_queue_is_paused_and_resumed(admin_client):
    from django_workqueue import JobQueue

    queue = JobQueue("mails")
    scene.jobs("mails", ready=1)
    lever(admin_client, "pause", "mails")
    assert queue.is_paused()
    assert "paused" in admin_client.get(address("dashboard")).content.decode()
    lever(admin_client, "resume", "mails")
    assert not queue.is_paused()


@pytest.mark.parametrize(("what", "left"), [("waiting", 3), ("finished", 3), ("everything", 0)])
def test_a_keyed_queue_is_purged_of_what_was_chosen(admin_client, what, left):
    scene.items("products", **ONE_OF_EACH)
    scene.items("others", ready=1)
    InboxEntry.objects.bulk_create([])
    lever(admin_client, "purge", "products", what=what)
    assert WorkItem.objects.filter(queue="products").count() == left
    assert WorkItem.objects.filter(queue="others").count() == 1


@pytest.mark.parametrize(("what", "left"), [("waiting", 6), ("finished", 3), ("everything", 0)])
def test_a_job_queue_is_purged_of_what_was_chosen(admin_client, what, left):
    scene.jobs("mails", **ONE_OF_EACH)
    lever(admin_client, "purge", "mails", what=what)
    assert WorkJob.objects.filter(queue="mails").count() == left


def test_a_purge_reaches_into_the_inbox(admin_client):
    Queue("products").enqueue("a")
    assert InboxEntry.objects.count() == 1
    lever(admin_client, "purge", "products", what="waiting")
    assert InboxEntry.objects.count() == 0


def test_all_that_is_dead_or_stalled_is_retried(admin_client):
    scene.items("products", stalled=3, completed=1)
    scene.jobs("mails", stalled=3, completed=1)
    for name in ("products", "mails"):
        lever(admin_client, "retry", name)
    assert not WorkItem.objects.filter(stalled_at__isnull=False).exists()
    assert not WorkJob.objects.filter(outcome="dead").exists()
    assert WorkJob.objects.filter(outcome="cancelled").count() == 3


@pytest.mark.django_db(transaction=True)
def test_a_queue_is_given_a_partition_of_its_own_and_gives_it_up(admin_client):
    from django_workqueue.partitions import partitions

    scene.items("products", ready=3)
    lever(admin_client, "partition", "products")
    assert "products" in {each.queue for each in partitions()}
    assert "of its own" in admin_client.get(address("queuerecord_detail", name="products")).content.decode()
    lever(admin_client, "unpartition", "products")
    assert "products" not in {each.queue for each in partitions()}
    assert WorkItem.objects.count() == 3


def test_a_key_is_enqueued_by_hand(admin_client):
    scene.record("products", "items")
    form = {"queue": "products", "key": " a key ", "priority": "2", "delay": "0"}
    answer = admin_client.post(address("items_enqueue"), form)
    assert answer.status_code == 302
    assert InboxEntry.objects.get().key == " a key "
    assert admin_client.get(answer["Location"]).context["state"] == "arriving"
    assert LogEntry.objects.get().content_type.model == "workitem"


@pytest.mark.parametrize("key", ["", "a\nb", "x" * 513, "ä" * 300, "a\x00b"])
def test_a_key_that_cannot_be_is_refused_in_words(admin_client, key):
    scene.record("products", "items")
    form = {"queue": "products", "key": key, "priority": "0", "delay": "0"}
    answer = admin_client.post(address("items_enqueue"), form)
    assert answer.context["form"].errors["key"]
    assert not InboxEntry.objects.exists()


def test_a_key_that_the_queue_here_cannot_decode_is_refused(admin_client):
    form = {"queue": "tiles", "key": "no tile", "priority": "0", "delay": "0"}
    answer = admin_client.post(address("items_enqueue"), form)
    assert "does not decode" in str(answer.context["form"].errors)


@pytest.mark.parametrize(
    "key", ['["a",8,8,8]', '["a", 8, 8, 8]', ' ["a",8,8,8] ', '["a",8.0,8,8]', '["\\u0061",8,8,8]']
)
def test_a_key_is_enqueued_as_its_queue_stores_it(admin_client, key):
    form = {"queue": "tiles", "key": key, "priority": "0", "delay": "0"}
    answer = admin_client.post(address("items_enqueue"), form)
    assert InboxEntry.objects.get().key == '["a",8,8,8]'
    assert answer["Location"] == address("items_detail", queue="tiles", key='["a",8,8,8]')
    assert json.loads(LogEntry.objects.get().object_id) == ["tiles", '["a",8,8,8]']


def test_a_key_of_a_queue_that_this_process_has_no_codec_of_is_enqueued_as_it_was_typed(admin_client):
    scene.record("products", "items")
    form = {"queue": "products", "key": "[8, 8, 8]", "priority": "0", "delay": "0"}
    admin_client.post(address("items_enqueue"), form)
    assert InboxEntry.objects.get().key == "[8, 8, 8]"


@pytest.mark.parametrize("key", ["08", "+8", " 8", "8.0"])
def test_a_number_that_is_not_written_as_it_is_stored_is_refused(admin_client, key):
    queue = Queue("numbers", key=int)
    scene.record(queue.name, "items")
    form = {"queue": queue.name, "key": key, "priority": "0", "delay": "0"}
    assert admin_client.post(address("items_enqueue"), form).context["form"].errors["key"]
    assert not InboxEntry.objects.exists()


class Lenient:
    """Decodes what it does not encode."""

    def encode(self, key):
        return json.dumps(key["name"])

    def decode(self, text):
        return json.loads(text)


@pytest.mark.parametrize("key", ["{}", "[]", "7", f'{{"name": "{"ä" * 250}"}}'])
def test_a_key_that_the_codec_decodes_and_does_not_encode_is_refused(admin_client, key):
    queue = Queue("lenient", key=Lenient())
    scene.record(queue.name, "items")
    form = {"queue": queue.name, "key": key, "priority": "0", "delay": "0"}
    assert admin_client.post(address("items_enqueue"), form).context["form"].errors["key"]
    assert not InboxEntry.objects.exists()
