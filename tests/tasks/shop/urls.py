"""No pages: the system checks want a module."""

from typing import Any

urlpatterns: list[Any] = []
