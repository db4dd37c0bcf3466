"""The state of a fleet: red first, with the reason and since when."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import ClassVar

from typing_extensions import TypedDict

from zsnapdb.base.quantities import counted, format_duration, size
from zsnapdb.jobs.fleet.fleet import FleetState, RepositoryState
from zsnapdb.planning.fleet.overview import FleetReason, FleetRow, HostState
from zsnapdb.planning.health.objectives import Verdict
from zsnapdb.report.document import ErrorFields, error_fields
from zsnapdb.report.parts import Part, Table, TabularView


class FleetRepositoryFields(TypedDict):
    """A repository. `read`: when it was read last. `changed`: how many instances were read anew by this command.

    `opaque`: its backups are encrypted, and here is no key that opens them. `signed`: only what known keys signed is
    believed. `foreign_folders` have names that are those of no instance.
    """

    repository: str
    id: str | None
    read: str | None
    error: ErrorFields | None
    instances: int
    changed: int
    encrypted: bool
    opaque: bool
    signed: bool
    foreign_folders: int
    note: str


class FleetHostFields(TypedDict):
    """A host that the newest backup of some instance names."""

    host: str
    heard: str | None
    silent: bool
    instances: int


class FleetReasonFields(TypedDict):
    """Why an instance is not good."""

    what: str
    verdict: str
    reason: str
    hint: str
    since: str | None


class FleetDrillFields(TypedDict):
    """The newest drill."""

    drill_id: str
    finished: str
    passed: bool


class FleetInstanceFields(TypedDict):
    """An instance in a repository. `objectives`: who says them: its backups, or the configuration of the fleet.

    `problem`: why it could not be read now ("": it could).
    """

    instance: str
    repository: str
    host: str
    verdict: str
    exit_code: int
    since: str | None
    reasons: list[FleetReasonFields]
    problem: str
    read: str | None
    heard: str | None
    objectives: str
    newest_backup: str | None
    newest_point: str | None
    oldest_point: str | None
    archived_until: str | None
    drill: FleetDrillFields | None
    drill_due: bool
    backups: int
    backup_bytes: int
    binlog_bytes: int
    tool_version: str
    server: str


class FleetCountsFields(TypedDict):
    """Of all instances, also those that were not asked for: how many are what, and what they take in the store."""

    broken: int
    warnings: int
    drills_due: int
    stored_bytes: int


class FleetDocument(TypedDict):
    """The state of a fleet. `total` counts the instances, also those that were not asked for.

    `chosen` counts those that were asked for, also if only some of them are shown.
    """

    at: str
    cached: bool
    repositories: list[FleetRepositoryFields]
    hosts: list[FleetHostFields]
    instances: list[FleetInstanceFields]
    chosen: int
    counts: FleetCountsFields
    total: int


_OLD_SECONDS = 600.0
"""How old a reading may be before its age is said."""
_LABELS = {Verdict.MET: "met", Verdict.WARNING: "warning", Verdict.BROKEN: "BROKEN"}


@dataclass(frozen=True)
class FleetView(TabularView):
    """The state of a fleet."""

    state: FleetState
    kind: ClassVar[str] = "fleet-status"

    def parts(self) -> Sequence[Part]:
        state = self.state
        headings = ("STATE", "INSTANCE", "HOST", "REPOSITORY", "NEWEST", "OLDEST", "DRILL", "STORED", "VERSION", "WHY")
        rows = [_cells(one, state.at) for one in state.rows]
        empty = "no instance is like that" if state.total else "no repository has an instance"
        return [
            *_summary(state),
            *(line for repository in state.repositories for line in _repository_lines(repository, state.at)),
            *(_host_line(host, state.at) for host in state.hosts if host.is_silent),
            "",
            Table(headings, rows, empty) if rows else empty,
        ]

    def fields(self) -> FleetDocument:
        state = self.state
        return {
            "at": state.at.isoformat(),
            "cached": state.is_cached,
            "repositories": [_repository_fields(one) for one in state.repositories],
            "hosts": [
                {"host": one.host, "heard": _iso(one.heard), "silent": one.is_silent, "instances": one.instances}
                for one in state.hosts
            ],
            "instances": [_instance_fields(one) for one in state.rows],
            "chosen": state.chosen,
            "counts": {
                "broken": state.counts.broken,
                "warnings": state.counts.warnings,
                "drills_due": state.counts.drills_due,
                "stored_bytes": state.counts.stored_bytes,
            },
            "total": state.total,
        }


def _summary(state: FleetState) -> list[str]:
    counts = {verdict: sum(one.verdict is verdict for one in state.rows) for verdict in Verdict}
    shown = counted(len(state.rows), "instance")
    of = f" of {state.total}" if len(state.rows) != state.total else ""
    verdicts = f"{counts[Verdict.BROKEN]} broken, {counts[Verdict.WARNING]} with a warning, {counts[Verdict.MET]} met"
    lines = [f"{shown}{of}: {verdicts}"]
    if state.is_cached:
        lines.append("no repository was asked: this is what was read last, judged now")
    return lines


def _repository_lines(state: RepositoryState, at: datetime) -> Iterator[str]:
    name, seen = f"repository {state.name}", state.seen
    if state.error is not None:
        last = f"; what follows was read {seen.read:%Y-%m-%d %H:%M:%S} UTC" if seen is not None else ""
        yield f"UNKNOWN  {name}: {state.error.message}{last}"
    if seen is None:
        return
    if state.error is None:
        age = f", {_age(seen.read, at)} ago" if (at - seen.read).total_seconds() >= _OLD_SECONDS else ""
        yield f"{name}: {counted(len(seen.instances), 'instance')}, read {seen.read:%Y-%m-%d %H:%M:%S} UTC{age}"
    if seen.note:
        yield f"{name}: {seen.note}"
    if state.is_opaque:
        yield (
            f"{name}: its backups are encrypted and no key is here: names, times, sizes and positions can be read;"
            " whether the contents can be decrypted cannot be seen"
        )
    if not state.is_believed_by_key:
        yield f"{name}: no signers are configured, so whoever can write there can say anything"
    if seen.foreign:
        yield f"{name}: {counted(seen.foreign, 'folder')} with a name that is that of no instance"


def _host_line(host: HostState, at: datetime) -> str:
    since = f"since {host.heard:%Y-%m-%d %H:%M:%S} UTC, {_age(host.heard, at)}" if host.heard is not None else "ever"
    return f"SILENT   host {host.host}: not heard of {since}; {counted(host.instances, 'instance')}"


def _age(moment: datetime | None, at: datetime) -> str:
    if moment is None:
        return "-"
    return format_duration(max(0, round((at - moment).total_seconds())))


def _cells(one: FleetRow, at: datetime) -> tuple[str, ...]:
    facts = one.facts
    if facts is None:
        return ("UNKNOWN", one.instance, "-", one.repository, "-", "-", "-", "-", "-", one.problem)
    health = facts.health
    drill = "-"
    if health.newest_drill is not None:
        passed = "passed" if health.newest_drill.passed else "FAILED"
        drill = f"{passed} {_age(health.newest_drill.finished, at)}"
    return (
        "UNKNOWN" if one.problem else _LABELS[one.verdict],
        one.instance,
        one.host or "-",
        one.repository,
        _age(health.newest_backup, at),
        _age(facts.oldest_point, at),
        drill,
        size(facts.stored_bytes),
        facts.tool_version or "-",
        _why(one),
    )


def _why(one: FleetRow) -> str:
    texts = [_reason_text(reason) for reason in one.reasons[:1]]
    if one.problem:
        texts.insert(0, f"could not be read: {one.problem}")
    if len(one.reasons) > 1:
        texts.append(f"and {len(one.reasons) - 1} more")
    if one.facts is not None and one.facts.objectives is None and one.facts.backups:
        texts.append("its backups name no objectives")
    return "; ".join(texts) or "-"


def _reason_text(reason: FleetReason) -> str:
    since = f" (since {reason.since:%Y-%m-%d %H:%M} UTC)" if reason.since is not None else ""
    return f"{reason.what}: {reason.text}{since}"


def _iso(moment: datetime | None) -> str | None:
    return moment.isoformat() if moment is not None else None


def _repository_fields(state: RepositoryState) -> FleetRepositoryFields:
    seen = state.seen
    return {
        "repository": state.name,
        "id": seen.id if seen is not None else None,
        "read": _iso(seen.read) if seen is not None else None,
        "error": error_fields(state.error) if state.error is not None else None,
        "instances": len(seen.instances) if seen is not None else 0,
        "changed": state.changed,
        "encrypted": seen is not None and seen.is_encrypted,
        "opaque": state.is_opaque,
        "signed": state.is_believed_by_key,
        "foreign_folders": seen.foreign if seen is not None else 0,
        "note": seen.note if seen is not None else "",
    }


def _instance_fields(one: FleetRow) -> FleetInstanceFields:
    facts = one.facts
    health = facts.health if facts is not None else None
    drill = health.newest_drill if health is not None else None
    return {
        "instance": one.instance,
        "repository": one.repository,
        "host": one.host,
        "verdict": one.verdict.value,
        "exit_code": one.exit_code,
        "since": _iso(one.since),
        "reasons": [
            {
                "what": reason.what,
                "verdict": reason.verdict.value,
                "reason": reason.text,
                "hint": reason.hint,
                "since": _iso(reason.since),
            }
            for reason in one.reasons
        ],
        "problem": one.problem,
        "read": _iso(one.read),
        "heard": _iso(facts.heard) if facts is not None else None,
        "objectives": "backup" if facts is not None and facts.objectives is not None else "fleet",
        "newest_backup": _iso(health.newest_backup) if health is not None else None,
        "newest_point": _iso(health.newest_point) if health is not None else None,
        "oldest_point": _iso(facts.oldest_point) if facts is not None else None,
        "archived_until": _iso(health.archived_until) if health is not None else None,
        "drill": {"drill_id": drill.drill_id, "finished": drill.finished.isoformat(), "passed": drill.passed}
        if drill is not None
        else None,
        "drill_due": one.is_drill_due,
        "backups": facts.backups if facts is not None else 0,
        "backup_bytes": facts.backup_bytes if facts is not None else 0,
        "binlog_bytes": facts.binlog_bytes if facts is not None else 0,
        "tool_version": facts.tool_version if facts is not None else "",
        "server": facts.server if facts is not None else "",
    }
