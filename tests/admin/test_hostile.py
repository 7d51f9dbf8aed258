"""Keys, kinds, payloads, errors and queue names of strangers' making are shown as text, and as nothing else."""

import base64
import json
import re
from urllib.parse import urlencode

import pytest
from django.db import connection

from django_workqueue.models import WorkJob
from tests.admin import scene
from tests.admin.conftest import address

pytestmark = pytest.mark.django_db

CORPUS = [
    "<script>window.harm=1</script>",
    "\"><img src=x onerror='window.harm=1'>",
    "'><svg/onload=window.harm=1>",
    "</title></textarea></pre><script>window.harm=1</script>",
    "javascript:window.harm=1",
    "{{ 7|add:7 }}{% debug %}",
    "--><b>bold</b><!--",
    "\u202e\u2066reversed",
    "%(harm)s%s{0}{harm}",
    "'; DROP TABLE workqueue_item; --",
    "&lt;script&gt;&amp;",
    "../../admin/logout/?a=b&c#d",
    "🦊 ünïcödé \u0007\t",
]
QUEUES = [text for text in CORPUS if all(ord(letter) > 31 for letter in text)]


def fill():
    """Rows of every kind with the corpus in every text."""
    for text in QUEUES:
        scene.record(f"k{text}", "items")
        scene.past(f"k{text}", minutes=3, busy=3)
    with connection.cursor() as cursor:
        for text in CORPUS:
            queue = QUEUES[CORPUS.index(text) % len(QUEUES)]
            cursor.execute(
                "INSERT INTO workqueue_item (queue, key, last_error, stalled_at) VALUES (%s, %s, %s, now())",
                [f"k{queue}", text, text],
            )
            errors = [{"type": text, "message": text, "traceback": text, "worker": text, "at": text, "attempt": text}]
            cursor.execute(
                "INSERT INTO workqueue_job (queue, kind, payload, max_attempts, errors, outcome, finished_at, result,"
                " worker_ids, metadata) VALUES (%s, %s, %s, 1, %s, 'dead', now(), %s, %s, %s)",
                [f"j{queue}", text, *map(json.dumps, ({text: text}, errors, text, [text], {text: text}))],
            )
            scene.worker(f"w{text}", [text])


def places():
    """Every page that shows some of it."""
    lists = ["dashboard", "queuerecord_changelist", "workerrecord_changelist", "workjob_changelist", "items_changelist"]
    yield from map(address, lists)
    yield address("items_changelist", state="stalled")
    yield address("workjob_changelist", state="dead")
    for job in WorkJob.objects.order_by("id"):
        yield address("workjob_change", job.id)
    for position, text in enumerate(CORPUS):
        queue = QUEUES[position % len(QUEUES)]
        yield address("items_detail", queue=f"k{queue}", key=text)
        yield address("queuerecord_detail", name=f"k{queue}")
        yield address("items_changelist", queue=text, key=text, age=text, state=text, after=text)
        yield address("workjob_changelist", queue=text, kind=text, payload=json.dumps(text), id=text)


def test_it_is_escaped_on_every_page(admin_client):
    fill()
    for path in places():
        answer = admin_client.get(path)
        assert answer.status_code == 200, path
        shown = answer.content.decode()
        for text in ("<script>window", "<img src=x", "<svg/onload", "<b>bold", "onerror='window"):
            assert text not in shown, (path, text)
        assert 'href="javascript:' not in shown
        assert "\u202e" not in re.sub(r'(value|title|aria-label)="[^"]*"', "", shown), path


def test_it_is_escaped_where_it_is_asked_about_and_told(admin_client):
    fill()
    for job in WorkJob.objects.order_by("id"):
        data = {"verb": "retry", "scope": "chosen", "select": json.dumps([job.queue, job.id]), "kind": job.kind}
        for more in ({}, {"scope": "all"}, {"confirmed": "yes"}):
            answer = admin_client.post(address("workjob_act"), data | more, follow=True)
            assert answer.status_code == 200
            assert "<script>window" not in answer.content.decode()
    assert not WorkJob.objects.filter(outcome="dead").exists()
    assert "<script>window" not in admin_client.get("/admin/").content.decode()


def cursor(*parts):
    return base64.urlsafe_b64encode(json.dumps(parts).encode()).decode()


@pytest.mark.parametrize("text", ["\0", "a\0b", "\ud800"])
def test_what_no_text_of_the_servers_can_hold_is_no_error_in_an_address(admin_client, text):
    scene.record("tiles", "items")
    for page in ("items_changelist", "workjob_changelist"):
        for name in ("queue", "kind", "key", "payload", "id", "state", "age"):
            asked = urlencode({name: text}, errors="replace")
            assert admin_client.get(f"{address(page)}?{asked}").status_code == 200, (page, name)
        for after in (cursor(0, 0, 1, text), cursor(0, 0, text, "tiles"), cursor(0, 0, text, text)):
            assert admin_client.get(address(page, after=after)).status_code == 200, (page, after)
