"""Every statement on the tables that producers and workers send, as named constants.

Values are always bound. The one thing composed in is the queue's name, as a quoted literal, so that the
planner sees which partition is meant: with a parameter and a generic plan nothing is pruned.
"""

from .statement import Statement

__all__ = ["Statement"]
