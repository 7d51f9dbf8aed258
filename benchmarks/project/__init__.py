"""A Django project with one keyed queue and one job queue, whose handlers do nothing but say that they started."""
