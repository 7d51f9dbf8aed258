"""The demo's addresses."""

from django.urls import path

from . import views, welcome

app_name = "tiles"
urlpatterns = [
    path("", views.page, name="page"),
    path("tiles/status", views.status, name="status"),
    path("tiles/<slug:layer>/<int:zoom>/<int:x>/<int:y>.png", views.tile, name="tile"),
    path("tiles/<slug:layer>/look", views.look, name="look"),
    path("tiles/<slug:layer>/wait", views.wait, name="wait"),
    path("mail/", welcome.mail, name="mail"),
    path("activity/", welcome.page, name="activity"),
    path("activity/events", welcome.events, name="events"),
    path("demo/login/<str:token>/", views.admin_login, name="login"),
]
