"""Plugins of a running server: active ones, built-in ones that can be switched, components, loadable functions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from pydantic import ValidationError

from zsnapdb.base.errors import ServerError
from zsnapdb.mysql.session import Row, Session
from zsnapdb.planning.server_plugins import COMPONENT, FUNCTION, INFORMATION, LoadedBy, Plugin, ServerPlugins

_PLUGINS = (
    "SELECT plugin_name, plugin_type, COALESCE(plugin_library, ''), plugin_status FROM information_schema.plugins WHERE"
    " (plugin_library IS NOT NULL AND plugin_status = 'ACTIVE') OR (plugin_library IS NULL AND load_option NOT LIKE"
    " 'FORCE%' AND plugin_type <> 'INFORMATION SCHEMA')"
)
_ROWS = "SELECT name FROM mysql.plugin"
_FUNCTIONS = "SELECT name, dl FROM mysql.func"
_COMPONENTS = "SELECT component_urn FROM mysql.component"
_URN = "file://"


def loaded_plugins(session: Session, variables: Mapping[str, str]) -> ServerPlugins:
    """Return the plugins of the server, changing nothing.

    Plugins that the account cannot see are missing: the tables of the schema `mysql` need SELECT. A name that is
    invalid in an option file is skipped.
    """
    by_row = {str(name).lower() for (name,) in _rows_or_none(session, _ROWS)}
    made = [_plugin(row, by_row) for row in session.query(_PLUGINS)]
    made += [_parse_plugin(name, FUNCTION, library) for name, library in _rows_or_none(session, _FUNCTIONS)]
    made += [_component(str(urn)) for (urn,) in _rows_or_none(session, _COMPONENTS)]
    return ServerPlugins(
        plugins=tuple(
            _shortened(sorted({one for one in made if one is not None}, key=lambda one: (one.kind, one.name)))
        ),
        folder=variables.get("plugin_dir", ""),
        maturity=variables.get("plugin_maturity", "").lower(),
    )


def _shortened(plugins: Sequence[Plugin]) -> Iterator[Plugin]:
    """Yield the plugins without those for information_schema that another plugin of their library includes."""
    named = {plugin.library for plugin in plugins if plugin.kind != INFORMATION}
    for plugin in plugins:
        if plugin.kind != INFORMATION or plugin.library not in named:
            named.add(plugin.library)
            yield plugin


def _plugin(row: Row, by_row: Iterable[str]) -> Plugin | None:
    name, kind, library, status = (str(value) for value in row)
    how = LoadedBy.ROW if name.lower() in by_row else LoadedBy.OPTION
    return _parse_plugin(name, kind, library, how, is_active=status == "ACTIVE")


def _component(urn: str) -> Plugin | None:
    name = urn.removeprefix(_URN)
    return _parse_plugin(name, COMPONENT, f"{name}.so")


def _parse_plugin(
    name: object, kind: str, library: object, how: LoadedBy = LoadedBy.ROW, *, is_active: bool = True
) -> Plugin | None:
    try:
        return Plugin(name=str(name), kind=kind, library=str(library), loaded_by=how, is_active=is_active)
    except ValidationError:
        return None


def _rows_or_none(session: Session, sql: str) -> list[Row]:
    """Return the rows; empty if the server has no such table or the account cannot read it."""
    try:
        return session.query(sql)
    except ServerError:
        return []
