"""Settings of a server that differ from their defaults, and what of them a copy of the server lacks."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping

from zsnapdb.planning.server_copy.variables import class_of

from .in_guest import Lab

_BOTH = {
    "auto_increment_increment": "3",
    "auto_increment_offset": "2",
    "default_storage_engine": "MyISAM",
    "default_week_format": "3",
    "div_precision_increment": "7",
    "foreign_key_checks": "OFF",
    "ft_boolean_syntax": """'+ -><()~*:""&!'""",
    "group_concat_max_len": "2048",
    "init_connect": "'SET @a = 1, @b = \"q # \\\\\\\\ r\"'",
    "innodb_lock_wait_timeout": "77",
    "innodb_strict_mode": "OFF",
    "lc_time_names": "'de_DE'",
    "max_heap_table_size": "33554432",
    "max_sort_length": "2048",
    "optimizer_switch": "'index_merge=off'",
    "sql_mode": "'STRICT_TRANS_TABLES,NO_AUTO_VALUE_ON_ZERO'",
    "time_zone": "'+05:00'",
    "unique_checks": "OFF",
    "wait_timeout": "4000",
}
_OF = {
    "mysql": {
        "default_collation_for_utf8mb4": "'utf8mb4_general_ci'",
        "innodb_default_row_format": "'compact'",
        "mandatory_roles": "'`somebody`@`%`'",
        "sql_generate_invisible_primary_key": "ON",
        "transaction_isolation": "'READ-COMMITTED'",
    },
    "mariadb": {
        "check_constraint_checks": "OFF",
        "character_set_collations": "'utf8mb4=utf8mb4_bin'",
        "system_versioning_alter_history": "KEEP",
        "idle_transaction_timeout": "900",
        "tx_isolation": "'READ-COMMITTED'",
    },
}
_OVERRULED = {"log_bin_trust_function_creators"}
"""Settings that each clone has its own value of: users without a right over the server make triggers in it."""


@contextlib.contextmanager
def changed_settings(lab: Lab) -> Iterator[None]:
    """Give the running server settings of different kinds for the block."""
    wanted = {**_BOTH, **_OF[lab.flavour]}
    before = settings(dict(lab.sql("SHOW GLOBAL VARIABLES")))
    for name, value in wanted.items():
        lab.sql(f"SET GLOBAL {name} = {value}")
    try:
        yield
    finally:
        for name in wanted:
            lab.sql(f"SET GLOBAL {name} = {_literal(before[name])}")


def settings(variables: Mapping[object, object]) -> dict[str, str]:
    """Return the variables that a copy has as its source has them."""
    texts = {str(name).lower(): str(value) for name, value in variables.items()}
    return {name: value for name, value in texts.items() if class_of(name).is_kept and name not in _OVERRULED}


def changed_names(lab: Lab) -> set[str]:
    """Return the names of the settings that `changed_settings` changes."""
    return {*_BOTH, *_OF[lab.flavour]}


def _literal(value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace("'", "''")
    return value if value.isdecimal() else f"'{escaped}'"
