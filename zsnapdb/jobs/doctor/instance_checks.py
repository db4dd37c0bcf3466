"""Checks of an instance: its datasets, server, files, lock, hooks, server program, repository and clones.

The checks change nothing.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta

from zsnapdb.base.errors import NotFound, ZsnapdbError
from zsnapdb.base.quantities import quantity, size
from zsnapdb.config.settings import Settings
from zsnapdb.jobs.backup.preflight import Observed, examine
from zsnapdb.jobs.base.clock_record import removal_time
from zsnapdb.jobs.base.host import Host
from zsnapdb.jobs.base.instance import Instance
from zsnapdb.jobs.clone import catalogue
from zsnapdb.jobs.clone.clone_info import CloneInfo
from zsnapdb.jobs.clone.reaper import leaks
from zsnapdb.jobs.doctor import orphan_servers, rule_facts
from zsnapdb.jobs.doctor.rule_facts import ClonesHere, advise, silences
from zsnapdb.jobs.health.recovery_coverage import Stored, read, repeated
from zsnapdb.jobs.host import affected_replicas, dataset_use_checks, object_locks, startup_requirements
from zsnapdb.jobs.host.agent_presence import lacks_agent
from zsnapdb.jobs.host.dataset_use_checks import ReplacedServer
from zsnapdb.jobs.host.volume_space import find_full_volume, open_session
from zsnapdb.jobs.record.server_unit_record import stopped_server
from zsnapdb.jobs.repository.protection_status import status_of
from zsnapdb.jobs.restore import chain_checks, finished_restores
from zsnapdb.jobs.steps import restore_journal
from zsnapdb.jobs.steps.restore_journal import Journals
from zsnapdb.jobs.vm import removal as vm_reaper
from zsnapdb.mysql.process import programs, server
from zsnapdb.planning.advice import server_rules
from zsnapdb.planning.advice.catalogue import Silence
from zsnapdb.planning.backup.dataset_encryption import judge_archiving, judge_raw_drills, judge_sent
from zsnapdb.planning.backup.fitness import FitnessFinding, PropertyChange, Severity, ok, unfit, warning
from zsnapdb.planning.backup.lifecycle_rules import judge_lifecycle
from zsnapdb.planning.clock_guard import CONFIRM
from zsnapdb.planning.clone.lease import stamp
from zsnapdb.planning.damage_register import sentences
from zsnapdb.planning.health.facts import ExchangedServer
from zsnapdb.planning.health.objectives import LACKING_AGENT, LACKING_AGENT_HINT, Objective, Verdict
from zsnapdb.planning.repository.known_backups import signing_note, trust_hint
from zsnapdb.planning.server_copy.version_compatibility import BackupVersion, SeriesNeed, needs
from zsnapdb.planning.server_facts import ServerFacts
from zsnapdb.planning.server_family import family
from zsnapdb.repository.manifest import is_of_server, server_source
from zsnapdb.repository.marker import prove_conditional_writes
from zsnapdb.repository.repository import Repository
from zsnapdb.repository.writer_lease import prove_exclusive
from zsnapdb.store.layers import refuse_unfit
from zsnapdb.zfs import datasets


@dataclass(frozen=True)
class Diagnosis:
    """The findings about one instance. `observed` is set if no finding prevents a backup of the instance's server."""

    instance: str
    findings: tuple[FitnessFinding, ...]
    observed: Observed | None

    @property
    def worst(self) -> Severity:
        order = (Severity.UNFIT, Severity.WARNING)
        return next((s for s in order if any(f.severity is s for f in self.findings)), Severity.OK)


def diagnose(settings: Settings, host: Host, only: str | None) -> list[Diagnosis]:
    """Return the diagnosis of the instance named `only`. If it is None, return the diagnoses of all instances.

    Raises ConfigError if a configured silence (a rule whose finding is hidden) names an unknown rule.
    """
    names = [settings.one_instance(only)[0]] if only else sorted(settings.instance)
    silenced = {name: silences(settings, name) for name in names}
    here = _clones_here(settings, host)
    return [_diagnose_one(settings, Instance.of(settings, name).on_host(host), here, silenced[name]) for name in names]


def safe_changes(diagnoses: Iterable[Diagnosis]) -> tuple[PropertyChange, ...]:
    """Return the safe changes that repair findings, without duplicates. Silenced findings are ignored."""
    changes = [finding.change for diagnosis in diagnoses for finding in diagnosis.findings]
    return tuple(dict.fromkeys(change for change in changes if change is not None))


def apply_changes(changes: Iterable[PropertyChange]) -> None:
    """Set the properties in order. If setting a property fails, the properties after it are not set."""
    for change in changes:
        datasets.set_properties(change.dataset, {change.name: change.value})


def _diagnose_one(settings: Settings, instance: Instance, here: ClonesHere, silenced: Sequence[Silence]) -> Diagnosis:
    observed: Observed | None = None
    ciphers: Mapping[str, str] = {}
    volumes: Mapping[str, str] = {}
    try:
        if instance.settings.vm is not None:
            from zsnapdb.jobs.backup.vm_source import open_machine

            with open_machine(instance, instance.settings.vm) as machine:
                seen = machine.examine()
                findings, volumes, ciphers = list(seen.findings), seen.volumes, seen.ciphers
        else:
            with open_session(instance) as session:
                examined = examine(instance, session)
                findings, observed = list(examined.findings), examined.observed
                if observed is not None:
                    volumes, ciphers = observed.volumes, observed.ciphers
                    findings += advise(instance, session, observed, silenced)
    except ZsnapdbError as error:
        what = "server" if instance.settings.vm is None else "machine"
        findings, observed = [unfit(what, error.message, error.hint)], None
    findings[:0] = _full_volume(instance)
    findings += _at_rest(instance, volumes, ciphers, observed)
    findings += (*_exchanges(instance), *_restored(settings, instance))
    if lacks_agent(instance.settings.agent, instance.host):
        findings.append(warning("agent", LACKING_AGENT.format(instance.name), LACKING_AGENT_HINT))
    if observed is not None:
        findings += _server_programs(instance, observed.facts)
        placed = instance.with_volumes(observed.volumes)
        findings += (*_replaced(settings, placed), *affected_replicas.remind(settings, placed))
        findings.append(server_rules.possible(findings))
    findings += [ok("clones over HTTP", limit) for limit in (settings.limit_of_service(instance.name),) if limit]
    doubt = removal_time(instance.host).doubt
    clock = [warning("clock", f"removals by age are suspended: {doubt}", CONFIRM)] if doubt else []
    about_clones = (*clock, *rule_facts.findings(settings, instance, here))
    # The running server and its newest backup may lack the same plugins, so report each plugin once.
    together = dict.fromkeys((*findings, *describe_stored(instance), *about_clones))
    return Diagnosis(instance.name, tuple(together), observed)


def _full_volume(instance: Instance) -> list[FitnessFinding]:
    """Return a finding if a volume of the server is full.

    The server need not run for this check, because a full volume stops the server.
    """
    full = find_full_volume(instance)
    if full is None:
        return []
    stopped = stopped_server(instance)
    return [unfit("space", full.describe(), full.hint(stopped.unit if stopped is not None else None))]


def _at_rest(
    instance: Instance, volumes: Mapping[str, str], ciphers: Mapping[str, str], observed: Observed | None
) -> list[FitnessFinding]:
    """Return findings about data that backups would send unencrypted, and about the ZFS key that raw backups need."""
    is_encrypting, send = bool(instance.repository.encryption.recipients), instance.repository.stream.send
    findings = judge_sent(volumes.values(), ciphers, send, is_encrypting=is_encrypting)
    is_raw = instance.sends_raw and bool(ciphers)
    if observed is not None:
        is_hidden = is_raw or observed.binlog_key is not None
        findings += judge_archiving(is_hidden, is_encrypting=is_encrypting)
    raw = tuple(sorted(volumes.values())) if is_raw else ()
    if is_raw:
        own = instance.settings
        findings += judge_raw_drills(is_drilled=bool(own.agent.drill or own.objectives.drill_age))
    # Raw backups can be made without the key, but restores on this host need the key.
    keys = chain_checks.judge_key_file(instance, raw)
    return findings + [replace(key, severity=Severity.WARNING) for key in keys if key.severity is not Severity.OK]


def describe_stored(instance: Instance) -> list[FitnessFinding]:
    """Check the repository, the instance's backups and binlogs in the repository, and the instance's objectives.

    The repository is read only once.
    """
    findings, stored = _repository(instance)
    if stored is None:
        return findings
    return [
        *findings,
        *_unprotected(instance, stored),
        *(warning("histories", part.text, part.hint) for part in repeated(stored.archive)),
        *_damage(stored),
        *_programs_of_backups(instance, stored),
        *_plugins_of_newest(instance, stored),
        *_objectives(instance, stored),
    ]


def _server_programs(instance: Instance, facts: ServerFacts) -> list[FitnessFinding]:
    """Check the server program, and innochecksum in the same folder.

    Restores and clones need the server program. Drills also need innochecksum. Backups need neither of them.
    """
    try:
        server.account(instance.settings.server.user)
        program = programs.fitting_program(instance.settings.server, facts.flavour, facts.version)
    except ZsnapdbError as error:
        text = f"{error.message}: restores and clones on this host will be refused"
        return [warning("server program", text, error.hint)]
    findings = [ok("server program", f"{program.path} {program.version}")]
    try:
        programs.find(programs.INNOCHECKSUM, instance.settings.server, facts.flavour, program.path)
    except ZsnapdbError as error:
        is_needed = instance.settings.drill.pages == "required"
        text = "drills on this host will be refused" if is_needed else "drills on this host do not check pages"
        findings.append(warning("drill", f"{error.message}: {text}", error.hint))
    return findings


def _programs_of_backups(instance: Instance, stored: Stored) -> list[FitnessFinding]:
    """For each server series among the backups, check that this host has the server program to restore them."""
    servers = [(backup.backup_id, server_source(backup).server) for backup in stored.current if is_of_server(backup)]
    return [
        _program_for(instance, need)
        for need in needs(BackupVersion(backup_id, part.flavour, part.version) for backup_id, part in servers)
    ]


def _plugins_of_newest(instance: Instance, stored: Stored) -> list[FitnessFinding]:
    servers = [server_source(backup).server for backup in stored.current if is_of_server(backup)]
    judged = [
        finding
        for part in servers[-1:]
        for finding in startup_requirements.judge_plugins(
            instance.settings.server, part.flavour, part.version, part.plugins, prevents=False
        )
    ]
    return [finding for finding in judged if finding.severity is not Severity.OK]


def _program_for(instance: Instance, need: SeriesNeed) -> FitnessFinding:
    title = family(need.flavour).title
    what = f"{need.count} backup(s), the newest {need.newest}, need a server program of {title} {need.series}"
    try:
        program = programs.fitting_program(instance.settings.server, need.flavour, need.version)
    except ZsnapdbError as error:
        return warning(
            "backups",
            f"{what}, {need.version} or newer: {error.message}",
            f"keep the old program as long as these backups stay; {error.hint}",
        )
    return ok("backups", f"{what}: {program.path}")


def _repository(instance: Instance) -> tuple[list[FitnessFinding], Stored | None]:
    """Check the repository, and read its state once for all checks. An unreadable state is returned as None."""
    url = instance.repository.url
    try:
        repository = instance.open_repository()
        repository.check_writable()
        refuse_unfit(instance.repository)
        with contextlib.suppress(NotFound):
            # The test needs the repository's marker. If the marker is lost, a finding below reports the loss.
            prove_conditional_writes(repository)
        with contextlib.suppress(NotFound):
            # Before the first backup there is no lease to test. The first backup tests the store when it takes the
            # lease.
            prove_exclusive(repository, f"{instance.name}/writer")
        stored = read(instance, repository)
        policy = repository.afterlife()
        rules = judge_lifecycle(policy.archive_rules, policy.removal_rules)
        locks = [*_object_locks(instance, repository), *rules]
    except NotFound as error:
        if instance.expected_backups():
            return [unfit("repository", error.message, error.hint)], None
        try:
            instance.open_store()[0].check()
        except ZsnapdbError as unreachable:
            return [unfit("repository", unreachable.message, unreachable.hint)], None
        return [ok("repository", f"{url}: {error.message}; {error.hint}")], None
    except ZsnapdbError as error:
        return [unfit("repository", error.message, error.hint)], None
    return _about_repository(instance, stored, locks), stored


def _about_repository(instance: Instance, stored: Stored, locks: Sequence[FitnessFinding]) -> list[FitnessFinding]:
    url, repository = instance.repository.url, stored.repository
    recipients = len(repository.keyring.recipients)
    encryption = f", encrypted to {quantity(recipients, 'recipient')}" if recipients else ""
    doubts = [warning("repository", finding.text, finding.hint) for finding in stored.missing if finding.is_warning]
    doubts += [warning("repository", error.message, error.hint) for error in stored.unreadable.values()]
    doubts += locks
    if note := signing_note(instance.repository.encryption, instance.settings.repository):
        doubts.append(warning("signing", note, trust_hint(instance.settings.repository)))
    provider = instance.repository.provider
    if provider is not None and provider.is_readable_on_the_way:
        text = f"{url}: {provider.endpoint} is not encrypted: the network can change what is stored"
        doubts.append(warning("repository", text, "use an endpoint with https://"))
    what = f"{url}: {quantity(len(stored.backups) + len(stored.unreadable), 'backup')}{encryption}"
    return [ok("repository", what), *doubts]


def _object_locks(instance: Instance, repository: Repository) -> list[FitnessFinding]:
    lock = instance.repository.object_lock
    if lock is None:
        return []
    misfits = [
        FitnessFinding(Severity.UNFIT if f.prevents_backups else Severity.WARNING, "object lock", f.text, f.hint)
        for f in object_locks.findings(instance, repository)
    ]
    text = f"every stored object is locked ({lock.mode}) for {lock.period / 86400:.1f} days at least"
    return misfits or [ok("object lock", text)]


def _unprotected(instance: Instance, stored: Stored) -> list[FitnessFinding]:
    """Warn if no backup can be rolled forward to the server's present state."""
    unprotected = stored.window.unprotected
    if unprotected is None:
        return []
    what = f"nothing that the server writes now can be restored before the next backup: {unprotected.reason}"
    return [warning("histories", what, f"run `zsnapdb backup {instance.name}`")]


def _damage(stored: Stored) -> list[FitnessFinding]:
    chains = stored.damage.of_chains(stored.provenance.trusted(stored.backups))
    if not chains:
        return []
    hint = (
        "see `zsnapdb list`; `zsnapdb verify --deep` reads every stored object again, `zsnapdb drill --all` every page"
    )
    damages = tuple(dict.fromkeys(damage for of_chain in chains.values() for damage in of_chain))
    summary = f"{len(chains)} of {len(stored.backups)} backups cannot be restored, or only damaged"
    return [warning("damage", summary, hint), *(warning("damage", text) for text in sentences(damages))]


_LONG_KEPT = timedelta(days=14)
"""The age at which an administrator should decide about the datasets of a replaced server."""
_JUDGED_ABOVE = (Objective.RESTORABLE, Objective.INTACT, Objective.SERVER, Objective.AGENT)
"""Objectives for which no finding is added here, because other findings already report them in detail."""


def _objectives(instance: Instance, stored: Stored) -> list[FitnessFinding]:
    """Return a finding for each configured objective. Facts that cannot be read are reported by other checks."""
    try:
        health = status_of(instance, stored).health
    except ZsnapdbError:
        return []
    judgements = [judged for judged in health.judgements if judged.objective not in _JUDGED_ABOVE]
    unmet = [judged for judged in judgements if judged.verdict is not Verdict.MET]
    met = [ok("objective", f"{judged.name}: {judged.reason}") for judged in judgements if judged not in unmet]
    if unmet and not (stored.backups or stored.unreadable or stored.missing):
        # All these objectives have the same cause and hint.
        names = ", ".join(judged.name for judged in unmet)
        text = f"there is no backup yet: {names} cannot be met before the first one"
        return [*met, warning("objective", text, f"run `zsnapdb backup {instance.name}`")]
    return met + [
        warning("objective", f"{judged.name} {judged.verdict.value}: {judged.reason}", judged.hint) for judged in unmet
    ]


def _clones_here(settings: Settings, host: Host) -> ClonesHere:
    known: Sequence[CloneInfo] = ()
    try:
        seen = catalogue.known_clones(settings, host)
        known = seen.copies
        left = [*leaks(settings, host, seen), *orphan_servers.leaks(settings), *vm_reaper.leaks(settings, host)]
        return ClonesHere(known, left)
    except ZsnapdbError:
        # Without ZFS there are no clones. The findings about each instance already report that ZFS is missing.
        return ClonesHere(known)


def _restored(settings: Settings, instance: Instance) -> list[FitnessFinding]:
    """Return a finding for each finished restore that did not replace the server, and whose datasets still exist."""
    try:
        known = finished_restores.existing(settings, instance)
    except ZsnapdbError:
        # Without ZFS there are no restored datasets. Another finding already reports that ZFS is missing.
        return []
    return [
        ok("restored", f"{one.describe()}; `{restore_journal.give_up_command(one.journal.plan)}` removes it")
        for one in known
    ]


def _replaced(settings: Settings, instance: Instance) -> list[FitnessFinding]:
    try:
        kept = dataset_use_checks.listing(instance)
    except ZsnapdbError:
        # Without ZFS there are no replaced servers. Another finding already reports that ZFS is missing.
        return []
    now, findings = removal_time(instance.host).at, list[FitnessFinding]()
    for one in kept:
        expires = one.expires(settings.restore.keep_replaced)
        text = f"{', '.join(one.datasets.values())}: replaced at {stamp(one.replaced)}, {size(one.used)}"
        if expires is not None and expires <= now:
            findings.append(_expired(settings, one, f"{text}; expired"))
        elif expires is None and now - one.replaced > _LONG_KEPT:
            hint = "destroy them if they are not needed, or set restore.keep_replaced and run `zsnapdb reap`"
            findings.append(warning("replaced", f"{text}; restore.keep_replaced is not set", hint))
        else:
            findings.append(ok("replaced", text))
    return findings


def _exchanges(instance: Instance) -> list[FitnessFinding]:
    findings = []
    for exchange in restore_journal.under_way(instance):
        hint = exchange.hint()
        if exchange.server is ExchangedServer.AWAY:
            text = f"a rewind started at {stamp(exchange.started)} is running; the server is down until it ends"
            findings.append(warning("rewind", text, "wait until it ends"))
        elif exchange.stopped is not None:
            text = f"a rewind that did not end stopped the server at {stamp(exchange.stopped)}"
            findings.append(unfit("rewind", text, hint))
        else:
            text = f"a restore that replaces the server was started at {stamp(exchange.started)} and did not end"
            findings.append(warning("rewind", text, hint))
    return findings


def _expired(settings: Settings, server: ReplacedServer, text: str) -> FitnessFinding:
    """Return the finding about a replaced server that has expired.

    The finding says whether `reap` would remove the server.
    """
    try:
        dataset_use_checks.refuse_replaced_removal(server, restore_journal.claimed(Journals(settings.restore.journal)))
    except ZsnapdbError as error:
        return warning("replaced", f"{text}, and kept: {error.message}", error.hint)
    return warning("replaced", text, "run `zsnapdb reap`")
