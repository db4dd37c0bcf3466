"""Views of a fleet: its state with red rows first, its metrics, and changes to its jobs, runs and pauses."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import ClassVar

from zsnapdb import __version__
from zsnapdb.base.errors import UnknownNameError
from zsnapdb.base.quantities import format_duration, quantity, size
from zsnapdb.config import fleet as fleet_config
from zsnapdb.documents.fleet import FleetDocument, FleetPlanDocument, JobRunsDocument, PausedJobsDocument
from zsnapdb.jobs.base.host import Host
from zsnapdb.jobs.repository import fleet_status
from zsnapdb.jobs.repository.fleet_reader import SeenMemory
from zsnapdb.jobs.repository.fleet_status import FleetState, RepositoryState
from zsnapdb.planning.fleet.overview import FleetRow, HostState
from zsnapdb.planning.fleet.schedule_plan import FleetPlan, JobRun, PausedJob
from zsnapdb.planning.health.objectives import Verdict
from zsnapdb.report.metrics import BUILD, JUDGED, METRICS, VERDICT, Metric, Sample, health_metrics, metrics_text
from zsnapdb.report.view import Part, Table, TabularView
from zsnapdb.serve.helper_messages import ResultAnswer
from zsnapdb.serve.roles import Role, sees_all
from zsnapdb.verbs.requests import FleetQuery

_OLD_SECONDS = 600.0
"""Minimum age in seconds from which the text shows the age of a reading."""
_LABELS = {Verdict.MET: "met", Verdict.WARNING: "warning", Verdict.BROKEN: "BROKEN"}


class FleetView(TabularView, kind="fleet-status", document=FleetDocument, read_from="state"):
    """The state of a fleet."""

    state: FleetState

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
    shown = quantity(len(state.rows), "instance")
    of = f" of {state.total}" if len(state.rows) != state.total else ""
    verdicts = f"{counts[Verdict.BROKEN]} broken, {counts[Verdict.WARNING]} with a warning, {counts[Verdict.MET]} met"
    lines = [f"{shown}{of}: {verdicts}"]
    if state.is_cached:
        lines.append("no repository was read: these are the last readings, judged now")
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
        yield f"{name}: {quantity(len(seen.instances), 'instance')}, read {seen.read:%Y-%m-%d %H:%M:%S} UTC{age}"
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
        yield f"{name}: {quantity(seen.foreign, 'folder')} with a name that is that of no instance"


def _host_line(host: HostState, at: datetime) -> str:
    since = f"since {host.heard:%Y-%m-%d %H:%M:%S} UTC, {_age(host.heard, at)}" if host.heard is not None else "ever"
    return f"SILENT   host {host.host}: not heard of {since}; {quantity(host.instances, 'instance')}"


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
    texts = []
    for reason in one.reasons[:1]:
        since = f" (since {reason.since:%Y-%m-%d %H:%M} UTC)" if reason.since is not None else ""
        texts.append(f"{reason.what}: {reason.text}{since}")
    if one.problem:
        texts.insert(0, f"could not be read: {one.problem}")
    if len(one.reasons) > 1:
        texts.append(f"and {len(one.reasons) - 1} more")
    if one.facts is not None and one.facts.objectives is None and one.facts.backups:
        texts.append("its backups name no objectives")
    return "; ".join(texts) or "-"


@dataclass(frozen=True)
class FleetSnapshot:
    """Answers queries about the fleet in a configuration file (None: the default file) without reading a repository."""

    host: Host
    config: Path | None = None
    memory: SeenMemory = field(default_factory=SeenMemory)

    def __call__(self, asked: FleetQuery, role: Role) -> ResultAnswer:
        """Return the requested rows.

        An error text can contain the endpoint, bucket and folders. So only roles that may see everything get this text.

        Raises:
            UnknownNameError: no fleet is configured
            ConfigError: the configuration of the fleet is invalid
        """
        file = self.config or Path(os.environ.get(fleet_config.VARIABLE, str(fleet_config.DEFAULT_PATH)))
        if not file.exists():
            raise UnknownNameError(
                f"no fleet view is configured on this host: {file} does not exist",
                hint="an administrator writes one as `zsnapdb example fleet.toml` shows, and lets a timer run"
                " `zsnapdb fleet status`",
                about=(),
            )
        wanted = fleet_status.FleetRequest.parse(asked.filters, asked.sort, cached=True).part(asked.after, asked.most)
        request = replace(wanted, tells_errors=sees_all(role))
        state = fleet_status.status(fleet_config.load(file), request, self.host, memory=self.memory)
        return ResultAnswer(document=dict(FleetView(state).fields()))


READABLE = Metric("zsnapdb_fleet_repository_readable", "Whether the repository could be read: 1 or 0.")
READ = Metric("zsnapdb_fleet_repository_read_timestamp_seconds", "Time when the repository was last read.")
HEARD = Metric("zsnapdb_fleet_host_heard_timestamp_seconds", "Time of the host's newest sign of life.")
SILENT = Metric("zsnapdb_fleet_host_silent", "Whether the host is silent: 1 or 0.")
OLDEST = Metric("zsnapdb_fleet_oldest_point_timestamp_seconds", "Time of the oldest point that can be restored.")
STORED = Metric("zsnapdb_fleet_stored_bytes", "Size of the instance's backups and binlogs in the store.")
BACKUPS = Metric("zsnapdb_fleet_backups", "Number of backups of the instance.")

FLEET_METRICS = (READABLE, READ, HEARD, SILENT, OLDEST, STORED, BACKUPS)
"""The metrics that only a fleet has."""


def samples(state: FleetState) -> Iterator[Sample]:
    """Yield the samples of the repositories, the hosts, and the shown instances."""
    yield Sample(BUILD, {"version": __version__}, 1)
    for repository in state.repositories:
        labels = {"repository": repository.name}
        yield Sample(READABLE, labels, int(repository.error is None))
        if repository.seen is not None:
            yield Sample(READ, labels, repository.seen.read.timestamp())
    for host in state.hosts:
        yield Sample(SILENT, {"host": host.host}, int(host.is_silent))
        if host.heard is not None:
            yield Sample(HEARD, {"host": host.host}, host.heard.timestamp())
    for row in state.rows:
        yield from _of_row(row, state)


def _of_row(row: FleetRow, state: FleetState) -> Iterator[Sample]:
    labels = {"zsnapdb_instance": row.instance, "repository": row.repository, "host": row.host}
    yield Sample(JUDGED, labels, state.at.timestamp())
    yield Sample(VERDICT, labels, row.verdict.rank)
    facts = row.facts
    if facts is None:
        return
    if row.health is not None:
        yield from health_metrics(labels, row.health)
    if facts.oldest_point is not None:
        yield Sample(OLDEST, labels, facts.oldest_point.timestamp())
    yield Sample(STORED, labels, facts.stored_bytes)
    yield Sample(BACKUPS, labels, facts.backups)


def text(state: FleetState) -> str:
    """Return the metrics of the fleet as text that ends in a newline."""
    return metrics_text((*METRICS, *FLEET_METRICS), samples(state))


class FleetApplyPlanView(TabularView, kind="fleet-apply-plan", document=FleetPlanDocument, read_from="plan"):
    """The plan of changes to the engine."""

    plan: FleetPlan
    head: ClassVar[str] = "the engine would be changed"

    def parts(self) -> Sequence[Part]:
        plan = self.plan
        rows = [(one.kind.value, one.name, str(one.wave), one.reason) for one in plan.changes]
        left = f", {quantity(plan.left, 'change')} of later waves left" if plan.left else ""
        first = f"{self.head}: {quantity(len(plan.changes), 'change')}, {plan.unchanged} as they are{left}"
        return (first, Table(("CHANGE", "NAME", "WAVE", "WHY"), rows, "")) if rows else (first,)


class FleetAppliedView(FleetApplyPlanView, kind="fleet-apply"):
    """The changes that were made in the engine."""

    head: ClassVar[str] = "the engine was changed"


def _table(runs: Sequence[JobRun]) -> Table:
    rows = [
        (
            f"{one.started:%Y-%m-%d %H:%M:%S}",
            one.job.verb.value if one.job is not None else "-",
            one.job.instance if one.job is not None else one.workflow_id,
            one.place or "any",
            one.state,
            one.message or "-",
        )
        for one in runs
    ]
    return Table(("STARTED (UTC)", "VERB", "INSTANCE", "HOST", "STATE", "MESSAGE"), rows, "there is no such run")


RUNS_GO_ON = "the runs go on: `zsnapdb fleet history` shows them, `zsnapdb fleet cancel` ends them"
"""The message of a command that is interrupted while it waits for runs."""


def run_line(run: JobRun) -> str:
    """Return a line about a run that a command waits for."""
    name = f"{run.job.verb} {run.job.instance}" if run.job is not None else run.workflow_id
    return f"{name} on {run.place or 'any host'}: {run.state}" + (f", {run.message}" if run.message else "")


class JobRunsView(TabularView, kind="fleet-run", document=JobRunsDocument):
    """Runs that were started."""

    runs: Sequence[JobRun]

    def parts(self) -> Sequence[Part]:
        return (_table(self.runs),)


class CancelledRunsView(TabularView, kind="fleet-cancel", document=JobRunsDocument):
    """Runs whose cancellation was requested."""

    runs: Sequence[JobRun]

    def parts(self) -> Sequence[Part]:
        first = f"{quantity(len(self.runs), 'run')} asked to end"
        return (first, _table(self.runs)) if self.runs else (first,)


class FleetHistoryView(JobRunsView, kind="fleet-history"):
    """The newest runs."""


_FALLBACK = "a host whose agent has `fallback` begins its backups all the same: `zsnapdb agent pause` there holds them"


class FleetPausedView(TabularView, kind="fleet-pause", document=PausedJobsDocument):
    """Schedules that are paused now."""

    jobs: Sequence[PausedJob]

    def parts(self) -> Sequence[Part]:
        backups = any(one.verb == "backup" for one in self.jobs)
        return (
            f"{quantity(len(self.jobs), 'schedule')} paused",
            *(f"  {one.verb} {one.instance}" for one in self.jobs),
            *([_FALLBACK] if backups else []),
        )


class FleetResumedView(TabularView, kind="fleet-resume", document=PausedJobsDocument):
    """Schedules that were resumed."""

    jobs: Sequence[PausedJob]

    def parts(self) -> Sequence[Part]:
        first = f"{quantity(len(self.jobs), 'schedule')} resumed"
        return (first, *(f"  {one.verb} {one.instance}" for one in self.jobs))
