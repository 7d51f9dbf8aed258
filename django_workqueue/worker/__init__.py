"""The worker: claims what is due, runs its handlers, and writes what became of it.

`Worker` is all that others need; `serve` is what the command calls.
"""

from .counts import Counts
from .reload import reloading
from .serve import serve
from .shift import Options
from .supervise import Unavailable
from .worker import Unworkable, Worker, WornOut

__all__ = ["Counts", "Options", "Unavailable", "Unworkable", "Worker", "WornOut", "reloading", "serve"]
