"""A database of the check's own: made on the project's server, moved into, and dropped at the end."""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from urllib.parse import quote, urlsplit

import psycopg
from django.core.management import call_command
from django.db import connections
from psycopg import sql

from django_workqueue import notify
from testproject.tiles.queues import letters, tiles

from .errors import DemoError


@contextmanager
def scratch() -> Iterator[Mapping[str, str]]:
    """This process uses an empty, migrated database inside the block; yields the environment for others to do so."""
    settings = connections["default"].settings_dict
    home, name = settings["NAME"], f"demo_check_{os.getpid()}"
    try:
        root = psycopg.connect(address(home), autocommit=True)
        root.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
    except psycopg.Error as error:
        raise DemoError(f"The check wants a database of its own and cannot make it: {error}") from error
    connections.close_all()
    settings["NAME"] = name
    try:
        call_command("migrate", verbosity=0, interactive=False)
        yield {"DATABASE_URL": address(name)}
    finally:
        tiles.close()
        letters.close()
        notify.close()
        connections.close_all()
        settings["NAME"] = home
        with root:  # with force, for requests that were still being answered
            root.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


def address(name: str) -> str:
    """The URL of a database on the project's server."""
    if given := os.environ.get("DATABASE_URL"):
        return urlsplit(given)._replace(path=f"/{quote(name, safe='')}").geturl()
    settings = connections["default"].settings_dict
    return f"postgresql://{settings['USER']}@{quote(settings['HOST'], safe='')}/{quote(name, safe='')}"
