"""Facts about a server and its plugins that decisions depend on. They are collected by `mysql/probe.py`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from zsnapdb.base.domain_types import BinlogCoordinates, Flavour
from zsnapdb.base.gtid import GtidSet
from zsnapdb.base.patterns import ShortLine
from zsnapdb.planning.server_family import family
from zsnapdb.planning.server_time_zone import ServerZone

PluginName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_-]{0,63}$")]
PluginKind = Annotated[str, Field(pattern=r"^[A-Z][A-Z ]{0,63}$")]
LibraryName = Annotated[str, Field(pattern=r"^([A-Za-z0-9_][A-Za-z0-9_.+-]{0,127})?$")]
"""The name of a file in the plugin folder, never a path. It is "" if the plugin is built into the server program."""

COMPONENT = "COMPONENT"
FUNCTION = "LOADABLE FUNCTION"
INFORMATION = "INFORMATION SCHEMA"


class LoadedBy(StrEnum):
    """How a plugin is loaded: by an option, by the program, or by a row of `mysql.plugin`, `component` or `func`."""

    OPTION = "option"
    ROW = "row"


class Plugin(BaseModel):
    """A plugin of a server. Its `kind` is the type that the server reports, or COMPONENT, or FUNCTION.

    A plugin without a library is built in and can be switched off. If it was switched off, `is_active` is False.
    """

    model_config = ConfigDict(frozen=True, extra="ignore", defer_build=True)

    name: PluginName
    kind: PluginKind
    library: LibraryName = ""
    loaded_by: LoadedBy = LoadedBy.OPTION
    is_active: bool = True

    @property
    def option(self) -> str:
        """The name of the option that switches the plugin on or off."""
        return self.name.lower().replace("-", "_")

    def describe(self) -> str:
        return f"{self.kind.lower()} {self.name}" + (f" ({self.library})" if self.library else "")


class ServerPlugins(BaseModel):
    """The plugins of a server, its plugin folder, and the lowest allowed maturity of plugins (empty if unlimited)."""

    model_config = ConfigDict(frozen=True, extra="ignore", defer_build=True)

    plugins: tuple[Plugin, ...] = ()
    folder: ShortLine = ""
    maturity: Annotated[str, Field(pattern=r"^[a-z]{0,16}$")] = ""


_UNLOADED = tuple(
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        # ER_UNKNOWN_STORAGE_ENGINE, ER_PLUGIN_IS_NOT_LOADED, ER_CANT_OPEN_LIBRARY, ER_FUNCTION_NOT_DEFINED,
        # ER_UNKNOWN_DATA_TYPE and ER_PROVIDER_NOT_LOADED of MariaDB, ER_COMPONENTS_CANT_LOAD.
        r"Unknown storage engine '([^']{1,64})'",
        r"Plugin '([^']{1,64})' is not loaded",
        r"Can't open shared library '(?:[^']{0,512}/)?([^'/]{1,128})'",
        r"Function '([^']{1,64})' is not defined",
        r"Unknown data type: '([^']{1,64})'",
        r"tried to use the ([A-Za-z0-9_]{1,64}) compression, but its provider plugin is not loaded",
        r"Cannot load component from specified URN: 'file://([^']{1,128})'",
    )
)
"""Error texts of MySQL and MariaDB, from the error references (numbers 1286, 1524, 1126, 1128, 4161, 4185, 3529)."""
_REFUSED_PASSWORD = re.compile(r"does not satisfy the current policy requirements \(([A-Za-z0-9_]{1,64})\)")
"""MariaDB's ER_NOT_VALID_PASSWORD. MariaDB's appliers check the passwords in replayed statements again."""
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]{0,127}")


def unloaded_plugin(text: str) -> str | None:
    """Return the plugin, function or library that is not loaded according to an error; None for any other error."""
    for pattern in _UNLOADED:
        match = pattern.search(text)
        if match is not None and _NAME.fullmatch(match[1]):
            return match[1]
    return None


def plugin_hint(text: str) -> str:
    """Return a hint if an error is about a missing plugin or about a plugin that refuses a password; else ""."""
    name = unloaded_plugin(text)
    if name is not None:
        return (
            f'the server of the copy does not load {name}: add "plugin_load_add={library_of(name)}" to'
            " server.options of the instance. If the error log says that its library is missing, install it; name a"
            " file that the library reads in server.sandbox_reads"
        )
    refusing = _REFUSED_PASSWORD.search(text)
    if refusing is not None:
        option = f"loose_{refusing[1].lower()}=OFF"
        return f'add "{option}" to server.options of the instance: this plugin refuses a password of the source'
    return ""


_LIBRARIES = {
    "auth_socket": "auth_socket.so",
    "ed25519": "auth_ed25519.so",
    "federated": "ha_federatedx.so",
    "gssapi": "auth_gssapi.so",
    "mecab": "libpluginmecab.so",
    "mysql_json": "type_mysql_json.so",
    "mysql_native_password": "mysql_native_password.so",
    "mysql_no_login": "mysql_no_login.so",
    "named_pipe": "auth_named_pipe.so",
    "pam": "auth_pam.so",
    "parsec": "auth_parsec.so",
    "unix_socket": "auth_socket.so",
    **{name.lower(): f"provider_{name.lower()}.so" for name in ("BZip2", "LZ4", "LZMA", "LZO", "Snappy")},
}
"""The libraries of plugins whose names do not follow the pattern for storage engines."""


def library_of(name: str) -> str:
    """Return the file name of the plugin's library in the packages of MariaDB and MySQL.

    The default is the name for a storage engine, `ha_NAME.so`.
    """
    return name if ".so" in name else _LIBRARIES.get(name.lower(), f"ha_{name.lower()}.so")


def release_of(version: str) -> tuple[int, ...]:
    """Return a version as numbers that can be compared (8.0.30-log -> (8, 0, 30))."""
    return tuple(int(number) for number in version.split("-", 1)[0].split(".") if number.isdecimal())


@dataclass(frozen=True)
class Dialect:
    """The variants of statements that the server's parser accepts."""

    position: str = "SHOW MASTER STATUS"
    channels: str = "SHOW SLAVE STATUS"
    stop_applier: str = "STOP SLAVE SQL_THREAD"
    start_applier: str = "START SLAVE SQL_THREAD"


@dataclass(frozen=True)
class Channel:
    """A replication channel: its source, its state, and its position in the source's binlog.

    The fields `coordinates` and `gtids` (as printed) are positions in the source's binlog. If the server does not show
    GTIDs, `gtids` is empty. The field `filters` contains the replication filters, such as `Replicate_Ignore_DB = shop`.
    """

    name: str
    host: str
    port: int
    receiving: bool
    applying: bool
    coordinates: BinlogCoordinates | None
    gtids: str = ""
    filters: tuple[str, ...] = ()


@dataclass(frozen=True)
class ServerFacts:
    """The facts about a server that the server itself reports.

    - `variables`: the global variables by lower-case name
    - `engines`: the storage engines of user tables, each with its number of tables
    - `lock_statements`: the statements of lock strategies that the server's parser accepts
    - `prepared_xa`: the number of prepared external XA transactions; None if the account may not list them
    - `row_versions`: the number of tables that INSTANT ADD or DROP COLUMN changed
    - `plugins`, `zone`: the plugins, and the time zone of the server process; None if they were not queried
    - `origins`: each variable without its compiled default, and the origin of its value; None if unknown
    - `binlog_do`: the only schemas that are logged; `binlog_ignore`: the schemas that are not logged
    - `schemas`: the user schemas, if `binlog_do` is not empty
    """

    flavour: Flavour
    version: str
    server_uuid: str | None
    server_id: int
    variables: Mapping[str, str]
    engines: Mapping[str, int]
    tablespace_files: tuple[str, ...]
    lock_statements: frozenset[str] = frozenset()
    dialect: Dialect = Dialect()
    sees_all_tables: bool = True
    redo_disabled: bool = False
    channels: tuple[Channel, ...] = ()
    prepared_xa: int | None = 0
    row_versions: int = 0
    gtid_purged: GtidSet = field(default_factory=GtidSet)
    plugins: ServerPlugins | None = None
    origins: Mapping[str, str] | None = None
    binlog_do: tuple[str, ...] = ()
    binlog_ignore: tuple[str, ...] = ()
    schemas: tuple[str, ...] = ()
    zone: ServerZone | None = None

    @property
    def has_binlog(self) -> bool:
        return self.variables.get("log_bin", "OFF") in ("ON", "1")

    @property
    def has_gtids(self) -> bool:
        """Whether transactions have GTIDs. On MariaDB they always have GTIDs; on MySQL, `gtid_mode` determines this."""
        return family(self.flavour).numbers_always or self.variables.get("gtid_mode", "OFF").startswith("ON")

    @property
    def is_percona(self) -> bool:
        return "percona" in self.variables.get("version_comment", "").lower()

    @property
    def release(self) -> tuple[int, ...]:
        return release_of(self.version)

    def describe(self) -> str:
        return f"{self.flavour} {self.version}, server_id {self.server_id}" + (
            f", server_uuid {self.server_uuid}" if self.server_uuid else ""
        )


_PLACES = {
    "datadir": "datadir",
    "innodb_data_home_dir": "innodb_data_home_dir",
    "innodb_log_group_home_dir": "innodb_log_group_home_dir",
    "innodb_undo_directory": "innodb_undo_directory",
    "innodb_doublewrite_dir": "innodb_doublewrite_dir",
    "innodb_directories": "innodb_directories",
    "aria_log_dir_path": "aria_log_dir_path",
    "log_bin_basename": "log_bin",
    "relay_log_basename": "relay_log",
}
"""Recorded variables with the places of a server's files, and the options that set them."""


def place_options(variables: Mapping[str, str]) -> tuple[str, ...]:
    """Return the option file lines with which a server finds its files at the paths of the recorded server.

    A path is left out if the server finds it without an option: a relative path, or the data directory itself.
    """
    datadir = variables.get("datadir", "").rstrip("/")
    places = ((option, variables.get(name, "").rstrip("/")) for name, option in _PLACES.items())
    return tuple(
        f"{option} = {value}"
        for option, value in places
        if value.startswith("/") and (option == "datadir" or value != datadir)
    )
