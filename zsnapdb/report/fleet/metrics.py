"""The state of a fleet as metrics. The instances have those of `zsnapdb status`, with the host as one more label."""

from __future__ import annotations

from collections.abc import Iterator

from zsnapdb import __version__
from zsnapdb.jobs.fleet.fleet import FleetState
from zsnapdb.planning.fleet.overview import FleetRow
from zsnapdb.report.metrics import BUILD, JUDGED, METRICS, VERDICT, Metric, Sample, of_health, written

READABLE = Metric("zsnapdb_fleet_repository_readable", "Whether the repository could be read: 1 or 0.")
READ = Metric("zsnapdb_fleet_repository_read_timestamp_seconds", "When the repository was read last.")
HEARD = Metric("zsnapdb_fleet_host_heard_timestamp_seconds", "When a repository heard of the host last.")
SILENT = Metric("zsnapdb_fleet_host_silent", "Whether no repository has heard of the host for too long: 1 or 0.")
OLDEST = Metric("zsnapdb_fleet_oldest_point_timestamp_seconds", "The oldest point that can be restored.")
STORED = Metric("zsnapdb_fleet_stored_bytes", "What the instance takes in the store: backups and binlogs.")
BACKUPS = Metric("zsnapdb_fleet_backups", "How many backups of the instance there are.")

FLEET_METRICS = (READABLE, READ, HEARD, SILENT, OLDEST, STORED, BACKUPS)
"""The metrics that only a fleet has."""


def samples(state: FleetState) -> Iterator[Sample]:
    """Yield the samples of the repositories, the hosts, and the instances that are shown."""
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
        yield from of_health(labels, row.health)
    if facts.oldest_point is not None:
        yield Sample(OLDEST, labels, facts.oldest_point.timestamp())
    yield Sample(STORED, labels, facts.stored_bytes)
    yield Sample(BACKUPS, labels, facts.backups)


def text(state: FleetState) -> str:
    """Return the metrics of the fleet. The text ends in a newline."""
    return written((*METRICS, *FLEET_METRICS), samples(state))
