"""Every statement we can send, read by the server's own parser: the rules that hold for all of them.

They are those of docs/explanation/sql.md: for partitions, for Citus, against deadlocks, and for lock waits.
"""

import re

import pytest
from pglast import ast, enums

from tests.keyed import parsed
from tests.keyed.test_enqueue import HOUR, MINUTE

STATEMENTS = parsed.every()
FOR_PEOPLE = {name for name, statement in STATEMENTS.items() if statement.for_people}
IN_LOOPS = [name for name in STATEMENTS if name not in FOR_PEOPLE]

HOSTILE = [
    "plain",
    "it's",
    '"quoted"',
    "back\\slash\\",
    "\\'; DROP TABLE workqueue_item; --",
    "100%",
    "%s %(keys)s %%",
    "{Q} {} {0}",
    "$1 $$ $a$",
    "-- comment /* */",
    "E'x' U&'y'",
    "ünï ☃ 🦆 \u202e",
    "'",
    "\\",
]

NOBODY = "a name that no statement has in it"

each = pytest.mark.parametrize("name", STATEMENTS)
each_in_loops = pytest.mark.parametrize("name", IN_LOOPS)


def tree(name, queue="Q"):
    return parsed.parse(parsed.numbered(STATEMENTS[name].of(queue)))


def test_there_are_statements_to_read():
    assert {"item_enqueue", "item_claim", "item_complete_keep", "inbox_fold", "queue_pause"} <= set(IN_LOOPS)


@each_in_loops
@pytest.mark.parametrize("queue", ["Q", "it's {Q} 100% \\"])
def test_every_table_reference_names_its_queue_with_a_literal(name, queue):
    for table, wanted in parsed.references(tree(name, queue)):
        alias = table.alias.aliasname if table.alias else table.relname
        key = parsed.QUEUE_COLUMN[table.relname]
        named = [
            parsed.literal(each.rexpr)
            for each in wanted
            if isinstance(each, ast.A_Expr)
            and each.kind == enums.A_Expr_Kind.AEXPR_OP
            and each.name[0].sval == "="
            and parsed.column(each.lexpr) in ((alias, key), (key,))
        ]
        assert named == [queue], f"{name}: {table.relname} {alias}"


@each_in_loops
@pytest.mark.parametrize("queue", ["Q", "it's {Q} 100% \\"])
def test_every_inserted_row_names_its_queue_with_a_literal(name, queue):
    for node in parsed.nodes(tree(name, queue)):
        if isinstance(node, ast.InsertStmt) and node.relation.relname in parsed.QUEUE_COLUMN:
            columns = [target.name for target in node.cols]
            place = columns.index(parsed.QUEUE_COLUMN[node.relation.relname])
            rows = node.selectStmt.valuesLists or [[target.val for target in node.selectStmt.targetList]]
            assert [parsed.literal(row[place]) for row in rows] == [queue] * len(rows)


def test_the_rule_about_references_catches_those_that_break_it():
    """A test that cannot fail proves nothing."""
    for text in (
        "SELECT FROM workqueue_item q WHERE q.key = 'a'",
        "SELECT FROM workqueue_item q WHERE q.queue = $1",
        "SELECT FROM workqueue_item q WHERE q.queue = 'Q' OR true",
        "WITH a AS (SELECT FROM workqueue_item q WHERE q.queue = 'Q') UPDATE workqueue_item q SET priority = 1",
        "SELECT FROM workqueue_item a JOIN workqueue_item b ON a.key = b.key WHERE a.queue = 'Q'",
        "DELETE FROM workqueue_inbox i USING workqueue_item q WHERE i.queue = 'Q'",
    ):
        STATEMENTS["broken"] = type("Broken", (), {"of": lambda self, queue, text=text: text})()
        try:
            with pytest.raises(AssertionError):
                test_every_table_reference_names_its_queue_with_a_literal("broken", "Q")
        finally:
            del STATEMENTS["broken"]


def _unstable(found, connection):
    """What is not immutable where Citus would evaluate it on the wrong node, or refuses it for that.

    It goes by what functions are declared, so the server is asked: to_char, to_jsonb and jsonb_build_object are stable
    as well. Arithmetic with an interval is, where it is a timestamptz's.
    """
    calls, casts = set(), set()
    for node in parsed.nodes(found):
        guarded = []
        if isinstance(node, (ast.CaseExpr, ast.CoalesceExpr)):
            guarded = [node]
        elif isinstance(node, ast.InsertStmt) and node.onConflictClause:
            guarded = [node.onConflictClause.targetList, node.onConflictClause.whereClause]
        elif isinstance(node, ast.UpdateStmt):
            returning = getattr(node, "returningClause", None)
            guarded = [returning.exprs if returning else getattr(node, "returningList", None)]
        calls |= set(parsed.calls(guarded))
        casts |= {cast.typeName.names[-1].sval for cast in parsed.nodes(guarded) if isinstance(cast, ast.TypeCast)}
    declared = connection.execute(
        "SELECT proname FROM pg_proc WHERE proname = ANY (%s) AND provolatile <> 'i'", [list(calls)]
    )
    return {row[0] for row in declared} | casts & {"interval"}


@each_in_loops
def test_no_unstable_function_where_citus_would_evaluate_it_on_the_wrong_node(name, second):
    assert _unstable(tree(name), second) == set()


@pytest.mark.parametrize(
    ("text", "caught"),
    [
        ("UPDATE workqueue_job q SET a = CASE WHEN b THEN to_char(c, 'd') END", "to_char"),
        ("UPDATE workqueue_job q SET a = COALESCE(b, to_jsonb($1::text))", "to_jsonb"),
        ("UPDATE workqueue_job q SET a = COALESCE(b, c - $1 * interval '1 microsecond')", "interval"),
        ("UPDATE workqueue_job q SET a = b RETURNING extract(epoch FROM c)", "extract"),
        ("INSERT INTO workqueue_item VALUES (1) ON CONFLICT (key) DO UPDATE SET a = now()", "now"),
        ("INSERT INTO workqueue_item VALUES (1) ON CONFLICT (key) DO NOTHING", None),
        ("SELECT to_char(statement_timestamp() + interval '1 second', 'd')", None),
    ],
)
def test_the_rule_about_functions_catches_those_that_break_it(text, caught, second):
    assert _unstable(parsed.parse(text), second) == ({caught} if caught else set())


@each
def test_the_time_is_the_statements_and_never_the_transactions(name):
    found = tree(name)
    assert not {"now", "transaction_timestamp", "timeofday"} & set(parsed.calls(found))
    assert not [node for node in parsed.nodes(found) if isinstance(node, ast.SQLValueFunction)]


@each
def test_nothing_is_joined_on_ctid(name):
    assert not [node for node in parsed.nodes(tree(name)) if parsed.column(node)[-1:] == ("ctid",)]


IDENTS = {"workqueue_item": "key", "workqueue_job": "id", "workqueue_inbox": "id"}


@each_in_loops
def test_every_lock_that_waits_is_taken_in_the_order_of_the_key(name):
    for node in parsed.nodes(tree(name)):
        if isinstance(node, ast.SelectStmt) and node.lockingClause:
            (lock,) = node.lockingClause
            (source,) = node.fromClause
            order = [parsed.column(sort.node) for sort in node.sortClause or ()]
            if lock.waitPolicy == enums.LockWaitPolicy.LockWaitBlock:
                assert order == [(source.alias.aliasname, IDENTS[source.relname])]
            else:
                assert lock.waitPolicy == enums.LockWaitPolicy.LockWaitSkip


@each_in_loops
def test_every_row_that_is_updated_or_deleted_was_locked_first_and_is_found_by_its_key(name):
    """`= ANY (ARRAY(…))` is an index lookup whatever the statistics say, and the array is of rows that were locked.

    (The primary key of jobs begins with the id: those may be joined on it.)
    """
    found = tree(name)
    locked = _locking(found)
    for node in parsed.nodes(found):
        if isinstance(node, (ast.UpdateStmt, ast.DeleteStmt)) and node.relation.relname in IDENTS:
            table, ident = node.relation.relname, IDENTS[node.relation.relname]
            own = (node.relation.alias.aliasname, ident)
            conditions = [each for each in parsed.conjuncts(node.whereClause) if isinstance(each, ast.A_Expr)]
            looked_up = {
                source.relname
                for each in conditions
                if each.kind == enums.A_Expr_Kind.AEXPR_OP_ANY
                and parsed.column(each.lexpr) == own
                and isinstance(each.rexpr, ast.SubLink)
                and each.rexpr.subLinkType == enums.SubLinkType.ARRAY_SUBLINK
                for source in each.rexpr.subselect.fromClause
            }
            if table == "workqueue_job":
                looked_up |= {
                    parsed.column(each.rexpr)[0]
                    for each in conditions
                    if each.kind == enums.A_Expr_Kind.AEXPR_OP
                    and each.name[0].sval == "="
                    and parsed.column(each.lexpr) == own
                    and parsed.column(each.rexpr)[1:] == (ident,)
                }
            assert looked_up & locked, name


def _locking(found):
    """The CTEs whose rows are locked: that lock, or that read what does."""
    locked = set()
    for cte in parsed.nodes(found):
        if isinstance(cte, ast.CommonTableExpr):
            locks = any(isinstance(node, ast.LockingClause) for node in parsed.nodes(cte))
            sources = {node.relname for node in parsed.nodes(cte) if isinstance(node, ast.RangeVar)}
            if locks or sources & locked:
                locked.add(cte.ctename)
    return locked


@each_in_loops
def test_keys_are_compared_bytewise_wherever_a_parameter_meets_one(name):
    """The columns are COLLATE "C", and a column's collation wins; what has no column beside it must say so itself."""
    for node in parsed.nodes(tree(name)):
        if isinstance(node, ast.InsertStmt) and node.relation.relname == "workqueue_item":
            for sort in node.selectStmt.sortClause or ():
                collated = isinstance(sort.node, ast.CollateClause) and sort.node.collname[0].sval == "C"
                assert collated or parsed.column(sort.node) == ("key",)


# The server


@each
def test_every_statement_prepares_on_the_server(name, second):
    second.execute(f'PREPARE "{name}" AS {parsed.numbered(STATEMENTS[name].of("Q"))}', prepare=False)


@pytest.mark.parametrize("queue", HOSTILE)
def test_every_statement_prepares_whatever_its_queue_is_called(queue, second):
    for name, statement in STATEMENTS.items():
        second.execute(f'PREPARE "{name}" AS {parsed.numbered(statement.of(queue))}'.encode(), prepare=False)


@pytest.mark.parametrize("queue", HOSTILE)
def test_a_queues_name_reaches_the_server_as_it_is_and_as_nothing_else(queue):
    for name, statement in STATEMENTS.items():
        holes = statement.text.count("{Q}")
        found = [parsed.literal(node) for node in parsed.nodes(tree(name, queue))]
        plain = [parsed.literal(node) for node in parsed.nodes(tree(name, NOBODY))]
        assert plain.count(NOBODY) == holes
        assert found == [queue if each == NOBODY else each for each in plain]


@pytest.mark.parametrize("called", HOSTILE)
def test_a_queue_works_whatever_it_is_called(make_queue, name, called):
    queue = make_queue(name=called, max_attempts=1)
    queue.enqueue("a", "b", "c", "d", "e")
    queue.enqueue("f", delay=HOUR)
    a, b, c, d, e = queue.claim()
    assert queue.complete(a) == queue.complete("b") == 1
    assert queue.release(c, error="no") == queue.release("d") == 1
    assert queue.extend(e, lease=MINUTE) == [e]
    assert queue.remove("d") == 1
    queue.pause()
    assert queue.is_paused()
    queue.resume()
    assert queue.reap() == 0
    stats = queue.stats()
    assert (stats.pending, stats.leased, stats.stalled, stats.completed) == (1, 1, 1, 2)
    assert queue.stats(exact=False) == stats
    assert [item.queue for item in (a, b, c, d, e)] == [called] * 5


def test_no_module_beside_these_sends_sql_about_our_tables():
    """What is not a Statement is not read here. Left out: the migration, partitions (DDL, for people)."""
    from pathlib import Path

    import django_workqueue

    root = Path(django_workqueue.__file__).parent
    beside = {
        str(path.relative_to(root))
        for path in root.rglob("*.py")
        if "sql" not in path.relative_to(root).parts[:1]
        and re.search(r"(?i)\b(from|into|update|join|table)\s+(only\s+)?workqueue_\w+", path.read_text())
    }
    assert beside <= {"partitions.py"}


def test_what_names_no_queue_reads_for_people_and_metrics_or_is_listed_here():
    """Each has its reason in the text beside it."""
    of_workers = {"worker_seen", "worker_gone", "worker_forget"}  # the table has no queue: workers are for people
    which_queues = {"job_queues", "minute_old"}  # ask which queues there are to do something for, each by its name then
    of_the_server = {"planner_misjudged"}  # the server's own tables, which are nobody's queue
    reads = re.compile(r"(browse|doctor|export|history|inventory|\w+_stats)_")
    assert {name for name in FOR_PEOPLE if not reads.match(name)} == of_workers | which_queues | of_the_server
    for name in FOR_PEOPLE - of_workers:
        for node in parsed.nodes(tree(name)):
            assert not isinstance(node, (ast.InsertStmt, ast.UpdateStmt, ast.DeleteStmt)), name
