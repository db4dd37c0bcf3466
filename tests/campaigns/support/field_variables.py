"""Settings of the servers in the campaign `field`: random values for the variables of the guest's release.

The list is the server's own. A variable is drawn if its values are known: switches, numbers with their bounds,
enumerations, sets. For texts a few values are given here. A setting that no guest can have is excluded with a reason.
"""

from __future__ import annotations

import random
import re
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum

import pymysql

from zsnapdb.base.domain_types import Flavour

Cursor = pymysql.cursors.Cursor

EXCLUDED: tuple[tuple[str, str], ...] = (
    (
        r"innodb_force_(load|recovery)|innodb_read_only|skip_grant|skip_networking|super_read_only|^read_only$|offline|bootstrap|init_",
        "the campaign could not write",
    ),
    (r"require_secure|^tls_|^ssl_|admin_|_ssl|certs|x509|secure_auth|proxy_protocol", "the guest has no certificates"),
    (r"page_size|block_size$|undo_tablespaces|data_file_path|lower_case|files_in_group|chunk_size", "its files"),
    (
        r"^gtid|enforce_gtid|^log_bin(_basename|_index)?$|server_id|^port$|extra_port|_port$|listener|server_uuid",
        "identity of the guest",
    ),
    (r"wsrep|group_replication|^rpl_semi|semi_sync|^ndb|mysqlx", "needs other servers"),
    (r"performance_schema|^performance", "its tables cost 8 s at each start in a guest"),
    (r"encrypt|keyring|default_encryption", "the campaign encrypted has it"),
    (r"debug|core_file|gdb|thread_handling|large_page|numa|native_aio|linux_aio|flush_method|fips|locked_in|memlock",
     "the kernel of the guest"),
    (r"_now$|_abort$|_reset|_disable$|_enable$|flush_time$|_crash|skip_counter|^timestamp$|shutdown_timeout",
     "an act and not a setting"),
    (r"buffer_pool_size_|dedicated_server|server_memory|container_aware|^innodb_buffer_pool_size", "its memory"),
    (r"plugin_maturity|persist|sql_log_bin|old_mode|secondary_engine|pseudo_|_time_zone$|^have_|^profiling$|event_sched",
     "not a setting of a server in use"),
    (r"^storage_engine|^tx_|^slave_|^sync_master|^init_slave|^rpl_stop_slave|master_verify|^log_slave|^skip_slave",
     "another name of a variable"),
    (r"open_files_limit|max_connections|back_log|thread_stack|max_user_conn|extra_max_conn", "limits of the guest"),
    (r"replicate_|binlog_(do|ignore)_db", "what is not in the binlog is not in a restore"),
)  # fmt: skip
"""Patterns of variables that no round draws, with the reason."""

_ADJUSTED = frozenset({"innodb_thread_sleep_delay"})
"""InnoDB adjusts the delay of its queue, up to innodb_adaptive_max_sleep_delay."""
_ENGINES = {Flavour.MYSQL: ("MyISAM", "InnoDB"), Flavour.MARIADB: ("MyISAM", "Aria", "InnoDB")}
_TEXTS: dict[str, tuple[str, ...]] = {
    "default_time_zone": ("+05:45", "-03:00", "+00:00"),
    "lc_time_names": ("de_DE", "ja_JP"),
    "character_set_server": ("latin1", "ascii", "utf8mb3"),
    "sql_mode": (
        "",
        "ANSI_QUOTES,NO_BACKSLASH_ESCAPES",
        "PIPES_AS_CONCAT,IGNORE_SPACE,NO_ZERO_DATE",
        "PAD_CHAR_TO_FULL_LENGTH,NO_UNSIGNED_SUBTRACTION",
        "NO_AUTO_VALUE_ON_ZERO,HIGH_NOT_PRECEDENCE",
        "ANSI,TRADITIONAL",
    ),
    "block_encryption_mode": ("aes-256-cbc",),
    "ft_boolean_syntax": ("+ -><()~*:\"\"&^",),
}  # fmt: skip
"""Values of text variables."""
FAVOURITES: dict[str, tuple[str, ...]] = {
    "innodb_strict_mode": ("OFF",),
    "explicit_defaults_for_timestamp": ("OFF",),
    "sql_select_limit": ("3", "100"),
    "max_join_size": ("5",),
    "autocommit": ("OFF",),
    "completion_type": ("CHAIN", "RELEASE"),
    "transaction_isolation": ("READ-COMMITTED", "SERIALIZABLE", "READ-UNCOMMITTED"),
    "innodb_default_row_format": ("compact", "redundant"),
    "innodb_file_per_table": ("OFF",),
    "sql_generate_invisible_primary_key": ("ON",),
    "sql_require_primary_key": ("ON",),
    "innodb_force_primary_key": ("ON",),
    "sql_safe_updates": ("ON",),
    "sql_big_selects": ("OFF",),
    "sql_quote_show_create": ("OFF",),
    "group_concat_max_len": ("4", "10"),
    "max_statement_time": ("20",),
    "max_execution_time": ("20000",),
    "binlog_row_image": ("MINIMAL", "NOBLOB"),
    "binlog_row_metadata": ("FULL",),
    "binlog_checksum": ("NONE",),
    "binlog_format": ("MIXED",),
    "binlog_row_value_options": ("PARTIAL_JSON",),
    "binlog_transaction_compression": ("ON",),
    "innodb_compression_default": ("ON",),
    "log_bin_compress": ("ON",),
    "foreign_key_checks": ("OFF",),
    "unique_checks": ("OFF",),
    "check_constraint_checks": ("OFF",),
    "sql_auto_is_null": ("ON",),
    "auto_increment_increment": ("5",),
    "auto_increment_offset": ("3",),
    "transaction_read_only": ("ON",),
    "innodb_flush_log_at_trx_commit": ("0", "2"),
    "wait_timeout": ("5",),
    "show_gipk_in_create_table_and_information_schema": ("OFF",),
    "system_versioning_asof": ("2020-01-01 00:00:00",),
    "sql_if_exists": ("ON",),
    "log_output": ("TABLE",),
    "general_log": ("ON",),
    "div_precision_increment": ("0", "8"),
    "default_week_format": ("3",),
    "ft_min_word_len": ("2",),
    "innodb_ft_min_token_size": ("1",),
    "innodb_ft_enable_stopword": ("OFF",),
}
"""Settings that change data, the meaning of a statement, or a session's answers. They are half of a draw."""


class Way(StrEnum):
    """How a variable is set."""

    FILE = "option file"
    GLOBAL = "SET GLOBAL"
    PERSIST = "SET PERSIST"


@dataclass(frozen=True)
class Variable:
    """A variable of the release: its known values, and how it can be set."""

    name: str
    default: str
    values: tuple[str, ...]
    is_dynamic: bool
    is_option: bool


@dataclass(frozen=True)
class Setting:
    name: str
    value: str
    way: Way

    @property
    def line(self) -> str:
        """Return the line of an option file."""
        return f"loose_{self.name} = '{self.value}'" if '"' not in self.value else f"loose_{self.name} = {self.value}"

    @property
    def statement(self) -> str:
        """Return the statement that sets the variable now."""
        is_number = re.fullmatch(r"-?[0-9]+(\.[0-9]+)?", self.value) is not None
        value = self.value if is_number else "'" + self.value.replace("'", "''") + "'"
        name = "time_zone" if self.name == "default_time_zone" else self.name
        return f"SET {'PERSIST' if self.way is Way.PERSIST else 'GLOBAL'} {name} = {value}"

    def __str__(self) -> str:
        return f"{self.name}={self.value} ({self.way})"


def exclusion(name: str) -> str | None:
    """Return the reason why no round draws the variable, or None."""
    return next((reason for pattern, reason in EXCLUDED if re.search(pattern, name)), None)


def read_variables(cursor: Cursor, flavour: Flavour, daemon: str) -> tuple[Variable, ...]:
    """Return all variables of the running server that a round may draw."""
    found = _of_mariadb(cursor) if flavour is Flavour.MARIADB else _of_mysql(cursor, daemon)
    engines = _ENGINES[flavour]
    known = {one.name for one in found}
    texts = {**_TEXTS, "default_storage_engine": engines, "default_tmp_storage_engine": engines}
    by_text = [
        Variable(name, "", values, name != "ft_stopword_file", True)
        for name, values in texts.items()
        if name in known or name == "default_time_zone"
    ]
    return tuple(sorted([*(one for one in found if one.values and one.name not in texts), *by_text], key=_name))


def _name(variable: Variable) -> str:
    return variable.name


def _of_mariadb(cursor: Cursor) -> list[Variable]:
    cursor.execute(
        "SELECT LOWER(variable_name), variable_type, COALESCE(default_value, ''), numeric_min_value, numeric_max_value,"
        " numeric_block_size, COALESCE(enum_value_list, ''), read_only, command_line_argument"
        " FROM information_schema.system_variables WHERE variable_scope <> 'SESSION ONLY'"
    )
    found = []
    for name, kind, default, low, high, block, listed, read_only, argument in cursor.fetchall():
        values: tuple[str, ...] = ()
        if exclusion(name) is None and (argument is not None or read_only == "NO"):
            values = _values(kind, default, (low, high, block), tuple(listed.split(",")) if listed else ())
        found.append(Variable(name, default, values, read_only == "NO", argument is not None))
    return found


def _of_mysql(cursor: Cursor, daemon: str) -> list[Variable]:
    told = subprocess.run([daemon, "--no-defaults", "--verbose", "--help"], capture_output=True, text=True, check=False)
    options = {match.replace("-", "_") for match in re.findall(r"(?m)^([a-z][a-z0-9-]+) +\S", told.stdout)}
    cursor.execute(
        "SELECT variable_name, data_type, min_value, max_value, COALESCE(g.variable_value, '')"
        " FROM performance_schema.variables_metadata JOIN performance_schema.global_variables g USING (variable_name)"
        " WHERE variable_scope <> 'SESSION_ONLY'"
    )
    found = []
    for name, kind, low, high, default in cursor.fetchall():
        if exclusion(name) is not None:
            found.append(Variable(name, default, (), False, False))
            continue
        is_dynamic = _is_dynamic(cursor, name)
        listed = _enumeration(cursor, name) if kind == "Enumeration" and is_dynamic else ()
        values = _values(kind.upper(), default, (low, high, 0), listed)
        found.append(Variable(name, default, values, is_dynamic, name in options))
    return found


def _is_dynamic(cursor: Cursor, name: str) -> bool:
    """Whether a running server accepts the variable: it is set to its present value."""
    try:
        cursor.execute(f"SET GLOBAL {name} = @@GLOBAL.{name}")
    except pymysql.MySQLError as error:
        # 1238: the variable is read only. Other refusals concern the value.
        return bool(error.args[0] != 1238)
    return True


def _enumeration(cursor: Cursor, name: str) -> tuple[str, ...]:
    """Return the values of an enumeration, queried from the server by number."""
    cursor.execute(f"SELECT @@GLOBAL.{name}")
    ((before,),) = cursor.fetchall()
    values = []
    with suppress(pymysql.MySQLError):
        for number in range(12):
            cursor.execute(f"SET GLOBAL {name} = {number}")
            cursor.execute(f"SELECT @@GLOBAL.{name}")
            values.append(str(cursor.fetchall()[0][0]))
    if not values:
        return ()
    cursor.execute(f"SET GLOBAL {name} = %s", (before,))
    return tuple(dict.fromkeys(values))


def _values(
    kind: str, default: str, bounds: tuple[str | None, str | None, str | int | None], listed: tuple[str, ...]
) -> tuple[str, ...]:
    """Return values other than the default that a variable of this kind can have."""
    if kind == "BOOLEAN":
        return ("OFF",) if default.upper() in ("ON", "1") else ("ON",)
    if kind in ("ENUM", "ENUMERATION"):
        return tuple(value for value in listed if value.lower() != default.lower() and value)
    if kind == "SET":
        return tuple(value for value in listed if value.lower() != default.lower() and value not in ("OFF", "default"))
    if "INT" in kind or kind in ("DOUBLE", "NUMERIC"):
        return _numbers(default, bounds)
    return ()


def _numbers(default: str, bounds: tuple[str | None, str | None, str | int | None]) -> tuple[str, ...]:
    """Return numbers near the default: half, double, and a few more."""
    with suppress(ValueError, TypeError):
        now = _whole(default)
        low, high = _whole(bounds[0] or 0), _whole(bounds[1] or 0)
        block = max(1, _whole(bounds[2] or 1))
        tried = {now // 2, now * 2, now + block} if now > 0 else {1, 2, 10}
        most = max(now, 1 << 30)
        fitting = (one - one % block for one in tried)
        return tuple(str(one) for one in sorted(set(fitting)) if one not in (now,) and low <= one <= min(high, most))
    return ()


def _whole(number: str | int) -> int:
    """Return a number that is written with or without a fraction. ValueError if it is not a number."""
    return int(number) if str(number).lstrip("-").isdigit() else int(float(number))


def draw(
    variables: Sequence[Variable], flavour: Flavour, chance: random.Random, count: int = 20
) -> tuple[Setting, ...]:
    """Draw this many settings; half of them change data, statements or a session's answers."""
    by_name = {one.name: one for one in variables}
    favourites = sorted((set(FAVOURITES) | set(_TEXTS) | {"default_storage_engine"}) & set(by_name))
    names = chance.sample(favourites, min(count // 2, len(favourites)))
    rest = [one.name for one in variables if one.name not in FAVOURITES and one.name not in names]
    names += chance.sample(rest, min(count - len(names), len(rest)))
    settings = []
    for name in names:
        variable = by_name[name]
        ways = [Way.FILE] if variable.is_option else []
        ways += [Way.GLOBAL] if variable.is_dynamic else []
        ways += [Way.PERSIST] if variable.is_dynamic and flavour is Flavour.MYSQL else []
        if ways:
            settings.append(Setting(name, chance.choice(FAVOURITES.get(name, variable.values)), chance.choice(ways)))
    return tuple(settings)


def apply(cursor: Cursor, settings: Sequence[Setting]) -> dict[str, str]:
    """Apply the settings that need statements. Return those that the server refused, with its reason."""
    refused = {}
    for setting in settings:
        if setting.way is not Way.FILE:
            try:
                cursor.execute(setting.statement)
            except pymysql.MySQLError as error:
                refused[setting.name] = str(error)
    return refused


def shown(cursor: Cursor) -> Mapping[str, str]:
    """Return SHOW GLOBAL VARIABLES without those that the server changes by itself."""
    cursor.execute("SHOW GLOBAL VARIABLES")
    found = {str(name).lower(): str(value) for name, value in cursor.fetchall()}
    return {name: value for name, value in found.items() if name not in _ADJUSTED}
