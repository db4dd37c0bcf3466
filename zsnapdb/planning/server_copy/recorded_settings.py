"""The settings that a backup recorded, as an option file for a server that replaces the lost server. Pure.

The values come from a manifest, which anyone who can write to the repository could have changed. So each value is one
quoted line, and settings that run statements or load code are comments.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from zsnapdb.base.domain_types import Flavour
from zsnapdb.base.patterns import is_line
from zsnapdb.planning.server_copy.source_facts import (
    EMPTY_COUNTS,
    KEY_VARIABLES,
    LISTS,
    LONGEST_LINE,
    OPTIONS,
    kept_statements,
    missing_options,
    option_line,
)
from zsnapdb.planning.server_copy.variables import VariableClass, class_of, is_name
from zsnapdb.planning.server_family import family

_DERIVED = ("log_bin_basename", "relay_log_basename")
"""Variables that no option sets. The options log_bin and relay_log get their values."""
_TO_CHECK = (
    *(VariableClass.SECURITY, VariableClass.KEYS, VariableClass.RECOVERY, VariableClass.REPLICATION),
    *(VariableClass.ACCESS, VariableClass.IDENTITY),
)
"""Classes of settings that could run code, open access, or make the new server a replica or a part of a cluster."""
_LOOSE = (VariableClass.PLUGIN, VariableClass.UNKNOWN)
"""Classes of settings that a server may not know. It ignores an unknown option with the prefix loose_."""
_RUNS_CODE = ("init_connect", "plugin_dir", *KEY_VARIABLES)
_WITHOUT_OPTION = (
    *("core_file", "innodb_lru_flush_size", "innodb_purge_rseg_truncate_frequency", "locked_in_memory"),
    *("max_insert_delayed_threads", "profiling", "sql_log_off"),
)
"""Settings that no option sets in at least one release. `recorded/variables` in the tests lists the releases."""


@dataclass(frozen=True)
class RecordedSettings:
    """The recorded settings of a server, as lines of an option file, and the settings to check before use.

    - `lines`: option lines
    - `unchecked`: option lines, as comments, that could run statements, load code or open access
    - `statements`: statements for settings without an option
    - `refused`: settings that an option file cannot contain, with the reason
    """

    lines: tuple[str, ...]
    unchecked: tuple[str, ...]
    statements: tuple[str, ...]
    refused: tuple[str, ...]

    def option_file(self, flavour: Flavour, about: str) -> str:
        """Return the option file. `about` is its first line, a comment."""
        text = [
            f"# {about}",
            "# Anyone who can write to the repository could have changed these lines: read them first.",
        ]
        text += [f"[{family(flavour).option_section}]", *self.lines]
        for title, lines in (
            ("Check these lines before you remove the #.", self.unchecked),
            ("No option sets these. Run the statements after each start.", self.statements),
            ("These settings are not valid lines.", self.refused),
        ):
            if lines:
                text += ["", f"# {title}", *(f"# {line}" for line in lines)]
        return "\n".join(text) + "\n"


def recorded_settings(variables: Mapping[str, str], server_id: int) -> RecordedSettings:
    """Return the settings among the recorded variables. State and build facts of the server are left out.

    A restore may give the server another `server_id`, so its line must be checked too.
    """
    lines, unchecked, refused = list[str](), [f"server_id={server_id}"], list[str]()
    for name, option, value in _options(variables):
        kind = class_of(name)
        line = option_line("loose_" if kind in _LOOSE or name in LISTS else "", option, value)
        if not is_name(name) or not is_line(value) or len(line.encode()) > LONGEST_LINE:
            refused.append(f"{name[:64]!r} = {value[:80]!r}")
        elif kind in _TO_CHECK or name in (*_RUNS_CODE, *_WITHOUT_OPTION):
            unchecked.append(line)
        else:
            lines.append(line)
    unchecked += [one.line for one in missing_options(variables, ()) if is_line(one.line) and one.line not in unchecked]
    return RecordedSettings(tuple(lines), tuple(unchecked), kept_statements(variables), tuple(refused))


def _options(variables: Mapping[str, str]) -> Iterator[tuple[str, str, str]]:
    """Yield the name of each setting, the option that sets it, and the value of the option.

    If two variables have the same option, only the variable with the name of the option is used.
    """
    for name, value in sorted(variables.items()):
        kind = class_of(name)
        if not kind.is_setting or kind is VariableClass.STATEMENT or name in (*_DERIVED, "server_id"):
            continue
        if (not value and name not in EMPTY_COUNTS) or OPTIONS.get(name) in variables:
            continue
        if name in LISTS:
            yield from ((name, option, part) for part in value.split(",") if part for option in LISTS[name])
            continue
        base = variables.get("log_bin_basename", "") if name == "log_bin" and value in ("ON", "1") else ""
        yield name, OPTIONS.get(name, name), base or value
    if variables.get("relay_log_basename") and "relay_log" not in variables:
        yield "relay_log", "relay_log", variables["relay_log_basename"]
