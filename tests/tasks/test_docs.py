"""The examples of docs/how-to/django-tasks.md, run as they are printed there (on the backport, with its name)."""

import re
import sys
import types
from collections.abc import Iterator
from typing import Any

import pytest
from django.core import mail
from django.test import override_settings

from django_workqueue.testing import drain
from django_workqueue.worker import Counts, Worker
from tests import pages
from tests.tasks.conftest import TASKS
from tests.tasks.native import FAILED, NAME, READY, TAKES_KEYWORDS, TaskResultStatus, default_task_backend

pytestmark = [
    pytest.mark.usefixtures("db"),
    pytest.mark.filterwarnings(
        "ignore:.*default mailer"
    ),  # Django 6.1 would have MAILERS, which older ones do not know
]

PAGE = "how-to/django-tasks.md"


@pytest.fixture
def page(request: pytest.FixtureRequest) -> Iterator[Any]:
    """A module with all that the page defines, under the last `TASKS` that it sets."""
    module = types.ModuleType("page_of_tasks")
    sys.modules[module.__name__] = module
    every = pages.examples(PAGE)
    settings = [example for example in every if "TASKS =" in example]
    for example in settings:
        pages.execute(PAGE, example, module.__dict__)
    with override_settings(TASKS=module.TASKS):
        for example in every:
            if example not in settings and (TAKES_KEYWORDS or "max_attempts=" not in example):
                pages.execute(PAGE, example.replace("django.tasks", NAME), module.__dict__)
        yield module
    del sys.modules[module.__name__]


def test_the_tasks_run_and_their_results_are_read(page: Any) -> None:
    later = page.sign_up("ada@example.com")
    now = page.count_words.enqueue("one two three")
    assert Worker(["default", "mail"]).drain() == Counts(completed=2)
    assert [message.to for message in mail.outbox] == [["ada@example.com"]]
    assert page.what_became_of(now.id) == {"words": 3, "attempt": 1}
    assert (default_task_backend.get_result(later).status, page.what_became_of(later)) == (READY, [])
    assert (now.id, str(TaskResultStatus.SUCCESSFUL)) in page.finished


def test_the_options_are_what_the_page_says(page: Any) -> None:
    options = default_task_backend.options
    assert sorted(options) == ["max_attempts", "retention", "timeout"]
    assert default_task_backend.check() == []
    with override_settings(TASKS=TASKS):
        assert default_task_backend.check() == []


def test_the_table_lists_each_option(page: Any) -> None:
    from django_workqueue.backend.options import READERS

    assert re.findall(r"^\| `(\w+)` \|", pages.text(PAGE), re.MULTILINE) == list(READERS)


def test_a_cancelled_task_is_forgotten(page: Any) -> None:
    result = page.welcome.enqueue("ada@example.com")
    assert page.forget(result) == 1
    result.refresh()
    assert result.status == FAILED


def test_the_tests_pass(page: Any) -> None:
    page.test_a_welcome_is_asked_for()
    drain("mail")
    mail.outbox.clear()
    page.test_a_welcome_is_sent(mail.outbox)


if TAKES_KEYWORDS:

    def test_permanent_error_and_retry_do_what_the_page_says(page: Any) -> None:
        good, expired, busy = (page.charge.enqueue(1, card) for card in ("valid", "expired", "busy"))
        assert Worker(["default"]).drain() == Counts(completed=1, failed=1)
        for result in (good, expired, busy):
            result.refresh()
        assert (good.return_value, expired.status, busy.status) == ("charged", FAILED, READY)
        assert (expired.attempts, busy.attempts) == (1, 0)
