"""The demo's app."""

from django.apps import AppConfig


class TilesConfig(AppConfig):
    """A map whose tiles are rendered by workers."""

    name = "testproject.tiles"
    label = "tiles"
