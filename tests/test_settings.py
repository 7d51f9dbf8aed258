"""Settings are read, and judged, at each use."""

from datetime import timedelta

import pytest
from django.conf import settings as project
from django.core.exceptions import ImproperlyConfigured
from django.test import override_settings

from django_workqueue import conf


def test_a_setting_that_is_overridden_holds_at_once_and_no_longer_than_that():
    usual = conf.enqueue_timeout()
    with override_settings(WORKQUEUE_ENQUEUE_TIMEOUT=3):
        assert conf.enqueue_timeout() == timedelta(seconds=3)
        with override_settings(WORKQUEUE_ENQUEUE_TIMEOUT=timedelta(minutes=1)):
            assert conf.enqueue_timeout() == timedelta(minutes=1)
        assert conf.enqueue_timeout() == timedelta(seconds=3)
    assert conf.enqueue_timeout() == usual


def test_a_wrong_value_is_refused_each_time_it_is_asked_for(settings):
    settings.WORKQUEUE_BATCH_MAX = 0
    for _ in range(2):
        with pytest.raises(ImproperlyConfigured, match="WORKQUEUE_BATCH_MAX must be a positive integer, not 0"):
            conf.batch_max()
    settings.WORKQUEUE_BATCH_MAX = 10
    assert conf.batch_max() == 10


def test_a_setting_that_is_assigned_holds_without_a_word_to_anybody(monkeypatch):
    monkeypatch.setattr(project, "WORKQUEUE_ENQUEUE_TIMEOUT", 3, raising=False)
    assert conf.enqueue_timeout() == timedelta(seconds=3)
    monkeypatch.setattr(project, "WORKQUEUE_ENQUEUE_TIMEOUT", 4)
    assert conf.enqueue_timeout() == timedelta(seconds=4)
    monkeypatch.undo()
    assert conf.enqueue_timeout() == timedelta(seconds=10)


def test_what_a_project_says_nothing_of_is_as_documented():
    with override_settings():
        for name in conf.DEFAULTS:
            if hasattr(project, name):
                delattr(project, name)
        assert conf.database() == "default"
        assert conf.notify() is True
        assert conf.listen_database() is None
        assert conf.poll_interval() == timedelta(seconds=5)
        assert conf.enqueue_timeout() == timedelta(seconds=10)
        assert conf.batch_max() == 1000
        assert conf.middleware() == []
        assert conf.autodiscover() == "tasks"
        assert conf.history() == timedelta(days=7)


def test_the_alias_to_listen_on_stands_in_for_the_queues_own_and_no_other():
    assert conf.listen_alias("default") == "default"
    with override_settings(WORKQUEUE_LISTEN_DATABASE="direct"):
        assert conf.listen_alias("default") == "direct"
        assert conf.listen_alias("other") == "other"
        with override_settings(WORKQUEUE_DATABASE="other"):
            assert conf.listen_alias("default") == "default"
            assert conf.listen_alias("other") == "direct"
