"""The pages of the test project."""

from pathlib import Path

from django.contrib import admin
from django.urls import URLPattern, URLResolver, include, path

urlpatterns: list[URLPattern | URLResolver] = [path("admin/", admin.site.urls)]
if Path(__file__).with_name("tiles").joinpath("urls.py").exists():
    urlpatterns.append(path("", include("testproject.tiles.urls")))
