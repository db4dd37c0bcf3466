"""The names of tables and schemas as users write them. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass

from zsnapdb.base.errors import UsageError

_QUOTED = re.compile(r"^(?:`((?:[^`]|``)+)`|([^.`]+))\.(?:`((?:[^`]|``)+)`|([^`]+))$")


@dataclass(frozen=True)
class TableName:
    """A table, or a whole schema (`table` None)."""

    schema: str
    table: str | None

    def __str__(self) -> str:
        return f"{self.schema}.{self.table}" if self.table is not None else self.schema


def parse_table(text: str) -> TableName:
    """Return the table that `schema.table` names. A part with a dot or a backtick must be in backticks.

    UsageError if the text names no table.
    """
    match = _QUOTED.match(text)
    if match is None:
        raise UsageError(f"{text!r} names no table", hint="write schema.table; put a name with a dot into backticks")
    quoted_schema, schema, quoted_table, table = match.groups()
    return TableName(schema or quoted_schema.replace("``", "`"), table or quoted_table.replace("``", "`"))
