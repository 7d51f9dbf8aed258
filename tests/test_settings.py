"""Settings are judged once, and again when they change."""

from datetime import timedelta

import pytest
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
