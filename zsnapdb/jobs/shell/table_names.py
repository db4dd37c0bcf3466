"""The tables of the running server of an instance, for a shell that completes their names."""

from __future__ import annotations

from zsnapdb.jobs.base.instance import Instance
from zsnapdb.mysql.schema import schema_catalogue

_MOST = 500
_PATIENCE = 3.0
"""Seconds for each answer of the server: a person waits for the shell."""


def table_names(instance: Instance, beginning: str) -> list[str]:
    """Return schemas, with a dot, and the tables of the schema that `beginning` names. ServerError if none answers."""
    schema, dot, _ = beginning.partition(".")
    with instance.session(read_timeout=_PATIENCE) as session:
        if not dot:
            return [f"{name}." for name in schema_catalogue.schemas(session)]
        return [f"{schema}.{name}" for name in schema_catalogue.names(session, schema, _MOST)]
