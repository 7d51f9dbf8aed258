"""Group commit: many callers, one write in flight.

Knows nothing of queues or SQL: a `Lane` supplies the write, the owner of the `Batcher` says which errors mean what.
"""

from .batcher import Batcher
from .calls import Lane
from .process import threads_available
from .writer import Disposition

__all__ = ["Batcher", "Disposition", "Lane", "threads_available"]
