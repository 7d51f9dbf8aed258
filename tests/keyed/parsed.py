"""Statements as the server's own parser reads them."""

import importlib
import pkgutil
import re
from collections.abc import Iterator
from typing import Any

import pglast
from pglast import ast, enums

from django_workqueue import sql
from django_workqueue.sql import Statement

QUEUE_COLUMN = {
    "workqueue_item": "queue",
    "workqueue_job": "queue",
    "workqueue_inbox": "queue",
    "workqueue_minute": "queue",
    "workqueue_queue": "name",
}


def every() -> dict[str, Statement]:
    """Every statement there is, by name: of each module in `sql`, so that none is missed for not being imported."""
    for module in pkgutil.iter_modules(sql.__path__):
        importlib.import_module(f"{sql.__name__}.{module.name}")
    return Statement.every


def numbered(text: str) -> str:
    """The text with psycopg's placeholders turned into the server's."""
    names: list[str] = []

    def number(match: re.Match[str]) -> str:
        if match[0] == "%%":
            return "%"
        if match[1] not in names:
            names.append(match[1])
        return f"${names.index(match[1]) + 1}"

    return re.sub(r"%%|%\((\w+)\)s", number, text)


def parse(text: str) -> ast.Node:
    """The syntax tree of one statement."""
    (raw,) = pglast.parse_sql(text)
    return raw.stmt


def nodes(tree: Any) -> Iterator[ast.Node]:
    """The tree's nodes, from the top."""
    if isinstance(tree, ast.Node):
        yield tree
        for name in tree:
            yield from nodes(getattr(tree, name))
    elif isinstance(tree, (tuple, list)):
        for each in tree:
            yield from nodes(each)


def conjuncts(where: Any) -> list[Any]:
    """What a condition wants all of."""
    if isinstance(where, ast.BoolExpr) and where.boolop == enums.BoolExprType.AND_EXPR:
        return [each for arg in where.args for each in conjuncts(arg)]
    return [] if where is None else [where]


def references(tree: ast.Node) -> Iterator[tuple[str, list[Any]]]:
    """Each reference to one of our tables outside INSERT: its alias, its table, and what its own level wants all of."""
    for node in nodes(tree):
        if isinstance(node, ast.SelectStmt):
            sources, where = node.fromClause or (), node.whereClause
        elif isinstance(node, ast.UpdateStmt):
            sources, where = (node.relation, *(node.fromClause or ())), node.whereClause
        elif isinstance(node, ast.DeleteStmt):
            sources, where = (node.relation, *(node.usingClause or ())), node.whereClause
        else:
            continue
        wanted = conjuncts(where)
        for source in sources:
            for table in _tables(source, wanted):
                yield table, wanted


def _tables(source: Any, wanted: list[Any]) -> Iterator[ast.RangeVar]:
    if isinstance(source, ast.JoinExpr):
        wanted += conjuncts(source.quals)
        yield from _tables(source.larg, wanted)
        yield from _tables(source.rarg, wanted)
    elif isinstance(source, ast.RangeTableSample):
        yield from _tables(source.relation, wanted)
    elif isinstance(source, ast.RangeVar) and source.relname in QUEUE_COLUMN:
        yield source


def column(node: Any) -> tuple[str, ...]:
    """The dotted name of a column, or nothing."""
    if not isinstance(node, ast.ColumnRef):
        return ()
    return tuple(field.sval for field in node.fields if isinstance(field, ast.String))


def literal(node: Any) -> str | None:
    """The text of a string literal."""
    return node.val.sval if isinstance(node, ast.A_Const) and isinstance(node.val, ast.String) else None


def calls(tree: Any) -> list[str]:
    """The names of the functions that are called."""
    return [node.funcname[-1].sval for node in nodes(tree) if isinstance(node, ast.FuncCall)]


def placeholders(text: str) -> list[str]:
    """The names of psycopg's placeholders, in their order."""
    return re.findall(r"%\((\w+)\)s", text)
