"""What the admin's tests share: its addresses, and users who may do some of it."""

from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.auth.models import Permission, User
from django.test import Client
from django.urls import reverse

from django_workqueue import dashboard


def address(name: str, /, *args: Any, **query: Any) -> str:
    """The address of a page of the admin."""
    from django_workqueue.admin.pages import url

    return url("admin", name, *args, **query)


@pytest.fixture(autouse=True)
def nothing_remembered() -> None:
    """The dashboard finds everything out anew."""
    dashboard.forget()


@pytest.fixture
def user_who_may(db: None) -> Callable[..., Client]:
    """`user_who_may("view_workjob", …)`: a client logged in as staff with these permissions and no others."""

    def make(*codenames: str) -> Client:
        user = User.objects.create_user(f"user{User.objects.count()}", is_staff=True)
        permissions = Permission.objects.filter(content_type__app_label="workqueue", codename__in=codenames)
        assert permissions.count() == len(codenames)
        user.user_permissions.set(permissions)
        client = Client()
        client.force_login(user)
        return client

    return make


@pytest.fixture
def index() -> str:
    """The address of the admin's own index."""
    return reverse("admin:index")
