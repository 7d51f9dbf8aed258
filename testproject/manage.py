"""Django's command line for the test project."""

import os
import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parent.parent)  # so that modules have one name: testproject.*
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "testproject.settings")

    from django.core.exceptions import ImproperlyConfigured
    from django.core.management import execute_from_command_line

    from testproject.postgres import ServerError

    try:
        execute_from_command_line(sys.argv)
    except (ImproperlyConfigured, ServerError) as error:
        sys.exit(str(error))
