"""A project needs a URLconf."""

from typing import Any

urlpatterns: list[Any] = []
