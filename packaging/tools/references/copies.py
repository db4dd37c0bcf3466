"""Page about the settings that a copy takes from its source, from the lists that the program uses to create copies."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from zsnapdb.planning.dataset_property_classes import CLASSIFIED, ClassifiedProperty, PropertyClass
from zsnapdb.planning.server_copy import plugins, variables
from zsnapdb.planning.server_copy.variables import VariableClass

_HEAD = """# Copies

A copy is a server that zsnapdb starts on a clone, a restored backup or a rewound state. In a drill, a rescue or a
query, a copy runs only for a short time. A copy has the rows, definitions and database accounts of its source, which is
the server that was backed up or cloned. This page lists the settings, plugins and dataset properties that a copy takes
from its source, and gives the reason for each exception. This page is generated from zsnapdb's own lists.

If you add `--plan` to a command that starts a copy, the plan lists the settings of the source that the copy will not
have. To set the same value on every copy, use `server.options` in the
[configuration](reference/configuration.md#instancenameserver).
"""
_SETTINGS = """## Settings

A backup and a snapshot set record each global variable whose value differs from the default of the server program. The
sections below divide the variables into classes, and state which classes a copy takes from its source. A copy also
takes each variable that is in no class. In the option file, zsnapdb adds the prefix `loose_` to such a variable, so
that a server program ignores the variable if it does not know it.
"""
_REPLAY = """## Settings in a replay

A replayed statement runs with the settings in its binlog event: `sql_mode`, character sets and collations, `time_zone`,
`lc_time_names`, `auto_increment_*`, key checks and `explicit_defaults_for_timestamp`. With MySQL 8.0 the event also
contains `default_collation_for_utf8mb4`, `default_table_encryption` and `sql_require_primary_key`. Binlog events do not
contain the following settings:

- `default_storage_engine`: `zsnapdb binlog archive` records the storage engine of each new table, and the transactions
  in a binlog show whether a table is transactional. If the default engine of the source differs from that of the copy,
  the replay changes the default engine of the copy. If neither the archive nor the binlog shows the engine of a table,
  the replay prints a warning with the name of the table. If the binlog shows that a table had a different engine than
  the copy would use, the replay stops before it creates the table.
- `innodb_default_row_format`: The replay uses the row format that `zsnapdb binlog archive` recorded for each new InnoDB
  table. If it recorded none, the replay uses the default row format in the backup.
- Table options: With `sql_mode=ANSI`, a server omits table options from some logged statements
  (`CREATE TABLE ... SELECT`, generated invisible keys). For such a table, the replay uses the engine and character set
  that `zsnapdb binlog archive` recorded, but the table comment is lost. If nothing was recorded about such a table, the
  replay stops, and the error names the table. A replay with a client program (`restore.replay`) only prints a warning
  with the names of all such tables.
- Settings that only refuse statements, such as `innodb_strict_mode`, `disabled_storage_engines`,
  `innodb_force_primary_key` and `system_versioning_alter_history`: The replay executes every statement that the source
  accepted, whatever the values of these settings are.
- Other settings, such as `innodb_file_per_table`, `innodb_encrypt_tables` or `mysql56_temporal_format`: The replay uses
  the value in the backup.
"""
_PLUGINS = """## Plugins

A copy loads the plugins, components and functions of its source, because its data and its binlogs may need them. If one
of these is not installed on the host, the command that would start the copy refuses to run and names the missing one. A
copy loads no plugin from this table:
"""
_PROPERTIES = """## Dataset properties

A copy has its own datasets. The tables below show which ZFS properties these datasets get.

A rewind is different, because its restored datasets replace the datasets of production. The restored datasets get all
properties that are set on the datasets of production at that moment, including user properties and the rights of
`zfs allow`. A backup also records all these properties, but a restore from a repository does not set them. If the
datasets of production are lost, the restore prints the commands that set the properties.
"""
_ZONE = """## Time zone

The server process of a copy has the same time zone as the server process of the source. So with `time_zone = SYSTEM`,
both show the same local times, and replayed statements write the same rows. If the host does not know this time zone,
the command that would start the copy refuses to run. If the releases of the time zone data on this host and on the
source's host differ, this command prints a warning. If you start a restored server with a systemd unit, the unit needs
the line `Environment=TZ=ZONE`, which the restore prints.

## Scheduled events

The event scheduler of a copy is off, so no scheduled event runs. Each event is enabled or disabled as on the source,
even if a replay created or altered the event.
"""
_FILES = """## Accounts and file owners

- The data of a copy contains the database accounts, roles and rights of the source. A clone has one additional account.
- The files of a copy belong to the system account that runs the copy's server on this host. On the source's host, the
  server's account may have had a different numeric id. The plan shows which account owns the files.
- A copy has its own server identity, port, socket, paths and replication settings.
- A clone has `log_bin_trust_function_creators=ON`, so that its users may create triggers and functions in their
  schemas.
"""
_PLACE = """These properties are meant only for the datasets of production. A copy does not get them, unless its
datasets replace the datasets of production. User properties and unclassified properties are handled in the same way."""
_TITLES = {
    PropertyClass.DATA: (
        "### Properties of the source",
        "A copy gets the value of the source's dataset, whether this value is set on the dataset or inherited.",
    ),
    PropertyClass.EXPLICIT: (
        "### Properties with a fixed value",
        "A copy gets the value in this table, whatever values its parent datasets have.",
    ),
    PropertyClass.PLACE: ("### Properties of the location", _PLACE),
}


@dataclass(frozen=True)
class Class:
    """A class of names on the page: heading, reason, names and prefixes of names."""

    title: str
    reason: str
    names: tuple[str, ...]
    prefixes: tuple[str, ...] = ()


def page() -> str:
    """Return the page as Markdown."""
    parts = [_HEAD, *_settings(), _REPLAY, *_plugins(), *_properties(), _ZONE, _FILES]
    return "\n".join(parts).rstrip() + "\n"


def classes() -> tuple[Class, ...]:
    """Return the classes of variables that can be set, the kept ones first."""
    known = [one for one in variables.classes() if one[0].is_setting and (one[1] or one[2])]
    known.sort(key=lambda one: not one[0].is_kept)
    return tuple(Class(_title(kind), _reason(kind), names, prefixes) for kind, names, prefixes in known)


def _title(kind: VariableClass) -> str:
    name = kind.name.replace("_", " ").capitalize()
    return f"{name}: {'in' if kind.is_kept else 'not in'} a copy"


def _reason(kind: VariableClass) -> str:
    reason = kind.value.replace("server.options", "`server.options`")
    return f"{reason[0].upper()}{reason[1:]}." if kind.is_kept else f"These settings concern {reason}."


def _settings() -> Iterator[str]:
    yield _SETTINGS
    for one in classes():
        yield f"### {one.title}"
        yield ""
        yield one.reason
        yield ""
        yield _listed([*one.names, *(f"{prefix}*" for prefix in one.prefixes)])
        yield ""


def _listed(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in sorted(names))


def _plugins() -> Iterator[str]:
    yield _PLUGINS
    yield "| plugins | reason |"
    yield "|---|---|"
    for reason in dict.fromkeys(plugins.LEFT_OUT.values()):
        yield f"| {_listed(name for name, why in plugins.LEFT_OUT.items() if why == reason)} | {reason} |"
    yield ""


def _properties() -> Iterator[str]:
    yield _PROPERTIES
    for kind, (title, text) in _TITLES.items():
        yield title
        yield ""
        yield text
        yield ""
        yield "| property | value | reason |" if kind is PropertyClass.EXPLICIT else "| property | reason |"
        yield "|---|---|---|" if kind is PropertyClass.EXPLICIT else "|---|---|"
        for one in CLASSIFIED:
            if one.kind is kind:
                yield _row(one)
        yield ""


def _row(one: ClassifiedProperty) -> str:
    if one.kind is PropertyClass.EXPLICIT:
        return (
            f"| `{one.name}` | {f'`{one.value}`' if one.value is not None else 'chosen for each copy'} | {one.reason} |"
        )
    return f"| `{one.name}` | {one.reason} |"
