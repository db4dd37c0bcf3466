"""The variables that a manifest and a snapshot's property keep of a server. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from zsnapdb.base.patterns import is_line
from zsnapdb.planning.server_copy.encryption import KEY_VARIABLES
from zsnapdb.planning.server_copy.variables import class_of, is_name, is_secret

RECORDED = (
    "datadir",
    "innodb_data_home_dir",
    "innodb_data_file_path",
    "innodb_log_group_home_dir",
    "innodb_undo_directory",
    "innodb_doublewrite_dir",
    "innodb_directories",
    "aria_log_dir_path",
    "log_bin",
    "log_bin_basename",
    "log_bin_index",
    "relay_log_basename",
    "relay_log_index",
    "innodb_page_size",
    "innodb_undo_tablespaces",
    "innodb_buffer_pool_size",
    "innodb_log_file_size",
    "innodb_log_files_in_group",
    "innodb_redo_log_capacity",
    "innodb_checksum_algorithm",
    "innodb_doublewrite",
    "lower_case_table_names",
    "character_set_server",
    "collation_server",
    "sql_mode",
    "explicit_defaults_for_timestamp",
    "gtid_mode",
    "enforce_gtid_consistency",
    "gtid_strict_mode",
    "gtid_domain_id",
    "binlog_format",
    "version",
    "version_comment",
    "general_log_file",
    "slow_query_log_file",
    "log_error",
    "ssl_key",
    "admin_ssl_key",
    *KEY_VARIABLES,
)
"""Variables that are recorded whatever their value: a copy needs them to start on the files and to read them."""

_WITHOUT_ORIGIN = (
    "autocommit",
    "character_set_client",
    "character_set_collations",
    "character_set_connection",
    "character_set_filesystem",
    "character_set_results",
    "character_set_server",
    "collation_connection",
    "collation_server",
    "default_storage_engine",
    "default_tmp_storage_engine",
    "enable_cascade_triggers",
    "enable_secondary_engine_statistics",
    "enforce_storage_engine",
    "lc_messages",
    "lc_time_names",
    "sql_big_selects",
    "system_time_zone",
    "time_zone",
    "transaction_isolation",
    "tx_isolation",
)
"""Variables of which a server says that they have their compiled default, even if an option set them; also those whose
default follows another option, so that a copy with that option starts with another value.

MySQL 8.0.15 and 9.7.4, MariaDB 10.5 to 11.8 were started with an option for every kept variable.
"""

EMPTY_COUNTS = ("sql_mode", "old_mode", "character_set_collations")
"""Variables of which an empty value is a setting."""


def recorded_variables(variables: Mapping[str, str], origins: Mapping[str, str] | None) -> dict[str, str]:
    """Return what is recorded of the global variables: RECORDED, and each setting that is not a compiled default.

    `origins` has the variables that the server says were set, with their origin. None: the server does not say which
    (MySQL before 8.0), so every variable that a copy keeps is recorded. No value is a secret, and each is one line.
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
    """Return what is recorded of the origins: those of settings, in one line each."""
    return {
        name: origin
        for name, origin in (origins or {}).items()
        if class_of(name).is_setting and is_line(origin) and is_name(name)
    }
