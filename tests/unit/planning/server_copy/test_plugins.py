"""The plugins of a copy, over the plugins of every recorded release."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from tests.unit.support.recorded_plugins import plugins_of, releases
from zsnapdb.planning.server_copy.plugins import (
    LEFT_OUT,
    InstalledPlugins,
    PluginClass,
    classify,
    objections,
    option_lines,
    with_later,
)
from zsnapdb.planning.server_facts import COMPONENT, FUNCTION, LoadedBy, Plugin, ServerPlugins, plugin_hint

NEEDED_KINDS = ("AUTHENTICATION", "DATA TYPE", "FTPARSER", "PASSWORD VALIDATION", "STORAGE ENGINE", "VALIDATE PASSWORD")
"""Without such a plugin a table cannot be read, or a statement means something else."""
OFF_COPIES = {
    "clone",
    "daemon_memcached",
    "feedback",
    "group_replication",
    "handlersocket",
    "mysqlx",
    "mysqlx_cache_cleaner",
    "ndbcluster",
    "ndbinfo",
    "null_audit",
    "rpl_semi_sync_master",
    "rpl_semi_sync_replica",
    "rpl_semi_sync_slave",
    "rpl_semi_sync_source",
    "server_audit",
    "sql_error_log",
    "thread_pool",
    "tp_thread_group_state",
    "tp_thread_group_stats",
    "tp_thread_state",
    "wsrep_provider",
}
"""The plugins of the recorded releases that log, replicate, listen, or share the host's memory and threads."""

ARCHIVE = Plugin(name="ARCHIVE", kind="STORAGE ENGINE", library="ha_archive.so")
ED25519 = Plugin(name="ed25519", kind="AUTHENTICATION", library="auth_ed25519.so", loaded_by=LoadedBy.ROW)
LOCALES = Plugin(name="LOCALES", kind="INFORMATION SCHEMA", library="locales.so")
AUDIT = Plugin(name="SERVER_AUDIT", kind="AUDIT", library="server_audit.so")
KEYS = Plugin(name="file_key_management", kind="ENCRYPTION", library="file_key_management.so")
SOURCE = ServerPlugins(plugins=(ARCHIVE, ED25519, LOCALES, AUDIT, KEYS), folder="/usr/lib/mysql/plugin/")
HOST = InstalledPlugins("/usr/lib/mysql/plugin", frozenset({"ha_archive.so", "auth_ed25519.so", "locales.so"}))


def lines_of(*plugins: Plugin, options: tuple[str, ...] = (), reads_rows: bool = True) -> tuple[str, ...]:
    return option_lines(ServerPlugins(plugins=plugins), options, reads_rows=reads_rows)


@pytest.mark.parametrize("release", releases())
def test_recorded_plugin_has_one_class_and_its_lines(release: str) -> None:
    for plugin in plugins_of(release):
        own, lines = classify(plugin), lines_of(plugin)
        assert (
            lines
            == {
                PluginClass.LOADED: (f"plugin_load_add={plugin.library}",),
                PluginClass.BUILT_IN: (f"loose_plugin_{plugin.option}=ON",),
                PluginClass.LEFT_OUT: (f"loose_plugin_{plugin.option}=OFF",),
                PluginClass.BY_DATA: (),
                PluginClass.KEYS: (),
            }[own]
        ), plugin
        assert (own is PluginClass.LEFT_OUT) == (plugin.option in OFF_COPIES), plugin
        assert bool(plugin.library) or own in (PluginClass.BUILT_IN, PluginClass.LEFT_OUT), plugin
        assert (own is PluginClass.BY_DATA) == (plugin.kind in (COMPONENT, FUNCTION)), plugin
        if plugin.kind in NEEDED_KINDS and not plugin.name.startswith("ndb"):
            assert own in (PluginClass.LOADED, PluginClass.BUILT_IN), plugin


@pytest.mark.parametrize("release", releases())
def test_library_of_needed_plugin_that_is_missing_is_refused(release: str) -> None:
    for plugin in plugins_of(release):
        found = objections(ServerPlugins(plugins=(plugin,)), InstalledPlugins("/plugins", frozenset()), ())
        is_loaded = classify(plugin) in (PluginClass.LOADED, PluginClass.BY_DATA)
        assert [one.is_needed for one in found] == ([plugin.kind != "INFORMATION SCHEMA"] if is_loaded else []), plugin
        assert all(plugin.name in one.text and "/plugins" in one.text for one in found)


def test_left_out_plugins_have_reasons() -> None:
    assert set(LEFT_OUT) >= OFF_COPIES
    assert all(LEFT_OUT.values())


@given(st.from_regex(r"\A[A-Za-z0-9_][A-Za-z0-9_-]{0,63}\Z"), st.sampled_from(["DAEMON", "AUDIT", "SOMETHING NEW"]))
def test_unknown_plugin_is_loaded(name: str, kind: str) -> None:
    plugin = Plugin(name=name, kind=kind, library="new.so")
    if plugin.option not in LEFT_OUT:
        assert lines_of(plugin) == ("plugin_load_add=new.so",)


@pytest.mark.parametrize("library", ["/tmp/x.so", "../x.so", "a/b.so", "x.so\nuser=root", ".so", "x.so;y.so", "x=y.so"])
def test_library_that_is_no_file_name_is_refused(library: str) -> None:
    with pytest.raises(ValidationError):
        Plugin(name="x", kind="DAEMON", library=library)


@pytest.mark.parametrize("name", ["", "-x", "x\ny", "x=y", "x y", "x" * 65])
def test_name_that_is_no_option_is_refused(name: str) -> None:
    with pytest.raises(ValidationError):
        Plugin(name=name, kind="DAEMON", library="x.so")


def test_server_that_reads_rows_loads_installed_plugins_itself() -> None:
    assert lines_of(ARCHIVE, ED25519) == ("plugin_load_add=ha_archive.so",)
    both = ("plugin_load_add=ha_archive.so", "plugin_load_add=auth_ed25519.so")
    assert lines_of(ARCHIVE, ED25519, reads_rows=False) == both


def test_library_with_several_plugins_is_loaded_once() -> None:
    other = Plugin(name="ARCHIVE_STATS", kind="INFORMATION SCHEMA", library="ha_archive.so")
    assert lines_of(ARCHIVE, other) == ("plugin_load_add=ha_archive.so",)


def test_built_in_plugin_is_switched_as_on_the_source() -> None:
    on = Plugin(name="FEDERATED", kind="STORAGE ENGINE")
    assert lines_of(on) == ("loose_plugin_federated=ON",)
    assert lines_of(on.model_copy(update={"is_active": False})) == ("loose_plugin_federated=OFF",)


@pytest.mark.parametrize("name", ["skip_grant_tables", "init-file", "general_log", "local_infile", "event_scheduler"])
def test_name_of_a_plugin_sets_no_other_option(name: str) -> None:
    (line,) = lines_of(Plugin(name=name, kind="DAEMON"))
    assert line == f"loose_plugin_{name.replace('-', '_')}=ON"


def test_least_maturity_is_that_of_the_source() -> None:
    assert option_lines(ServerPlugins(maturity="beta"), (), reads_rows=True) == ("loose_plugin_maturity=beta",)
    assert option_lines(ServerPlugins(maturity="evil"), (), reads_rows=True) == ()
    assert option_lines(None, (), reads_rows=True) == ()


def test_site_switches_a_plugin_off() -> None:
    for line in ("archive=OFF", "loose-archive = 0", "loose_ARCHIVE=off", "plugin_archive=OFF"):
        assert lines_of(ARCHIVE, options=(line,)) == ()
        assert objections(ServerPlugins(plugins=(ARCHIVE,)), InstalledPlugins("/p", frozenset()), (line,)) == ()
    assert lines_of(ARCHIVE, options=("loose_archive=ON",)) != ()


def test_host_with_all_libraries_has_no_objection() -> None:
    assert objections(SOURCE, HOST, ()) == ()
    assert objections(None, HOST, ()) == ()
    assert objections(SOURCE, None, ()) == ()


def test_objection_names_every_plugin_and_what_to_do() -> None:
    (needed, useful) = objections(SOURCE, InstalledPlugins("/opt/p", frozenset()), ())
    assert "storage engine ARCHIVE (ha_archive.so), authentication ed25519 (auth_ed25519.so)" in needed.text
    assert needed.is_needed
    assert '"plugin_dir=/usr/lib/mysql/plugin/"' in needed.hint
    assert '"loose_archive=OFF", "loose_ed25519=OFF"' in needed.hint
    assert "LOCALES" in useful.text
    assert not useful.is_needed
    assert "SERVER_AUDIT" not in needed.text + useful.text
    assert "file_key_management" not in needed.text + useful.text


def test_plugin_that_the_program_has_built_in_needs_no_library() -> None:
    assert (
        objections(ServerPlugins(plugins=(ARCHIVE,)), InstalledPlugins("/p", frozenset(), frozenset({"archive"})), ())
        == ()
    )


def test_folder_that_the_sandbox_hides_is_an_objection() -> None:
    (found,) = objections(SOURCE, InstalledPlugins("/srv/p", HOST.libraries, is_shown=False), ())
    assert found.is_needed
    assert '"/srv/p" to server.sandbox_reads' in found.hint


def test_replay_has_the_plugins_of_later_backups() -> None:
    known = ServerPlugins(plugins=(ARCHIVE,), maturity="gamma")
    together = with_later(known, (None, ServerPlugins(plugins=(ARCHIVE, ED25519)), SOURCE))
    assert together is not None
    assert together.plugins[:2] == (ARCHIVE, ED25519.model_copy(update={"loaded_by": LoadedBy.OPTION}))
    assert "plugin_load_add=auth_ed25519.so" in option_lines(together, (), reads_rows=True)
    assert with_later(known, (known, None)) == known
    assert with_later(None, (SOURCE,)) is None


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("Error 'Unknown storage engine 'ARCHIVE'' on query.", "plugin_load_add=ha_archive.so"),
        ("Unknown storage engine 'ROCKSDB'; Corrupt", "plugin_load_add=ha_rocksdb.so"),
        ("Plugin 'ed25519' is not loaded (1524)", "plugin_load_add=auth_ed25519.so"),
        ("Plugin 'mysql_native_password' is not loaded", "plugin_load_add=mysql_native_password.so"),
        ("Can't open shared library 'locking_service.so' (errno: 11 /x)", "plugin_load_add=locking_service.so"),
        (
            "Can't open shared library '/usr/lib/mysql/plugin/component_x.so' (errno: 2)",
            "plugin_load_add=component_x.so",
        ),
        ("Function 'mecab' is not defined", "plugin_load_add=libpluginmecab.so"),
        ("Unknown data type: 'MYSQL_JSON'", "plugin_load_add=type_mysql_json.so"),
        (
            "MariaDB tried to use the LZ4 compression, but its provider plugin is not loaded",
            "plugin_load_add=provider_lz4.so",
        ),
        (
            "Your password does not satisfy the current policy requirements (cracklib_password_check)",
            "loose_cracklib_password_check=OFF",
        ),
    ],
)
def test_error_about_a_plugin_has_the_line_for_server_options(text: str, line: str) -> None:
    assert f'"{line}"' in plugin_hint(text)


@pytest.mark.parametrize(
    "text",
    ["Table 'a' is marked as crashed", "Corrupt", "Unknown storage engine 'a\nuser=root'", "Unknown column 'x'", ""],
)
def test_other_error_has_no_plugin_hint(text: str) -> None:
    assert plugin_hint(text) == ""
