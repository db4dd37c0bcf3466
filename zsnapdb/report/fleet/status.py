"""The state of a fleet: red first, with the reason and since when."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import ClassVar

from zsnapdb.base.quantities import counted, format_duration, size
from zsnapdb.documents.fleet import FleetDocument
from zsnapdb.jobs.fleet.fleet import FleetState, RepositoryState
from zsnapdb.planning.fleet.overview import FleetReason, FleetRow, HostState
from zsnapdb.planning.health.objectives import Verdict
from zsnapdb.report.parts import Part, Table, TabularView

_OLD_SECONDS = 600.0
"""How old a reading may be before its age is said."""
_LABELS = {Verdict.MET: "met", Verdict.WARNING: "warning", Verdict.BROKEN: "BROKEN"}


@dataclass(frozen=True)
class FleetView(TabularView):
    """The state of a fleet."""

    state: FleetState
    kind: ClassVar[str] = "fleet-status"
    document_class = FleetDocument
    read_from = "state"

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
