"""The form that asks for a welcome mail, and the job that sends it."""

import re
from contextlib import suppress

import pytest
from django.contrib.auth import get_user_model
from django.core import mail
from django.db import transaction
from django.test import Client
from django.urls import reverse

import testproject.tiles.tasks  # noqa: F401 - the handlers
from django_workqueue import JobStatus
from django_workqueue.testing import assert_enqueued, drain
from testproject.tiles import activity, postman, welcome
from testproject.tiles.queues import WELCOME, letters
from tests.demo.page import holds_nothing_inline

pytestmark = pytest.mark.django_db


def submit(client, address, **more):
    return client.post(reverse("tiles:mail"), {"address": address, **more})


def sent(address):
    """The job once nothing is left to be tried."""
    job = welcome.enqueue(address)
    drain(letters, ignore_delays=True)
    return letters.get(job)


def recipients():
    return [message.to for message in mail.outbox]


# The form


def test_the_page_offers_an_address_for_each_outcome(client):
    response = client.get(reverse("tiles:mail"))
    assert response.status_code == 200
    for example in postman.EXAMPLES:
        assert f'value="{example.address}"' in response.content.decode()
        assert example.outcome in response.content.decode()


def test_any_address_becomes_a_job_and_leads_to_where_one_sees_it(client):
    response = submit(client, " grace@example.org ")
    assert (response.status_code, response["Location"]) == (302, reverse("tiles:activity"))
    assert_enqueued(letters, WELCOME, payload={"to": "grace@example.org"})
    assert letters.stats().ready == 1


@pytest.mark.parametrize(
    "address",
    ["", "grace", "grace@", "@example.org", "a@b@example.org", "a b@example.org", "a@example.org\nBcc: b@example.org"],
)
def test_what_is_no_address_is_refused_and_shown_again(client, address):
    response = submit(client, address)
    assert response.status_code == 400
    assert "errorlist" in response.content.decode()
    assert letters.stats().ready == 0


def test_a_longer_address_than_there_are_is_refused(client):
    response = submit(client, f"{'a' * 60}@{'b.' * 100}example.org")
    assert response.status_code == 400
    assert letters.stats().ready == 0


def test_only_our_own_form_may_send():
    client = Client(enforce_csrf_checks=True)
    assert submit(client, "grace@example.org").status_code == 403
    token = re.search(r'csrfmiddlewaretoken" value="(\w+)"', client.get(reverse("tiles:mail")).content.decode())[1]
    assert submit(client, "grace@example.org", csrfmiddlewaretoken=token).status_code == 302
    assert letters.stats().ready == 1


def test_each_form_of_the_page_has_its_token(client):
    page = client.get(reverse("tiles:mail")).content.decode()
    assert page.count("csrfmiddlewaretoken") == page.count("<form") == len(postman.EXAMPLES) + 1


@pytest.mark.parametrize("name", ["mail", "activity"])
def test_the_pages_hold_nothing_inline_and_lead_to_each_other(client, name):
    page = client.get(reverse(f"tiles:{name}")).content.decode()
    holds_nothing_inline(page)
    for other in ("tiles:page", "tiles:mail", "tiles:activity", "admin:workqueue_dashboard"):
        assert f'href="{reverse(other)}"' in page


def test_the_map_leads_to_the_other_pages(client):
    page = client.get(reverse("tiles:page")).content.decode()
    for other in ("tiles:mail", "tiles:activity", "admin:workqueue_dashboard"):
        assert f'href="{reverse(other)}"' in page


@pytest.mark.django_db(transaction=True)
def test_the_job_and_the_event_come_with_one_commit_or_not_at_all(second):
    second.execute(f"LISTEN {activity.CHANNEL}")

    class Refused(Exception):
        pass

    with suppress(Refused), transaction.atomic():
        welcome.enqueue("never@example.org")
        raise Refused
    assert letters.stats().ready == 0
    job = welcome.enqueue("grace@example.org")
    (heard,) = second.notifies(timeout=10, stop_after=1)
    assert f'"job":{job},' in heard.payload
    assert "grace@example.org" in heard.payload
    assert letters.stats().ready == 1


# The job


@pytest.mark.parametrize("address", [postman.WORKS.address, "grace@example.org"])
def test_a_mail_is_sent_at_the_first_attempt(address):
    job = sent(address)
    assert (job.status, job.attempts, job.errors) == (JobStatus.COMPLETED, 1, [])
    assert recipients() == [[address]]


def test_the_busy_address_fails_twice_and_then_gets_its_mail():
    job = sent(postman.BUSY.address)
    assert (job.status, job.attempts) == (JobStatus.COMPLETED, 3)
    assert [error["type"] for error in job.errors] == ["smtplib.SMTPServerDisconnected"] * 2
    assert recipients() == [[postman.BUSY.address]]


def test_the_refused_address_is_a_dead_letter_at_once():
    job = sent(postman.GONE.address)
    assert (job.status, job.attempts) == (JobStatus.DEAD, 1)
    assert postman.GONE.address in job.last_error
    assert recipients() == []


def test_a_failure_is_tried_again_soon_enough_to_watch():
    (handler,) = letters.source.handlers
    assert 1 <= handler.backoff(1).total_seconds() <= 2
    assert 2 <= handler.backoff(2).total_seconds() <= 3


def test_the_dead_letter_links_to_its_page_in_the_admin(client):
    job = sent(postman.GONE.address)
    page = client.get(reverse("tiles:activity")).content.decode()
    client.force_login(get_user_model().objects.create_superuser("demo"))
    letter = reverse("admin:workqueue_workjob_change", args=[job.id])
    dead_letters = reverse("admin:workqueue_workjob_changelist") + "?state=dead"
    for link, shows in ((letter, "There is nobody"), (dead_letters, letter)):
        assert f'href="{link}"' in page
        response = client.get(link)
        assert response.status_code == 200
        assert shows in response.content.decode()
