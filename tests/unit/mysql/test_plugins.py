"""The plugins that a server reports, as they are recorded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from zsnapdb.base.errors import ServerError
from zsnapdb.mysql.probe import loaded_plugins
from zsnapdb.mysql.session import Session
from zsnapdb.planning.server_facts import COMPONENT, FUNCTION, LoadedBy, Plugin


class PluginSession(Session):
    """A server with these rows of information_schema.plugins, mysql.plugin, mysql.func and mysql.component."""

    def __init__(self, plugins: Sequence[tuple[str, ...]], **tables: Sequence[tuple[str, ...]]) -> None:
        self._plugins, self._tables = plugins, tables

    def query(self, sql: str, parameters: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        table = sql.rpartition(" FROM mysql.")[2]
        if "information_schema.plugins" in sql:
            return list(self._plugins)
        if table not in self._tables:
            raise ServerError(f"SELECT command denied for {table}")
        return list(self._tables[table])


def test_loaded_plugins_say_how_each_was_loaded() -> None:
    session = PluginSession(
        [
            ("ARCHIVE", "STORAGE ENGINE", "ha_archive.so", "ACTIVE"),
            ("ed25519", "AUTHENTICATION", "auth_ed25519.so", "ACTIVE"),
            ("FEDERATED", "STORAGE ENGINE", "", "DISABLED"),
        ],
        plugin=[("Ed25519",)],
        func=[("lock_it", "locking_service.so")],
        component=[("file://component_validate_password",)],
    )
    found = loaded_plugins(session, {"plugin_dir": "/usr/lib/mysql/plugin/", "plugin_maturity": "GAMMA"})
    assert (found.folder, found.maturity) == ("/usr/lib/mysql/plugin/", "gamma")
    assert set(found.plugins) == {
        Plugin(name="ARCHIVE", kind="STORAGE ENGINE", library="ha_archive.so"),
        Plugin(name="ed25519", kind="AUTHENTICATION", library="auth_ed25519.so", loaded_by=LoadedBy.ROW),
        Plugin(name="FEDERATED", kind="STORAGE ENGINE", is_active=False),
        Plugin(name="lock_it", kind=FUNCTION, library="locking_service.so", loaded_by=LoadedBy.ROW),
        Plugin(
            name="component_validate_password",
            kind=COMPONENT,
            library="component_validate_password.so",
            loaded_by=LoadedBy.ROW,
        ),
    }


def test_information_schema_plugins_are_recorded_once_for_a_library() -> None:
    session = PluginSession(
        [
            ("ROCKSDB", "STORAGE ENGINE", "ha_rocksdb.so", "ACTIVE"),
            ("ROCKSDB_DDL", "INFORMATION SCHEMA", "ha_rocksdb.so", "ACTIVE"),
            ("WSREP_MEMBERSHIP", "INFORMATION SCHEMA", "wsrep_info.so", "ACTIVE"),
            ("WSREP_STATUS", "INFORMATION SCHEMA", "wsrep_info.so", "ACTIVE"),
        ]
    )
    assert {plugin.name for plugin in loaded_plugins(session, {}).plugins} == {"ROCKSDB", "WSREP_MEMBERSHIP"}


def test_tables_that_the_account_may_not_read_are_left_out() -> None:
    session = PluginSession([("ARCHIVE", "STORAGE ENGINE", "ha_archive.so", "ACTIVE")])
    (only,) = loaded_plugins(session, {}).plugins
    assert only.loaded_by is LoadedBy.OPTION


def test_names_that_no_option_file_can_have_are_left_out() -> None:
    session = PluginSession(
        [("x\ny", "DAEMON", "a.so", "ACTIVE")],
        plugin=[],
        func=[("f", "../evil.so")],
        component=[("file:///tmp/evil",), ("http://x",)],
    )
    assert loaded_plugins(session, {}).plugins == ()
