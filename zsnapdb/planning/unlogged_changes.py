"""Changes that a server does not write to its binlog, so that no replay of binlogs restores them. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from zsnapdb.planning.server_facts import ServerFacts

_MOST_NAMED = 8
_OFF = re.compile(r"\bsql_log_bin`?\s*:?=\s*(0|off|false)\b", re.IGNORECASE)
_FORMAT = re.compile(r"\bbinlog_format`?\s*:?=\s*['\"]?statement\b", re.IGNORECASE)


@dataclass(frozen=True)
class UnloggedChanges:
    """Changes that a replay of binlogs does not restore exactly, the reason, and the fix."""

    missing: str
    reason: str
    hint: str

    @property
    def sentence(self) -> str:
        return f"{self.missing} ({self.reason})"


def unlogged_changes(facts: ServerFacts) -> tuple[UnloggedChanges, ...]:
    """Return the changes that no replay of the server's binlogs restores exactly; none for an ordinary server."""
    if not facts.has_binlog:
        return ()
    return (*_filtered(facts), *_by_policy(facts), *_by_format(facts), *_applied(facts))


def _filtered(facts: ServerFacts) -> list[UnloggedChanges]:
    found = []
    if facts.binlog_do:
        left = [schema for schema in facts.schemas if schema not in facts.binlog_do]
        others = _names(left) if left else "other schemas"
        found.append(
            UnloggedChanges(
                f"the binlog leaves out the changes of {others}, and of the accounts",
                f"binlog_do_db = {', '.join(facts.binlog_do)}",
                "remove binlog_do_db; what a replay must not apply is left out when it is restored",
            )
        )
    elif facts.binlog_ignore:
        found.append(
            UnloggedChanges(
                f"the binlog leaves out the changes of {_names(facts.binlog_ignore)}",
                "binlog_ignore_db",
                "remove binlog_ignore_db; what a replay must not apply is left out when it is restored",
            )
        )
    return found


def _by_policy(facts: ServerFacts) -> list[UnloggedChanges]:
    found = []
    if facts.variables.get("sql_log_bin", "ON").upper() in ("OFF", "0"):
        found.append(
            UnloggedChanges("the binlog leaves out all changes", "sql_log_bin = OFF", "SET GLOBAL sql_log_bin = ON")
        )
    if _OFF.search(facts.variables.get("init_connect", "")):
        found.append(
            UnloggedChanges(
                "the binlog leaves out the changes of all accounts without administrative rights",
                "init_connect turns sql_log_bin off",
                "remove sql_log_bin from init_connect",
            )
        )
    return found


def _by_format(facts: ServerFacts) -> list[UnloggedChanges]:
    name = ""
    if facts.variables.get("binlog_format", "ROW").upper() == "STATEMENT":
        name = "binlog_format = STATEMENT"
    elif _FORMAT.search(facts.variables.get("init_connect", "")):
        name = "init_connect sets binlog_format to STATEMENT"
    if not name:
        return []
    missing = "the binlog has statements and not rows: replaying it may give other rows than the server had"
    return [UnloggedChanges(missing, name, "set binlog_format = ROW")]


def _applied(facts: ServerFacts) -> list[UnloggedChanges]:
    """Return the changes that a replica or cluster node applies without logging, or does not apply."""
    found = []
    option = "log_replica_updates" if "log_replica_updates" in facts.variables else "log_slave_updates"
    is_off = facts.variables.get(option, "ON").upper() in ("OFF", "0")
    sources = [f"{channel.host}:{channel.port}" for channel in facts.channels]
    if facts.variables.get("wsrep_on", "OFF").upper() in ("ON", "1"):
        sources.append("the other nodes of its cluster")
    if is_off and sources:
        found.append(
            UnloggedChanges(
                f"the binlog leaves out the changes that come from {', '.join(sources)}",
                f"{option} = OFF",
                f"set {option} = ON",
            )
        )
    for channel in facts.channels:
        if channel.filters:
            source = f"{channel.host}:{channel.port}"
            found.append(
                UnloggedChanges(
                    f"the replica does not have all changes of {source}, and no backup of it has them",
                    ", ".join(channel.filters),
                    "back up the source, or remove the replication filters",
                )
            )
    return found


def _names(schemas: Sequence[str]) -> str:
    more = len(schemas) - _MOST_NAMED
    return ", ".join(schemas[:_MOST_NAMED]) + (f" and {more} more" if more > 0 else "")
