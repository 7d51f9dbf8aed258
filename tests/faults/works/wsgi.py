"""What gunicorn preloads: enqueues before it forks, so that the workers inherit a batcher that has been in use."""

import os

from django.core.wsgi import get_wsgi_application

application = get_wsgi_application()

if os.environ.get("FAULTS_BEFORE_FORK"):
    from tests.faults.producing import ask

    ask("faults-keys", [f"preloaded-{os.getpid()}"])
