"""The dashboard."""

import pytest
from django.urls import reverse

from django_workqueue import JobQueue, Queue

pytestmark = pytest.mark.django_db


def test_the_dashboard_is_linked_from_the_admin_index_and_the_app_page(admin_client):
    there = reverse("admin:workqueue_dashboard")
    for page in (reverse("admin:index"), reverse("admin:app_list", args=["workqueue"])):
        assert f'href="{there}"' in admin_client.get(page).content.decode()


def test_the_dashboard_shows_every_queue(admin_client):
    Queue("products").enqueue("a", "b")
    JobQueue("mails").enqueue("send", {"to": "x"})
    shown = admin_client.get(reverse("admin:workqueue_dashboard")).content.decode()
    assert "products" in shown
    assert "mails" in shown
