"""The examination: every check, of every alias that has queues."""

from __future__ import annotations

from django.db import connections

from django_workqueue import conf, database, engine

from . import project, queues, tables
from .asking import Server, findings
from .findings import Finding, Limits, Severity

USUAL = Limits()


def examine(using: str | None = None, *, limits: Limits = USUAL) -> list[Finding]:
    """Everything that is not as it should be, the worst first.

    Of the alias `using`; else of each that `WORKQUEUE_DATABASE` or a queue of this process names. Which kinds nobody
    handles is judged by the handlers of this process: import them first (`discovery.autodiscover`). Raises what the
    database raises where it does not answer at all.
    """
    aliases = {using} if using else {conf.database()} | {source.alias for source in engine.registered()}
    found = [finding for alias in sorted(aliases) for finding in _examine(alias, limits)]
    return sorted(found, key=lambda finding: (-finding.severity, finding.database, finding.code, finding.title))


def _examine(alias: str, limits: Limits) -> list[Finding]:
    database.require_version(connections[alias])
    server = Server(alias)
    found = list(findings(project.migrations, server, limits))
    if not any(finding.severity is Severity.SERIOUS for finding in found):
        for check in (*tables.CHECKS, *queues.CHECKS, *project.CHECKS):
            found += findings(check, server, limits)
    return [Finding(each.code, each.severity, each.title, each.detail, each.advice, database=alias) for each in found]
