"""Decides which plugins of its source a server on a copy loads, and finds missing plugins on this host.

Pure. A copy loads the plugins of its source, because recovery needs the storage engines of the tables. Also, a replayed
statement has the same effect only with the same engines, authentication plugins, functions and password checks. A
plugin that this module does not classify is loaded.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from zsnapdb.planning.server_copy.source_facts import option_name
from zsnapdb.planning.server_facts import COMPONENT, FUNCTION, INFORMATION, LoadedBy, Plugin, ServerPlugins


class PluginClass(StrEnum):
    """The treatment of a source's plugin on a copy."""

    LOADED = "loaded"
    BY_DATA = "loaded by its row in the data"
    BUILT_IN = "built into the server program"
    KEYS = "loaded by server.options, which names its keys"
    LEFT_OUT = "left out"


_LOGS = "they write a log or audit trail of the source's users"
_REPLICATES = "they connect servers to each other, but a copy belongs to no group"
_LISTENS = "they open a port or send data to other hosts"
_THREADS = "they are sized for the memory and processors of the source's host"

LEFT_OUT: Mapping[str, str] = {
    **dict.fromkeys(("audit", "audit_log", "audit_log_filter", "null_audit", "server_audit", "sql_error_log"), _LOGS),
    **dict.fromkeys(
        (
            *("group_replication", "ndbcluster", "ndbinfo", "rpl_semi_sync_master", "rpl_semi_sync_replica"),
            *("rpl_semi_sync_slave", "rpl_semi_sync_source", "wsrep", "wsrep_provider"),
        ),
        _REPLICATES,
    ),
    **dict.fromkeys(
        (
            *("clone", "daemon_memcached", "feedback", "handlersocket", "mysqlx", "mysqlx_cache_cleaner"),
            "telemetry_client",
        ),
        _LISTENS,
    ),
    **dict.fromkeys(("thread_pool", "tp_thread_group_state", "tp_thread_group_stats", "tp_thread_state"), _THREADS),
}
"""The reasons why a copy does not load some plugins, by the name of the plugin's option."""

_KEY_KINDS = ("ENCRYPTION", "KEYRING")
_OFF = ("OFF", "0", "FALSE")
_MATURITIES = ("unknown", "experimental", "alpha", "beta", "gamma", "stable")

_PACKAGES = {
    "auth_gssapi.so": "gssapi-server",
    "cracklib_password_check.so": "cracklib-password-check",
    "hashicorp_key_management.so": "hashicorp-key-management",
    **{f"ha_{name}.so": name for name in ("connect", "mroonga", "oqgraph", "rocksdb", "s3", "spider")},
    **{f"provider_{name}.so": f"provider-{name}" for name in ("bzip2", "lz4", "lzma", "lzo", "snappy")},
}
"""Debian packages of MariaDB plugins that are not in the server package."""


@dataclass(frozen=True)
class InstalledPlugins:
    """The plugins of a server program on this host: its plugin folder and files, and its optional built-in plugins.

    If `is_shown` is set, a server in a sandbox can see the folder.
    """

    folder: str
    libraries: frozenset[str]
    built_in: frozenset[str] = frozenset()
    is_shown: bool = True


@dataclass(frozen=True)
class PluginObjection:
    """Plugins of a source that a copy on this host would lack, and a hint.

    The field `is_needed` is set if the data or the binlogs may need these plugins. In this case a copy is refused.
    """

    text: str
    hint: str
    is_needed: bool = True


def classify(plugin: Plugin) -> PluginClass:
    """Return how a copy treats the plugin. An unknown plugin is loaded."""
    if plugin.kind in (COMPONENT, FUNCTION):
        return PluginClass.BY_DATA
    if plugin.option in LEFT_OUT:
        return PluginClass.LEFT_OUT
    if plugin.kind in _KEY_KINDS:
        return PluginClass.KEYS
    return PluginClass.LOADED if plugin.library else PluginClass.BUILT_IN


def option_lines(known: ServerPlugins | None, options: Sequence[str], *, reads_rows: bool) -> tuple[str, ...]:
    """Return the option file lines that make a copy load the plugins of its source.

    In the option file, these lines follow the lines in `options`.

    - `known`: the plugins of the backup's server; None if the backup does not record them
    - `options`: the configured lines (`server.options`); a plugin that these lines switch off is not loaded
    - `reads_rows`: whether the server itself loads the plugins in `mysql.plugin`, as every server with accounts does
      (refman 8.4, "skip_grant_tables")
    """
    if known is None:
        return ()
    lines = [f"loose_plugin_maturity={known.maturity}"] if known.maturity in _MATURITIES else []
    wanted = [plugin for plugin in known.plugins if plugin.option not in switched_off(options)]
    lines += dict.fromkeys(
        f"plugin_load_add={plugin.library}"
        for plugin in wanted
        if classify(plugin) is PluginClass.LOADED and not (reads_rows and plugin.loaded_by is LoadedBy.ROW)
    )
    for plugin in wanted:
        kind = classify(plugin)
        if kind in (PluginClass.BUILT_IN, PluginClass.LEFT_OUT):
            is_on = kind is PluginClass.BUILT_IN and plugin.is_active
            # The name comes from a manifest, which is untrusted. With the prefix, the text can only be an option of a
            # plugin (sql_plugin.cc).
            lines.append(f"loose_plugin_{plugin.option}={'ON' if is_on else 'OFF'}")
    return tuple(lines)


def with_later(known: ServerPlugins | None, later: Iterable[ServerPlugins | None]) -> ServerPlugins | None:
    """Return the plugins that a replay may need: the plugins of the backup and of `later` backups.

    Binlogs do not contain INSTALL PLUGIN and INSTALL SONAME, but they contain statements that use the new plugins. The
    backup's data contains no row for a plugin that was installed later, so an option loads it.
    """
    if known is None:
        return None
    has = {(plugin.kind, plugin.name) for plugin in known.plugins}
    more = {
        (plugin.kind, plugin.name): plugin.model_copy(update={"loaded_by": LoadedBy.OPTION})
        for one in later
        if one is not None
        for plugin in one.plugins
        if plugin.library and plugin.kind != COMPONENT and (plugin.kind, plugin.name) not in has
    }
    return known.model_copy(update={"plugins": (*known.plugins, *more.values())}) if more else known


def with_libraries(known: ServerPlugins) -> tuple[str, ...]:
    """Return the libraries, sorted, that a copy of a server with these plugins loads by an option or from its data."""
    kinds = (PluginClass.LOADED, PluginClass.BY_DATA)
    return tuple(sorted({plugin.library for plugin in known.plugins if classify(plugin) in kinds}))


def switched_off(options: Iterable[str]) -> frozenset[str]:
    """Return the names of the options that these option file lines set to OFF, without the prefix `plugin_`."""
    off = (option_name(line) for line in options if line.partition("=")[2].strip().upper() in _OFF)
    return frozenset(name.removeprefix("plugin_") for name in off)


def objections(
    known: ServerPlugins | None, installed: InstalledPlugins | None, options: Sequence[str]
) -> tuple[PluginObjection, ...]:
    """Return objections about plugins that a copy of a server with these plugins would lack on this host.

    The argument `installed` is None if the server program does not list its plugins. The argument `options` contains
    the lines of `server.options`.
    """
    if known is None or installed is None:
        return ()
    kinds = (PluginClass.LOADED, PluginClass.BY_DATA)
    named = [
        plugin
        for plugin in known.plugins
        if classify(plugin) in kinds and plugin.option not in {*switched_off(options), *installed.built_in}
    ]
    missing = [plugin for plugin in named if plugin.library not in installed.libraries]
    needed = {plugin.library for plugin in missing if plugin.kind != INFORMATION}
    found = [
        _lacking([plugin for plugin in missing if (plugin.library in needed) is is_needed], known, installed, is_needed)
        for is_needed in (True, False)
        if any((plugin.library in needed) is is_needed for plugin in missing)
    ]
    if named and not installed.is_shown:
        text = f"the server had {_listing(named)}, and the sandbox of a copy does not show {installed.folder}"
        found.append(PluginObjection(text, f'add "{installed.folder}" to server.sandbox_reads of the instance'))
    return tuple(found)


def _lacking(
    missing: Sequence[Plugin], known: ServerPlugins, installed: InstalledPlugins, is_needed: bool
) -> PluginObjection:
    elsewhere = known.folder.rstrip("/")
    other = (
        f', or add "plugin_dir={known.folder}" to server.options if that folder has them'
        if elsewhere.startswith("/") and elsewhere != installed.folder.rstrip("/")
        else ""
    )
    where = f"{'them' if len(missing) > 1 else 'it'} there{_packages(missing, known)}"
    without = ", ".join(f'"loose_{plugin.option}=OFF"' for plugin in missing)
    return PluginObjection(
        f"the server had {_listing(missing)}, and {installed.folder} of this host has no such file",
        f"install {where}{other}; or add {without} to server.options of the instance, if no data and no statement needs"
        f" {'them' if len(missing) > 1 else 'it'}",
        is_needed,
    )


def _packages(missing: Sequence[Plugin], known: ServerPlugins) -> str:
    """Return a text with the Debian packages of the given MariaDB libraries. MySQL packages contain all plugins."""
    names = dict.fromkeys(
        f"mariadb-plugin-{_PACKAGES[plugin.library]}" for plugin in missing if plugin.library in _PACKAGES
    )
    return f" (on Debian: apt install {' '.join(names)})" if names and known.maturity else ""


def _listing(plugins: Sequence[Plugin]) -> str:
    return ", ".join(plugin.describe() for plugin in plugins)
