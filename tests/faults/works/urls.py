"""The routes of the web servers that scenarios start."""

from django.urls import path

from . import views

urlpatterns = [path("enqueue", views.enqueue), path("aenqueue", views.aenqueue)]
