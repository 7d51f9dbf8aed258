"""One statement with a hole for the queue's name."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import ClassVar

from psycopg import sql


class Statement:
    """A constant text in which `{Q}` stands for the queue's name as a quoted literal.

    `prepare` tells whether our own connections may keep a server-side plan of it (see docs, "Plans"). `ordered`
    says that an index has the rows in the order they are wanted in, so that the planner has nothing to sort: where
    it believes that the queue holds next to nothing, it would rather read all of it by another index. A `silent` one
    returns nothing.
    """

    every: ClassVar[dict[str, Statement]] = {}

    def __init__(
        self,
        name: str,
        text: str,
        *,
        prepare: bool = True,
        ordered: bool = False,
        silent: bool = False,
        for_people: bool = False,
    ) -> None:
        self.name = name
        self.text = re.sub(r"\s+", " ", text).strip()
        self.prepare = prepare and not ordered
        self.ordered = ordered
        self.silent = silent
        self.for_people = for_people
        if name in self.every:
            raise ValueError(f"there is a statement {name!r} already")
        self.every[name] = self

    def __repr__(self) -> str:
        return f"<Statement {self.name}>"

    def of(self, queue: str) -> str:
        """The statement for one queue, ready for psycopg's placeholders."""
        return _compose(self.text, queue)


@lru_cache(maxsize=4096)
def _compose(text: str, queue: str) -> str:
    literal = sql.Literal(queue).as_string(None).strip().replace("%", "%%")
    return text.replace("{Q}", literal)
