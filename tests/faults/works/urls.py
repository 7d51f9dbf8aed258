"""The routes of the web servers that scenarios start."""

urlpatterns: list[object] = []
