"""What is wrong, or soon will be, with the queues of a database: findings, each with what to do about it.

`examine` is all that others need. It changes nothing, and each of its questions is given up by the server after a
while, so that it can be asked of a database in trouble.
"""

from .examining import examine
from .findings import Finding, Limits, Severity

__all__ = ["Finding", "Limits", "Severity", "examine"]
