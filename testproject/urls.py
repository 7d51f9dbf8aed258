"""The pages of the test project."""

from importlib.util import find_spec

from django.contrib import admin
from django.urls import URLPattern, URLResolver, include, path

urlpatterns: list[URLPattern | URLResolver] = [path("admin/", admin.site.urls)]
if find_spec("testproject.tiles.urls"):
    urlpatterns.append(path("", include("testproject.tiles.urls")))
