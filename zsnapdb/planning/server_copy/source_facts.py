"""The facts about a server that are needed to run another server on a copy of its files. Pure.

A user property of every snapshot in a set, and of every clone, contains these facts. So a copy can be created and
started even if the source is down and the repository is unreachable.
"""

from __future__ import annotations

import base64
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from pydantic import BaseModel, ConfigDict, ValidationError

from zsnapdb.base.domain_types import PROPERTY, Flavour
from zsnapdb.base.errors import DamagedError, PreflightError
from zsnapdb.base.gtid import GtidSet
from zsnapdb.base.patterns import is_line
from zsnapdb.planning.server_copy.variables import VariableClass, class_of, is_name, is_secret
from zsnapdb.planning.server_facts import ServerFacts, ServerPlugins
from zsnapdb.planning.server_family import family
from zsnapdb.planning.server_time_zone import ServerZone

_PLUGINS = {
    "file_key_management_filename": ("plugin_load_add", "file_key_management"),
    "hashicorp_key_management_vault_url": ("plugin_load_add", "hashicorp_key_management"),
    "aws_key_management_master_key_id": ("plugin_load_add", "aws_key_management"),
    "keyring_file_data": ("early_plugin_load", "keyring_file.so"),
    "keyring_encrypted_file_data": ("early_plugin_load", "keyring_encrypted_file.so"),
    "keyring_okv_conf_dir": ("early_plugin_load", "keyring_okv.so"),
    "keyring_vault_config": ("early_plugin_load", "keyring_vault.so"),
}
KEY_VARIABLES = tuple(_PLUGINS)
"""Variables that exist only while a key plugin is loaded. Manifests record them, because they contain no secret.

Sources: MariaDB manual, "File Key Management Encryption Plugin" and related pages; refman 8.0, "Keyring System
Variables".
"""

_MARIADB_KEY_FILE = "file_key_management_filename"
_SIGNS = ("encrypt", "keyring", "decrypt")


@dataclass(frozen=True)
class MissingOption:
    """An option line that the source had but the configured options lack."""

    line: str


def missing_options(variables: Mapping[str, str], options: Sequence[str]) -> tuple[MissingOption, ...]:
    """Return the options for key plugins that the source had but `options` (`server.options`) lacks.

    Values are those of the source. On another host, file paths may differ.
    """
    given = [option.replace("-", "_") for option in options]
    missing: list[MissingOption] = []
    for variable in KEY_VARIABLES:
        if not variables.get(variable):
            continue
        plugin, name = _PLUGINS[variable]
        if not any(line.partition("=")[0].strip().endswith(plugin) and name.split(".")[0] in line for line in given):
            missing.append(MissingOption(f"{plugin}={name}"))
        if not any(variable in line.partition("=")[0] for line in given):
            missing.append(MissingOption(f"{variable}={variables[variable]}"))
    return tuple(missing)


def advice(missing: Sequence[MissingOption], log: str, absent: Sequence[str] = ()) -> str | None:
    """Return advice for a server on a copy that did not start; None if its log and options do not hint at encryption.

    The argument `absent` contains the key files of the source that this host lacks.
    """
    files = f"; the source read its keys from {', '.join(absent)}, and this host has no such file" if absent else ""
    if missing:
        lines = ", ".join(f'"{option.line}"' for option in missing)
        # This option of the source is not recorded, because its value may be the passphrase itself.
        passphrase = (
            " (and file_key_management_filekey=FILE:PATH, if that file is encrypted)"
            if any(option.line.startswith(_MARIADB_KEY_FILE) for option in missing)
            else ""
        )
        return (
            f"the source loaded a key plugin: add {lines}{passphrase} to server.options, and give this host the"
            f" keys{files}"
        )
    errors = [line.lower() for line in log.splitlines() if "error" in line.lower()]
    if any(sign in line for line in errors for sign in _SIGNS):
        return (
            "files of the server are encrypted: give this host the keys, and the server program the keyring component"
            " or plugin of the source (mysqld.my next to the program, or server.options), and name the files outside"
            f" of it in server.sandbox_reads{files}"
        )
    return None


RECORDED = (
    *("datadir", "innodb_data_home_dir", "innodb_data_file_path", "innodb_log_group_home_dir"),
    *("innodb_undo_directory", "innodb_doublewrite_dir", "innodb_directories", "aria_log_dir_path", "log_bin"),
    *("log_bin_basename", "log_bin_index", "relay_log_basename", "relay_log_index", "innodb_page_size"),
    *("innodb_undo_tablespaces", "innodb_buffer_pool_size", "innodb_log_file_size", "innodb_log_files_in_group"),
    *("innodb_redo_log_capacity", "innodb_checksum_algorithm", "innodb_doublewrite", "lower_case_table_names"),
    *("character_set_server", "collation_server", "sql_mode", "explicit_defaults_for_timestamp", "gtid_mode"),
    *("enforce_gtid_consistency", "gtid_strict_mode", "gtid_domain_id", "binlog_format", "version"),
    *("version_comment", "general_log_file", "slow_query_log_file", "log_error", "ssl_key", "admin_ssl_key"),
    *KEY_VARIABLES,
)
"""Variables that are always recorded, because a copy needs them to start on the files and read them."""

_WITHOUT_ORIGIN = (
    *("autocommit", "character_set_client", "character_set_collations", "character_set_connection"),
    *("character_set_filesystem", "character_set_results", "character_set_server", "collation_connection"),
    *("collation_server", "default_storage_engine", "default_tmp_storage_engine", "enable_cascade_triggers"),
    *("enable_secondary_engine_statistics", "enforce_storage_engine", "lc_messages", "lc_time_names"),
    *("sql_big_selects", "system_time_zone", "time_zone", "transaction_isolation", "tx_isolation"),
)
"""Variables that a server reports as compiled defaults even if an option set them.

The list also contains variables whose default depends on another option that may differ on a copy. MySQL 8.0.15 and
9.7.4, and MariaDB 10.5 to 11.8, were tested with an option for every variable that a copy keeps.
"""

EMPTY_COUNTS = ("sql_mode", "old_mode", "character_set_collations")
"""Variables for which an empty value is a real setting."""


def recorded_variables(variables: Mapping[str, str], origins: Mapping[str, str] | None) -> dict[str, str]:
    """Return the variables to record: those in RECORDED, and every setting that differs from its compiled default.

    The argument `origins` maps each variable that the server reports as set to its origin. If the server does not
    report origins (MySQL before 8.0), `origins` is None, and every variable that a copy keeps is recorded. Secrets and
    values with several lines are never recorded.
    """
    return {
        name: variables[name]
        for name in dict.fromkeys((*RECORDED, *_settings(variables, origins)))
        if name in variables and is_line(variables[name]) and is_name(name)
    }


def _settings(variables: Mapping[str, str], origins: Mapping[str, str] | None) -> Iterator[str]:
    for name, value in sorted(variables.items()):
        if is_secret(name) or (not value and name not in EMPTY_COUNTS and (origins is None or name in _WITHOUT_ORIGIN)):
            continue
        kind = class_of(name)
        if name in _WITHOUT_ORIGIN or (kind.is_kept if origins is None else kind.is_setting and name in origins):
            yield name


def recorded_origins(origins: Mapping[str, str] | None) -> dict[str, str]:
    """Return the origins to record: those of settings, each as one line."""
    return {
        name: origin
        for name, origin in (origins or {}).items()
        if class_of(name).is_setting and is_line(origin) and is_name(name)
    }


ORIGIN_PROPERTY = f"{PROPERTY}:origin"

PROPERTY_BYTES = 8000
"""The maximum length of the encoded facts. The value of a user property may have 8191 bytes (zfsprops(7))."""

_PACKED = "zlib:"
_LONGEST = 1 << 20
_KEPT_FILES = 3


class Place(BaseModel):
    """A volume of the source: its dataset and its mount point."""

    model_config = ConfigDict(frozen=True, defer_build=True)

    dataset: str
    mountpoint: str


class SourceServer(BaseModel):
    """A server at the time of the snapshot of its files.

    The field `variables` contains the recorded variables, with absolute paths. The field `volumes` maps each role to
    its volume. The field `absolute_tablespaces` contains the first few tablespaces with absolute paths. The field
    `unlogged` contains the GTIDs that no binlog contained, if known.
    """

    model_config = ConfigDict(frozen=True, extra="ignore", defer_build=True)

    flavour: Flavour
    version: str
    server_uuid: str | None
    server_id: int
    variables: dict[str, str]
    volumes: dict[str, Place]
    absolute_tablespaces: tuple[str, ...] = ()
    unlogged: str | None = None
    key_files: tuple[str, ...] = ()
    """The files from which the server read the keys of encrypted tables and binlogs."""
    binlog_key: str | None = None
    """The name of the key that encrypted the server's newest binlog."""
    plugins: ServerPlugins | None = None
    zone: ServerZone | None = None

    @classmethod
    def of(
        cls,
        facts: ServerFacts,
        volumes: Mapping[str, str],
        mountpoints: Mapping[str, str],
        absolute: Sequence[str],
        key_files: Sequence[str] = (),
        binlog_key: str | None = None,
    ) -> SourceServer:
        """Return the source facts of a probed server. The datasets and mount points are given by role."""
        return cls(
            flavour=facts.flavour,
            version=facts.version,
            server_uuid=facts.server_uuid,
            server_id=facts.server_id,
            variables=recorded_variables(facts.variables, facts.origins),
            volumes={role: Place(dataset=dataset, mountpoint=mountpoints[role]) for role, dataset in volumes.items()},
            absolute_tablespaces=tuple(absolute[:_KEPT_FILES]),
            unlogged=str(facts.gtid_purged),
            key_files=tuple(key_files[:_KEPT_FILES]),
            binlog_key=binlog_key,
            plugins=facts.plugins,
            zone=facts.zone,
        )

    @property
    def has_gtids(self) -> bool:
        """Whether the server's transactions have GTIDs.

        On MariaDB, they always have GTIDs. On MySQL, `gtid_mode` determines this.
        """
        return family(self.flavour).numbers_always or self.variables.get("gtid_mode", "OFF").startswith("ON")

    @property
    def unlogged_gtids(self) -> GtidSet | None:
        """The GTIDs that no binlog contained; None if unknown."""
        return GtidSet.parse(self.unlogged) if self.unlogged is not None else None

    def encode(self) -> str:
        """Return the facts as one line for a user property, compressed if the line is long.

        If the line is too long for the property, `unlogged` is left out first, and then the longest settings.
        """
        for shorter in self._ever_shorter():
            whole = shorter.model_dump_json(exclude_defaults=True)
            if len(whole.encode()) <= PROPERTY_BYTES:
                return whole
            packed = _PACKED + base64.b85encode(zlib.compress(whole.encode(), 9)).decode()
            if len(packed) <= PROPERTY_BYTES:
                return packed
        raise DamagedError(f"the facts of {self.describe()} do not fit into a property", hint="report this")

    def _ever_shorter(self) -> Iterator[SourceServer]:
        yield self
        shorter = self.model_copy(update={"unlogged": None})
        yield shorter
        spare = sorted(set(self.variables) - set(RECORDED), key=lambda name: len(self.variables[name]))
        while spare:
            gone = spare.pop()
            left = {name: value for name, value in shorter.variables.items() if name != gone}
            shorter = shorter.model_copy(update={"variables": left})
            yield shorter

    def describe(self) -> str:
        return f"{self.flavour} {self.version}, server_id {self.server_id}" + (
            f", server_uuid {self.server_uuid}" if self.server_uuid else ""
        )


def decode(text: str, where: str) -> SourceServer:
    """Return the source facts in the text of the property.

    Raises DamagedError if the text does not contain source facts. The error message contains `where`.
    """
    try:
        return SourceServer.model_validate_json(_unpacked(text) if text.startswith(_PACKED) else text)
    except (ValidationError, ValueError, zlib.error) as error:
        raise DamagedError(
            f"{ORIGIN_PROPERTY} of {where} cannot be read", hint="it was altered, or a newer zsnapdb wrote it"
        ) from error


def _unpacked(text: str) -> bytes:
    """Return the unpacked text of a property.

    Raises ValueError if the text is truncated or longer than the facts of any server.
    """
    unpacker = zlib.decompressobj()
    whole = unpacker.decompress(base64.b85decode(text.removeprefix(_PACKED)), _LONGEST)
    if not unpacker.eof:
        raise ValueError("the text is truncated or too long")
    return whole


LONGEST_LINE = 4000
"""The maximum length in bytes of a line in an option file. The servers read lines into a buffer of 4096 bytes."""

_STRICT = frozenset(name for flavour in Flavour for name in family(flavour).strict_variables)
_PLAIN = re.compile(r"[A-Za-z0-9_,.+:=@-]*")
_ZONE = re.compile(r"[A-Za-z0-9_+-]+(/[A-Za-z0-9_+-]+)*|[+-][0-9]{1,2}:[0-9]{2}")
_TABLE = re.compile(r"[^/.\\\x00-\x1f]+/[^/.\\\x00-\x1f]+|")
_FORMS = {"time_zone": _ZONE, "innodb_ft_server_stopword_table": _TABLE, "innodb_ft_user_stopword_table": _TABLE}
_TEXTS = frozenset(
    (
        *("authentication_policy", "date_format", "datetime_format", "default_regex_flags", "ft_boolean_syntax"),
        *("init_connect", "mandatory_roles", "session_track_system_variables", "time_format"),
    )
)
"""Variables that take any text in one line."""

OPTIONS = {
    "time_zone": "default_time_zone",
    "tx_isolation": "transaction_isolation",
    "storage_engine": "default_storage_engine",
}
"""Options whose name differs from the name of the variable that they set."""

_OWN = frozenset((VariableClass.PATH, VariableClass.IDENTITY, VariableClass.NETWORK, VariableClass.ACCESS))
"""The setting classes that a plan omits. Every copy has its own paths, identity and network, and accepts writes."""

LISTS = {"ignore_db_dirs": ("ignore_db_dirs", "ignore_db_dir")}
"""Options that are repeated for each part of the value. The names of these options differ between MySQL and MariaDB."""


@dataclass(frozen=True)
class ExcludedObject:
    """A setting of the source that a copy does not get, and the reason."""

    name: str
    value: str
    reason: str

    def __str__(self) -> str:
        return f"{self.name} = {self.value[:80]!r}: {self.reason}"


def _objection(name: str, value: str) -> str | None:
    """Return why an option file cannot contain this value; None if it can."""
    if not is_line(value):
        return "its value has several lines or control characters"
    if name in _TEXTS:
        return None
    if _FORMS.get(name, _PLAIN).fullmatch(value) is None:
        return "its value has characters that no value of this variable has"
    return None


def _quoted(value: str) -> str:
    """Return the value for an option file: plain, or in quotes with escapes."""
    if _PLAIN.fullmatch(value):
        return value
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def option_line(prefix: str, name: str, value: str) -> str:
    """Return the line of an option file that sets the variable."""
    return f"{prefix}{name}={_quoted(value)}"


def _kept_variables(variables: Mapping[str, str]) -> Iterator[tuple[str, str, VariableClass]]:
    for name, value in sorted(variables.items()):
        if not is_name(name) or name in KEY_VARIABLES:  # The configured lines load the keys.
            continue
        kind = class_of(name)
        if kind.is_kept and not is_secret(name):
            yield name, value, kind


def kept_lines(flavour: Flavour, variables: Mapping[str, str], options: Sequence[str] = ()) -> tuple[str, ...]:
    """Return the lines of an option file for the settings of the source.

    The argument `options` contains the configured lines (`server.options`), which may load the source's keys. Raises
    PreflightError if a variable that affects the files has a value that no server could have reported.
    """
    lines = []
    for name, value, kind in _kept_variables(variables):
        reason = _reason(name, value, kind, variables, options)
        if reason is not None or kind is VariableClass.STATEMENT:
            continue
        prefix = "" if name in family(flavour).strict_variables else "loose_"
        if name in LISTS:
            parts = [part for part in value.split(",") if part]
            lines += [option_line("loose_", option, part) for part in parts for option in LISTS[name]]
        else:
            lines.append(option_line(prefix, OPTIONS.get(name, name), value))
    return tuple(lines)


def _reason(
    name: str, value: str, kind: VariableClass, variables: Mapping[str, str], options: Sequence[str]
) -> str | None:
    """Return why a copy does not get this setting, although copies keep its class; None if the copy gets it."""
    objection = _objection(name, value)
    if objection is not None and name in _STRICT:
        raise PreflightError(
            f"the backup says that the server had {name} = {value[:80]!r}, which is not a valid value",
            hint="the manifest was altered; restore another backup, see `zsnapdb list`",
        )
    if objection is None and len(option_line("loose_", name, value).encode()) > LONGEST_LINE:
        objection = f"its line would be longer than {LONGEST_LINE} bytes, which an option file cannot have"
    if objection is None and kind is VariableClass.ENCRYPTION and missing_options(variables, options):
        return "the options that load the source's keys are not in server.options"
    return objection


def kept_statements(variables: Mapping[str, str]) -> tuple[str, ...]:
    """Return the statements that a server runs at startup to apply settings for which there is no option."""
    return tuple(
        f"SET GLOBAL {name} = {value if value.isdecimal() else repr(value)};"
        for name, value, kind in _kept_variables(variables)
        if kind is VariableClass.STATEMENT and _PLAIN.fullmatch(value) and value
    )


def left_out(variables: Mapping[str, str], options: Sequence[str] = ()) -> tuple[ExcludedObject, ...]:
    """Return the recorded settings that a copy does not get, with the reason for each."""
    missing = []
    for name, value in sorted(variables.items()):
        kind = class_of(name)
        if not kind.is_setting:
            continue
        reason = _reason(name, value, kind, variables, options) if kind.is_kept else kind.value
        if reason is not None:
            missing.append(ExcludedObject(name, value, reason))
    return tuple(missing)


def notes_on(variables: Mapping[str, str], options: Sequence[str], zones: Sequence[str] | None) -> tuple[str, ...]:
    """Return notes for a plan about settings of the source that a copy does not get, one line per reason.

    - `options`: the configured lines (`server.options`)
    - `zones`: the names of this host's time zone; None if the source's zone is recorded, which
      `planning/server_time_zone.py` evaluates

    The result omits variables that are always recorded, and the classes in `_OWN`.
    """
    reasons: dict[str, list[str]] = {}
    for out in left_out(variables, options):
        kind = class_of(out.name)
        is_own = kind in _OWN or (out.name in RECORDED and not kind.is_kept)
        if not is_own and not any(option_name(line) == out.name for line in options):
            reasons.setdefault(out.reason, []).append(out.name)
    notes = [f"not from the source: {', '.join(names)} ({reason})" for reason, names in reasons.items()]
    source = variables.get("system_time_zone", "")
    if zones is not None and variables.get("time_zone") == "SYSTEM" and source and source not in zones:
        notes.append(
            f"the source showed times in the zone {source} of its host, this host has {'/'.join(zones)}: set"
            " default_time_zone in server.options to show the same local times"
        )
    return tuple(notes)


def option_name(line: str) -> str:
    """Return the name of the variable that a line of an option file sets."""
    return line.partition("=")[0].strip().lower().replace("-", "_").removeprefix("loose_")
