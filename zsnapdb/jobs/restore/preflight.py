"""The first step of a restore: findings about everything that the restore needs."""

from __future__ import annotations

from collections.abc import Sequence

from zsnapdb.base.errors import DamagedError, PreflightError, ZsnapdbError
from zsnapdb.config.settings import Settings
from zsnapdb.jobs.base.instance import Instance
from zsnapdb.jobs.host import affected_replicas, startup_requirements
from zsnapdb.jobs.host.server_copy import absent_files, hidden_files
from zsnapdb.jobs.restore import chain_checks, dataset_exchange
from zsnapdb.jobs.restore.offline_repository import is_stand_in
from zsnapdb.jobs.restore.startup_steps import ServerWork
from zsnapdb.mysql.process import programs, server
from zsnapdb.planning.backup.dataset_encryption import judge_receiving
from zsnapdb.planning.backup.fitness import FitnessFinding, Severity, ok, unfit, warning
from zsnapdb.planning.restore.plan import RestorePlan
from zsnapdb.planning.restore.steps import PoolNeeds, Preflight, Promote, Replay
from zsnapdb.planning.schema_content import rows_not_restored
from zsnapdb.planning.server_copy.source_facts import advice, missing_options
from zsnapdb.planning.server_space import START_BYTES, shows_use
from zsnapdb.repository.manifest import server_source
from zsnapdb.repository.repository import Repository
from zsnapdb.zfs import datasets, encryption, version


def examine(
    settings: Settings, instance: Instance, repository: Repository, planned: RestorePlan
) -> list[FitnessFinding]:
    """Return the findings of the first step of a plan; change nothing."""
    work = ServerWork(settings, instance, repository, planned)
    return [finding for step in planned.steps if isinstance(step, Preflight) for finding in preflight(work, step)]


def expected_error(findings: Sequence[FitnessFinding]) -> type[ZsnapdbError] | None:
    """Return the error that a restore with the given findings would raise, if any."""
    if chain_checks.is_damaged(findings):
        return DamagedError
    return PreflightError if any(finding.severity is Severity.UNFIT for finding in findings) else None


def preflight(work: ServerWork, step: Preflight) -> list[FitnessFinding]:
    """Return findings about everything that the restore needs; change nothing."""
    last = work.manifest(step.backups[-1])
    facts = server_source(last).server
    findings = [*judge_pool(step), _judge_server(work, step)]
    again = "load these rows again from where they come from"
    findings += [warning("rows", text, again) for text in rows_not_restored(facts.engines)]
    findings += startup_requirements.judge_plugins(
        work.instance.settings.server, step.flavour, step.server_version, work.plan.plugins, prevents=True
    )
    for backup_id in step.backups if step.fetches else ():
        findings += chain_checks.judge_chunks(work.instance, work.repository, work.manifest(backup_id))
    if not is_stand_in(work.repository):
        logs = [log for one in work.plan.steps if isinstance(one, Replay) for log in one.logs]
        findings += chain_checks.judge_binlogs(work.instance, work.repository, logs)
    findings += dataset_exchange.judge_keys(work.plan)
    if step.raw:
        findings += chain_checks.judge_key(
            work.instance, work.repository, last, is_archived=chain_checks.is_archived(findings)
        )
    error = work.copy.key_objection(facts.binlog_key)
    findings += [] if error is None else [unfit("binlog", error.message, error.hint)]
    findings += affected_replicas.examine(work.instance, work.plan)
    if isinstance(work.plan.steps[-1], Promote):
        # Import this module late, because only a restore that replaces a server needs it.
        from zsnapdb.jobs.restore.replaced_server import judge_end, judge_start

        findings += (*judge_start(work.instance, work.plan), *judge_end(work.instance, work.plan))
    return [*findings, *chain_checks.judge_damage(work.instance, work.repository, step.backups)]


def _mib(count: int) -> str:
    return f"{count / 2**20:.0f} MiB"


def judge_pool(step: PoolNeeds, elsewhere: str = "name another pool with --target") -> list[FitnessFinding]:
    """Return findings about the space and features of the receiving pool, and about its OpenZFS release.

    Even if nothing is received, the recovery of the server needs space. `elsewhere` is the hint about how to
    choose another pool.
    """
    findings = []
    parent = datasets.existing(step.parent)
    place = encryption.receiving_place(parent)
    free, needed = place.free, step.stored_bytes + START_BYTES
    if free < needed:
        findings.append(
            unfit(
                "space",
                f"{parent} has {_mib(free)} free, at least {_mib(needed)} are needed",
                f"free space ({shows_use(step.pool)}), or {elsewhere}",
            )
        )
    elif free < step.plain_bytes:
        detail = (
            f"{parent} has {_mib(free)} free; {_mib(step.plain_bytes)} are received before the pool compresses them,"
            " and may not fit"
        )
        findings.append(warning("space", detail, "free space, or watch the free space"))
    else:
        findings.append(ok("space", f"{parent} has {_mib(free)} free, at most {_mib(step.plain_bytes)} are received"))
    findings += judge_receiving(step.encrypted, parent, place.at_rest)
    missing = version.missing_features(step.pool, step.features)
    if missing:
        findings.append(
            unfit(
                "pool",
                f"the streams need features that {step.pool} has not enabled: {', '.join(missing)}",
                f"run `zpool upgrade {step.pool}`",
            )
        )
    installed = version.userland()
    here, there = version.release_in(installed), version.release_in(step.zfs_version)
    if here and there and here[:2] < there[:2]:
        text = f"this host has OpenZFS {'.'.join(map(str, here))}, the streams were made by {'.'.join(map(str, there))}"
        findings.append(warning("zfs", text, "if `zfs receive` refuses them, use a host with the newer OpenZFS"))
    else:
        findings.append(ok("zfs", installed))
    return findings


def _judge_server(work: ServerWork, step: Preflight) -> FitnessFinding:
    try:
        server.account(work.instance.settings.server.user)
        program = programs.fitting_program(work.instance.settings.server, step.flavour, step.server_version)
    except PreflightError as error:
        return unfit("server program", error.message, error.hint)
    missing = missing_options(work.plan.variables, work.instance.settings.server.options)
    if missing:
        lines = ", ".join(option.line for option in missing)
        return warning("server program", f"the server of the backup had {lines}", advice(missing, "") or "")
    absent = absent_files(work.plan.key_files)
    if absent:
        detail = f"the server of the backup read keys from {', '.join(absent)}, and this host has no such file"
        return warning("server program", detail, "give this host the keys if tables are encrypted")
    hidden = hidden_files(work.instance.settings.server, work.plan.key_files)
    if hidden:
        detail = f"the server of the backup read keys from {', '.join(hidden)}, which its sandbox lacks"
        return warning("server program", detail, "add the file to server.sandbox_reads if tables are encrypted")
    return ok("server program", f"{program.path} {program.version}, the backup is of {step.server_version}")
