"""The one-off link into the admin."""

import time
from datetime import timedelta
from unittest import mock

import pytest
from django.contrib.auth import get_user_model
from django.core import signing
from django.test import Client
from django.urls import reverse

from testproject.tiles import login

pytestmark = pytest.mark.django_db


def link():
    return reverse("tiles:login", args=[login.issue()])


def logged_in(client):
    return client.get(reverse("admin:index")).status_code == 200


def test_the_link_leads_into_the_admin(client):
    response = client.get(link())
    assert (response.status_code, response["Location"]) == (302, "/admin/")
    assert logged_in(client)


def test_the_link_works_once(client):
    once = link()
    client.get(once)
    second = Client()
    response = second.get(once)
    assert response.status_code == 403
    assert "no longer works" in response.content.decode()
    assert not logged_in(second)
    assert logged_in(client)


def test_the_link_expires(client):
    later = time.time() + (login.VALID_FOR + timedelta(seconds=1)).total_seconds()
    old = link()
    with mock.patch("time.time", return_value=later):
        assert client.get(old).status_code == 403


def test_a_new_link_replaces_the_one_before(client):
    first, second = link(), link()
    assert client.get(first).status_code == 403
    assert client.get(second).status_code == 302


@pytest.mark.parametrize(
    "token",
    ["x", "a:b:c", signing.dumps("!guessed", salt="testproject.tiles.login")],
    ids=["no signature", "a wrong one", "of something else"],  # it has the time in it, which no test's name may have
)
def test_a_made_up_link_is_refused(client, token):
    login.issue()
    assert client.get(reverse("tiles:login", args=[token])).status_code == 403
    assert not logged_in(client)


def test_a_refused_link_changes_nothing(client):
    good = link()
    client.get(reverse("tiles:login", args=["x"]))
    assert client.get(good).status_code == 302


def test_the_demo_user_has_no_password():
    login.issue()
    assert not get_user_model().objects.get(username=login.USERNAME).has_usable_password()
