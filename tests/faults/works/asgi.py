"""The same for ASGI servers."""

import os

from django.core.asgi import get_asgi_application

application = get_asgi_application()

if os.environ.get("FAULTS_BEFORE_FORK"):
    from tests.faults.producing import ask

    ask("faults-keys", [f"preloaded-{os.getpid()}"])
