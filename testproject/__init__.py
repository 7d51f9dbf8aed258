"""A Django project around django_workqueue: the demo, and the ground that the tests stand on."""
