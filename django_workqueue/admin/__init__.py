"""The admin: what queues hold and what happens to them, and the levers, inside Django's own admin.

Pages only: what they show and do is the library's (`dashboard`, `browsing`, `steering`).
"""

from . import queues
from .dashboard import DashboardAdmin

__all__ = ["DashboardAdmin"]
