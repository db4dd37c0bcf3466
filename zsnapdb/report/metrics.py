"""The state of instances as metrics, in the text format of Prometheus (version 0.0.4).

The metrics contain the time of each fact instead of its age, because an age would stop growing if the exports stopped.
The number of series is limited by the number of configured instances and objectives.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from zsnapdb import __version__
from zsnapdb.documents.base import At
from zsnapdb.jobs.repository.protection_status import InstanceStatus, alarm
from zsnapdb.planning.health.facts import HealthFacts
from zsnapdb.planning.health.objectives import Health, Verdict

Labels = Mapping[str, str]


@dataclass(frozen=True)
class Metric:
    """A gauge: its name and its help."""

    name: str
    help: str


@dataclass(frozen=True)
class Sample:
    """One value of a metric."""

    metric: Metric
    labels: Labels
    value: float


BUILD = Metric("zsnapdb_build_info", "The version of zsnapdb, as a label. The value is 1.")
JUDGED = Metric("zsnapdb_status_timestamp_seconds", "Time of the last evaluation.")
READABLE = Metric("zsnapdb_repository_readable", "1 if the repository could be read, else 0.")
VERDICT = Metric("zsnapdb_verdict", "The worst verdict of the instance: 0 met, 1 warning, 2 broken or not known.")
OBJECTIVE = Metric("zsnapdb_objective_verdict", "The verdict of an objective: 0 met, 1 warning, 2 broken.")
DEADLINE = Metric(
    "zsnapdb_objective_deadline_timestamp_seconds",
    "Time at which an age objective breaks without a newer backup, drill or check.",
)
LIMIT = Metric("zsnapdb_objective_limit_seconds", "The configured limit of an objective.")
DRILL_PASSED = Metric("zsnapdb_drill_newest_passed", "1 if the newest drill passed, else 0.")
RESTORE = Metric(
    "zsnapdb_restore_expected_seconds", "Expected duration of a restore of the newest point, from past drills."
)
DAMAGE = Metric("zsnapdb_damage_reasons", "Number of known problems with damaged or missing data.")

_TIMES = {
    Metric("zsnapdb_newest_point_timestamp_seconds", "Time of the newest point that can be restored."): At(
        "newest_point"
    ),
    Metric(
        "zsnapdb_window_start_timestamp_seconds",
        "Start of the gap-free restorable period that ends at the newest point.",
    ): At("window_start"),
    Metric("zsnapdb_newest_backup_timestamp_seconds", "Time of the newest backup that can be restored."): At(
        "newest_backup"
    ),
    Metric("zsnapdb_archive_complete_timestamp_seconds", "Time until which the binlog archive is complete."): At(
        "archived_until"
    ),
    Metric("zsnapdb_drill_newest_timestamp_seconds", "End time of the newest drill."): At("newest_drill.finished"),
    Metric("zsnapdb_drill_passed_timestamp_seconds", "End time of the newest drill that passed."): At(
        "newest_passed_drill.finished"
    ),
}
"""The metrics with the times of facts. An unknown fact has no sample."""

METRICS = (BUILD, JUDGED, READABLE, VERDICT, OBJECTIVE, DEADLINE, LIMIT, *_TIMES, DRILL_PASSED, RESTORE, DAMAGE)
"""Every metric, in the order of the text."""


def samples(states: Sequence[InstanceStatus], at: datetime) -> Iterator[Sample]:
    """Yield the samples of the instances. `at` is the time when their state was read."""
    yield Sample(BUILD, {"version": __version__}, 1)
    for state in states:
        labels = {"zsnapdb_instance": state.instance, "repository": state.repository}
        yield Sample(JUDGED, labels, at.timestamp())
        yield Sample(READABLE, labels, int(state.status is not None))
        if state.status is None:
            yield Sample(VERDICT, labels, Verdict.BROKEN.rank)
            continue
        health = state.status.health
        verdict = Verdict.BROKEN if alarm(state.status) is not None else health.verdict
        yield Sample(VERDICT, labels, verdict.rank)
        yield from health_metrics(labels, health)


def health_metrics(labels: Labels, health: Health) -> Iterator[Sample]:
    """Yield the samples of an instance's objectives and facts."""
    for judgement in health.judgements:
        own = {**labels, "objective": judgement.objective.value, "subject": judgement.subject}
        yield Sample(OBJECTIVE, own, judgement.verdict.rank)
        if judgement.limit is not None:
            yield Sample(LIMIT, own, judgement.limit)
        if judgement.deadline is not None:
            yield Sample(DEADLINE, own, judgement.deadline.timestamp())
    yield from _of_facts(labels, health.facts)


def _of_facts(labels: Labels, facts: HealthFacts) -> Iterator[Sample]:
    for metric, at in _TIMES.items():
        time = at.read(facts)
        if isinstance(time, datetime):
            yield Sample(metric, labels, time.timestamp())
    if facts.newest_drill is not None:
        yield Sample(DRILL_PASSED, labels, int(facts.newest_drill.passed))
    if facts.restore_seconds is not None:
        yield Sample(RESTORE, labels, facts.restore_seconds)
    yield Sample(DAMAGE, labels, len(facts.damage))


def text(states: Sequence[InstanceStatus], at: datetime) -> str:
    """Return the metrics of the instances as text, which ends in a newline."""
    return metrics_text(METRICS, samples(states, at))


def metrics_text(metrics: Sequence[Metric], given: Iterable[Sample]) -> str:
    """Return samples of the metrics as text, which ends in a newline."""
    by_name: dict[str, list[Sample]] = {}
    for sample in given:
        by_name.setdefault(sample.metric.name, []).append(sample)
    lines = []
    for metric in metrics:
        if metric.name in by_name:
            lines += [f"# HELP {metric.name} {metric.help}", f"# TYPE {metric.name} gauge"]
            lines += [_line(sample) for sample in by_name[metric.name]]
    return "\n".join(lines) + "\n"


def _line(sample: Sample) -> str:
    shown = ",".join(f'{name}="{_escaped(value)}"' for name, value in sample.labels.items() if value)
    return f"{sample.metric.name}{{{shown}}} {sample.value:.15g}"


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
