"""Metrics for Prometheus, with the `[prometheus]` extra: `WorkqueueCollector` to register, `MetricsServer` to serve it.

Every collector tells what is true of the whole database, whichever process it is in: scrape one, or aggregate over
several with `max`, never with `sum`.
"""

from .collector import WorkqueueCollector
from .server import MetricsServer

__all__ = ["MetricsServer", "WorkqueueCollector"]
