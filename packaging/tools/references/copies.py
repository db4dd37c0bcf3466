"""Page about the settings that a copy takes from its source, from the lists that the program uses to create copies."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from zsnapdb.planning.dataset_property_classes import CLASSIFIED, ClassifiedProperty, PropertyClass
from zsnapdb.planning.server_copy import plugins, variables
from zsnapdb.planning.server_copy.variables import VariableClass

_HEAD = """# Copies

A copy is a server that zsnapdb starts on a clone, a restored backup or a rewound state; drills, rescues and queries
start one for a moment. It has the rows, definitions and accounts of its source. This page lists the settings, plugins
and properties of datasets that it has too, and gives the reason for each that it has not. It is made from the lists
that the program uses (`make references`).

`--plan` of a command names the settings that the copy will not have. `server.options` of the
[configuration](reference/configuration.md#instancenameserver) gives every copy a value of your own.
"""
_SETTINGS = """## Settings

A backup and a snapshot set record each global variable whose value differs from the default of its program. A copy gets
the recorded values, except those of the classes below. A variable that nobody has classified is kept: the copy gets it
as an option that a program without this variable ignores.
"""
_REPLAY = """## Settings of then, in a replay

A replayed statement runs with the settings that its event carries: `sql_mode`, character sets and collations,
`time_zone`, `lc_time_names`, `auto_increment_*`, checks of keys, `explicit_defaults_for_timestamp`, and with MySQL 8.0
`default_collation_for_utf8mb4`, `default_table_encryption` and `sql_require_primary_key`. No event carries these:

- `default_storage_engine`: the archiver records the engine of each new table, and the transactions in a binlog tell
  whether it is transactional. The replay changes the default where the source had another one. It names the tables of
  which it knows nothing, and stops before it would make one in an engine that the binlog contradicts.
- `innodb_default_row_format`: as the archiver recorded each new table of InnoDB, else that of the backup.
- Options of tables that a server logged under `sql_mode=ANSI` (`CREATE TABLE ... SELECT`, generated invisible keys):
  engine and character set as the archiver recorded them. Comments are lost, and without a record the replay names the
  table. A replay by a client (`restore.replay`) names them all.
- Settings that only refuse, such as `innodb_strict_mode`, `disabled_storage_engines`, `innodb_force_primary_key` and
  `system_versioning_alter_history`: nothing is refused that the source accepted.
- Others, such as `innodb_file_per_table`, `innodb_encrypt_tables` or `mysql56_temporal_format`: that of the backup.
"""
_PLUGINS = """## Plugins

A copy loads the plugins, components and functions of its source: its data and its binlogs may need each of them. If one
is not installed on the host, the plan names it and refuses. These are left out:
"""
_PROPERTIES = """## Properties of datasets

A copy is a dataset of its own. A rewound server is not: its datasets get all properties that production's datasets have
of their own at that moment, user properties and the rights of `zfs allow` included. A backup records them too, but no
restore sets them from a repository: if production's datasets are lost, it prints the commands for a person.
"""
_ZONE = """## Time zone

The process of a copy has the time zone of the source's process: `time_zone = SYSTEM` shows the same local times, and
replayed statements write the same rows. A host that does not know the zone is refused by the plan. A host with another
release of the zone's data is warned of. A unit that starts a restored server needs `Environment=TZ=ZONE`; the restore
prints the line.

## Scheduled events

No event runs in a copy: its event scheduler is off. The events have the states that they had at the source, also
those that a replay made or altered.
"""
_FILES = """## Accounts and owners of files

- Accounts, roles and rights in the data are those of the source. A clone has an account of its own besides.
- Files belong to the account of the host that runs the server, whatever number it had on the host of the source. The
  plan names the account.
- Server identity, port, socket, paths and replication are the copy's own.
- Users of a clone may create triggers and functions in their schemas: a clone has `log_bin_trust_function_creators=ON`.
"""
_PLACE = """These belong to production's place: a copy does not have them, datasets that replace production do. User
properties and properties that nobody has classified are among them."""
_TITLES = {
    PropertyClass.DATA: (
        "### As the source has them",
        "A copy has the value that the source's dataset has or inherits.",
    ),
    PropertyClass.EXPLICIT: ("### The copy's own", "A copy has this value, whatever the datasets above it have."),
    PropertyClass.PLACE: ("### Properties of the place", _PLACE),
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
    return tuple(Class(_title(kind), kind.value, names, prefixes) for kind, names, prefixes in known)


def _title(kind: VariableClass) -> str:
    name = kind.name.replace("_", " ").capitalize()
    return f"{name}: {'in' if kind.is_kept else 'not in'} a copy"


def _settings() -> Iterator[str]:
    yield _SETTINGS
    for one in classes():
        yield f"### {one.title}"
        yield ""
        yield f"{one.reason[0].upper()}{one.reason[1:]}."
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
