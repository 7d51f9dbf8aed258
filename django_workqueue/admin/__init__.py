"""The admin: what queues hold and what happens to them, and the levers, inside Django's own admin.

Pages only: what they show and do is the library's (`dashboard`, `browsing`, `steering`).
"""

from .dashboard import DashboardAdmin
from .items import ItemAdmin
from .jobs import JobAdmin
from .queues import QueueAdmin
from .workers import WorkerAdmin

__all__ = ["DashboardAdmin", "ItemAdmin", "JobAdmin", "QueueAdmin", "WorkerAdmin"]
