"""The routes of the web servers that scenarios start."""

from django.urls import path

from . import views

urlpatterns = [
    path("enqueue", views.enqueue),
    path("aenqueue", views.aenqueue),
    path("transact", views.transact),
    path("atransact", views.atransact),
]
