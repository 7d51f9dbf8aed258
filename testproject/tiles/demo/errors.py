"""What can keep the demo from running, in sentences for people."""


class DemoError(Exception):
    """The demo cannot go on; the message says why and what to do."""


class PortTakenError(DemoError):
    """Another program listens on the port."""
