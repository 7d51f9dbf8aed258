"""Projects that do not use the backend: nothing of tasks is imported, and on Django 5.2 there need be none."""

import os
import subprocess
import sys

import django
import pytest

from tests import conftest as house
from tests.tasks.conftest import BACKEND
from tests.tasks.native import NAME

BLOCKED = "import sys; sys.modules['django_tasks'] = None\n"  # as if it was not installed


def run(code: str, *, tasks: str = "") -> subprocess.CompletedProcess[str]:
    """A process of its own that is Django, without the backport, under these `TASKS`."""
    settings = {"DJANGO_SETTINGS_MODULE": "tests.tasks.settings", "SHOP_TASKS": tasks}
    return subprocess.run(
        [sys.executable, "-c", f"{BLOCKED}import django; django.setup()\n{code}"],
        env=os.environ | house.environment() | settings | {"PYTHONPATH": str(house.PROJECT)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.usefixtures("transactional_db")
def test_a_project_without_tasks_imports_no_backend_and_needs_no_backport() -> None:
    done = run(
        "from django.core.management import call_command\n"
        "from django.test.utils import override_settings\n"
        "from django_workqueue import JobQueue, Worker, discovery\n"
        "jobs = JobQueue('without')\n"
        "jobs.handler('kind')(lambda job: 7)\n"
        "number = jobs.enqueue('kind')\n"
        "with override_settings(WORKQUEUE_AUTODISCOVER=None):\n"
        "    call_command('check')\n"
        "    discovery.autodiscover()\n"
        "    Worker(['without']).drain()\n"
        "print(jobs.get(number).result, 'django_workqueue.backend' in sys.modules)\n"
    )
    assert done.stdout.splitlines()[-1:] == ["7 False"], done.stderr


def test_where_there_are_no_tasks_the_setting_is_refused_in_a_sentence() -> None:
    done = run(
        "from django_workqueue import discovery\ndiscovery.bring()\nprint('brought')",
        tasks='{"default": {"BACKEND": "%s"}}' % BACKEND,  # noqa: UP031
    )
    if django.VERSION >= (6, 0):
        assert done.stdout == "brought\n", done.stderr
    else:
        assert "needs the backport django-tasks: pip install django-workqueue[tasks]" in done.stderr


def test_where_there_are_no_tasks_check_and_commands_say_so_in_a_sentence() -> None:
    done = run(
        "from django.core.management import CommandError, call_command\n"
        "from django.conf import settings\n"
        "from django_workqueue.checks import check_all\n"
        "settings.WORKQUEUE_AUTODISCOVER = None\n"
        "print([message.msg for message in check_all() if message.id == 'workqueue.E005'])\n"
        "for command in ('stats', 'reap', 'doctor', 'work'):\n"
        "    try: call_command(f'workqueue_{command}', *(['--drain'] if command == 'work' else []))\n"
        "    except CommandError as error: print(error)\n",
        tasks='{"default": {"BACKEND": "%s"}}' % BACKEND,  # noqa: UP031
    )
    if django.VERSION < (6, 0):
        assert done.stdout.count("TASKS['default']: WorkqueueBackend on Django 5") == 5, done.stdout + done.stderr
    assert "Traceback" not in done.stderr


def test_a_misspelt_backend_of_ours_is_told_to_the_worker() -> None:
    done = run(
        "from django_workqueue import discovery\ndiscovery.bring()",
        tasks='{"default": {"BACKEND": "django_workqueue.backends.WorkqueueBackend"}}',
    )
    assert "No module named 'django_workqueue.backends'" in done.stderr


def test_only_one_of_the_two_is_used() -> None:
    assert ("django.tasks" if django.VERSION >= (6, 0) else "django_tasks") == NAME
    from django_workqueue.backend import native

    assert native.Task.__module__ == f"{NAME}.base"
