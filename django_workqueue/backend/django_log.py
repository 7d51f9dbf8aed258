"""Whether Django's own log tells of a failed task, with its traceback, where the worker's log would repeat it.

By Django's defaults it does with `DEBUG`; without, all that comes of it are mails to the admins.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from django.conf import settings
from django.utils.log import AdminEmailHandler, RequireDebugFalse, RequireDebugTrue

from .native import log_task_finished


def has_told(answers: Sequence[tuple[Any, Any]]) -> bool:
    """Whether it has, given what the receivers of `task_finished` answered. Where that is not certain: no."""
    return log_task_finished is not None and (log_task_finished, None) in answers and _is_read()


def _is_read() -> bool:
    logger: logging.Logger | None = logging.getLogger("django.tasks")
    if logger is None or logger.filters or not logger.isEnabledFor(logging.ERROR):
        return False
    handlers: list[logging.Handler] = []
    while logger is not None:
        handlers += logger.handlers
        logger = logger.parent if logger.propagate else None
    return any(map(_writes, handlers)) if handlers else logging.lastResort is not None


def _writes(handler: logging.Handler) -> bool:
    if handler.level > logging.ERROR or isinstance(handler, (AdminEmailHandler, logging.NullHandler)):
        return False
    return all(map(_passes, handler.filters))


def _passes(each: Any) -> bool:
    if isinstance(each, RequireDebugTrue):
        return bool(settings.DEBUG)
    return isinstance(each, RequireDebugFalse) and not settings.DEBUG
