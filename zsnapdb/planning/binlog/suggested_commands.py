"""Suggests commands that repair an unwanted transaction: undo its rows, rescue a dropped table, or restore.

The text of a statement is used only to choose which command is suggested. The command itself verifies the effect of the
statement.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence

from zsnapdb.planning.binlog.changes import ChangeKind, ListedTransaction, LoggedStatement
from zsnapdb.planning.binlog.undo import RowChange
from zsnapdb.planning.sql_quoting import quoted

_NAME = r"(?:`([A-Za-z0-9_$]{1,64})`|([A-Za-z0-9_$]{1,64}))"
"""A name that needs no quotes in a shell, with or without backquotes."""
_CHANGES = r"DROP\s+TABLE(?:\s+IF\s+EXISTS)?|TRUNCATE(?:\s+TABLE)?|ALTER\s+TABLE(?:\s+IF\s+EXISTS)?"
_TABLE = re.compile(rf"\s*(?:{_CHANGES})\s+{_NAME}(?:\.{_NAME})?", re.I)
_SCHEMA = re.compile(rf"\s*DROP\s+(?:DATABASE|SCHEMA)(?:\s+IF\s+EXISTS)?\s+{_NAME}", re.I)
_MOST_KEYS = 10
"""The maximum number of rows of a table that a suggested command lists one by one."""
_MOST_TARGETS = 3
"""The maximum number of damaged tables or schemas that get one suggested command each."""
_DROPS = re.compile(r"\s*(?:DROP|TRUNCATE|ALTER)\b", re.I)


def remedies(instance: str, listed: Sequence[ListedTransaction]) -> tuple[str, ...]:
    """Return the commands to suggest; none if no transaction has a GTID.

    The commands contain the values of the transaction. If several transactions fit a command, the command contains the
    word GTID, which the user replaces with the GTID of one transaction.
    """
    named = [entry for entry in listed if entry.changes.gtid is not None]
    if not named:
        return ()
    if len(named) == 1:
        changes = named[0].changes
        dropped = [text for text in changes.statements if text.kind is ChangeKind.DDL]
        if dropped:
            return _of_ddl(instance, str(changes.gtid), dropped[0])
        return (f"zsnapdb undo {instance} --gtid {changes.gtid}",)
    commands = []
    if any(entry.changes.tables for entry in named):
        commands.append(f"zsnapdb undo {instance} --gtid GTID")
    drops: dict[tuple[str, ...], list[tuple[str, LoggedStatement]]] = {}
    for entry in named:
        for text in entry.changes.statements:
            if text.kind is ChangeKind.DDL and _DROPS.match(text.text):
                drops.setdefault(_of_ddl(instance, "GTID", text), []).append((str(entry.changes.gtid), text))
    if len(drops) > _MOST_TARGETS:
        commands.append(f"zsnapdb rescue {instance} --table SCHEMA.TABLE --to before-GTID --into FILE")
    else:
        for general, same in drops.items():
            commands += _of_ddl(instance, *same[0]) if len(same) == 1 else general
    return tuple(commands) or (f"zsnapdb restore {instance} --to before-GTID --plan",)


def sample_changed_rows(instance: str, gtid: str, changed: Sequence[RowChange]) -> Iterator[str]:
    """Yield commands that show the former values of rows that later transactions changed."""
    for table in dict.fromkeys(change.shape.name for change in changed):
        shape = next(change.shape for change in changed if change.shape.name == table)
        names = [column.name for column in shape.columns if column.key_part]
        own = [row for change in changed if change.shape.name == table for row in (change.before, change.after) if row]
        keys = list(
            dict.fromkeys(
                " AND ".join(f"{quoted(name)} = {row[name].assigned}" for name in names)
                for row in own
                if names and all(name in row for name in names)
            )
        )
        point = f"--to before-{gtid}"
        if keys and len(keys) <= _MOST_KEYS:
            where = " OR ".join(keys) if len(keys) == 1 else " OR ".join(f"({key})" for key in keys)
            sql = f"SELECT * FROM {shape.quoted} WHERE {where}"  # noqa: S608 - quoted names, literals of ours
            yield shlex.join(["zsnapdb", "query", instance, sql, "--at", f"before-{gtid}"])
        yield f"zsnapdb rescue {instance} --table {shlex.quote(table)} {point} --into FILE"


def _of_ddl(instance: str, gtid: str, statement: LoggedStatement) -> tuple[str, ...]:
    point = f"--to before-{gtid}"
    if table := _TABLE.match(statement.text):
        first, second = table[1] or table[2], table[3] or table[4]
        schema, name = (first, second) if second else (statement.schema, first)
        if schema and re.fullmatch(r"[A-Za-z0-9_$]+", schema):
            return (f"zsnapdb rescue {instance} --table {schema}.{name} {point} --into {name}.sql",)
    if schema_name := _SCHEMA.match(statement.text):
        name = schema_name[1] or schema_name[2]
        return (
            f"zsnapdb rescue {instance} --schema {name} {point} --into {name}.sql",
            f"zsnapdb rewind {instance} {point} --plan",
        )
    return (f"zsnapdb restore {instance} {point} --plan",)
