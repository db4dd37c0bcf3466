"""Commands on a repository: init, verify, copy, consolidate, prune, pin, adopt, acknowledge-removed, key."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from zsnapdb.base.errors import ConfigError, DamagedError, UsageError
from zsnapdb.cli import completion, log_writer, options
from zsnapdb.cli.command_context import configuration, instance_context
from zsnapdb.cli.idempotency import CommandAnswer, Repeatable, show_once
from zsnapdb.cli.notified_commands import evidencing_keys
from zsnapdb.cli.options import AsJson, ConfigFile, PlanOnly, argument, flag, option
from zsnapdb.cli.output import renamed, require_yes, show, show_errors, show_missing

if TYPE_CHECKING:
    from zsnapdb.jobs.health.evidence_records import PolicyChange
    from zsnapdb.jobs.repository.prune import PrunePlan


def init(
    repository: Annotated[
        str | None,
        argument(
            "REPOSITORY",
            "Configured repository. Optional if only one is configured.",
            autocompletion=completion.repositories,
        ),
    ] = None,
    new: Annotated[bool, flag("--new", "Create an empty repository where this host stored backups.")] = False,
    config: options.ConfigFile = None,
    plan: options.PlanOnly = False,
    json: options.AsJson = False,
) -> None:
    """Create a repository: write its marker object.

    In an existing repository, `init` replaces a lost marker and updates the list of recipients. If no repository is
    found where this host stored backups, `init` refuses: a missing mount looks like an empty folder.
    """
    from zsnapdb.jobs.repository import init as job
    from zsnapdb.report.repository import init as report

    settings = configuration(config)
    if plan:
        show(report.InitPlanView(job.plan(settings, repository, is_new=new)), json)
        return
    with evidencing_keys("init", settings, job.choose_repository(settings, repository)) as changes:
        done = job.init(settings, repository, is_new=new)
        changes += done.changes
    show(report.InitView(done), json)


def verify(
    instance: options.InstanceName = None,
    deep: Annotated[
        bool, flag("--deep", "Read every byte: check hashes, decryption, and the records of the streams.")
    ] = False,
    older_than: Annotated[
        str | None,
        option(
            "--older-than",
            "TIME",
            "Verify only backups without a successful verification in this time, for example 30d.",
        ),
    ] = None,
    limit: Annotated[
        int | None,
        option("--limit", "N", "Verify at most N backups, the most urgent first.", min=1, show_default=False),
    ] = None,
    repository: options.RepositoryName = None,
    once: options.Once = None,
    config: options.ConfigFile = None,
    plan: options.PlanOnly = False,
    json: options.AsJson = False,
) -> None:
    """Check that the backups in the repository are undamaged.

    Exit codes: 0 good, 7 damaged, 6 the repository has no backup or cannot be reached.
    """
    from zsnapdb.base.quantities import parse_duration
    from zsnapdb.jobs.repository import verify as job
    from zsnapdb.report.repository import prune as report

    _, chosen = instance_context(config, instance, repository)
    seconds = parse_duration(older_than) if older_than is not None else None
    depth = job.Depth.READ if deep else job.Depth.LISTED
    if plan:
        planned = job.plan(chosen, depth, older_than=seconds, limit=limit)
        show(report.VerifyPlanView(planned), json)
        return

    def make() -> CommandAnswer:
        result = job.verify(chosen, depth, older_than=seconds, limit=limit)
        error = result.alarm()
        show_errors([error] if error is not None else [])
        return CommandAnswer(report.VerifyView(result), error.exit_code if error is not None else 0)

    about = f"{chosen.name} in {chosen.settings.repository}"
    command = Repeatable("verify", about, is_scheduled=True, tell=chosen.events.tell)
    show_once(chosen.host, once, command, make, json)


def copy(
    to: Annotated[
        str, option("--to", "REPOSITORY", "Configured repository to copy to.", autocompletion=completion.repositories)
    ],
    instance: options.InstanceName = None,
    source: Annotated[
        str | None,
        option(
            "--from",
            "REPOSITORY",
            "Configured repository to copy from.",
            autocompletion=completion.repositories,
            show_default="the instance's own",
        ),
    ] = None,
    wait: options.WaitTime = "0s",
    config: options.ConfigFile = None,
    plan: options.PlanOnly = False,
    json: options.AsJson = False,
) -> None:
    """Copy missing backups to another repository, unchanged."""
    from zsnapdb.base.quantities import parse_duration
    from zsnapdb.jobs.base.instance import Instance
    from zsnapdb.jobs.repository import copy as job
    from zsnapdb.report.repository import prune as report

    settings, here = instance_context(config, instance, source)
    there = Instance.at(settings, instance, to, here.events).waiting(parse_duration(wait))
    if plan:
        show(report.CopyPlanView(job.plan(here, there)), json)
        return
    result = job.copy(here, there)
    show(report.CopyView(result), json)
    show_errors(result.plan.unreadable.values())
    if not result.is_whole:
        raise typer.Exit(DamagedError.exit_code)


def consolidate(
    instance: options.InstanceName = None,
    backup: Annotated[
        str,
        argument(
            "BACKUP",
            "Backup id, or latest: the newest backup with a complete chain.",
            autocompletion=completion.backups,
        ),
    ] = "latest",
    repository: options.RepositoryName = None,
    wait: options.WaitTime = "0s",
    config: options.ConfigFile = None,
    plan: options.PlanOnly = False,
    json: options.AsJson = False,
) -> None:
    """Make a full backup from a chain of increments, without the server.

    The command receives the chain into scratch datasets, stores full streams of the same snapshots as a new backup, and
    removes the datasets. The next backup is an increment of the new backup, and the earlier chain may expire.
    """
    from zsnapdb.jobs.trial import consolidate as job
    from zsnapdb.report import trial as report

    settings, chosen = instance_context(config, instance, repository, wait=wait)
    if plan:
        show(report.ConsolidatePlanView(job.plan(chosen, chosen.open_repository(), backup)), json)
        return
    done = job.consolidate(settings, chosen, backup)
    show(report.ConsolidateView(done), json)


def prune(
    instance: options.InstanceName = None,
    repository: options.RepositoryName = None,
    unrestorable: Annotated[
        bool, flag("--unrestorable", "Also remove backups that cannot be restored any more.")
    ] = False,
    trust_clock: Annotated[
        bool, flag("--trust-clock", "Prune although the clock of this host seems to be wrong.")
    ] = False,
    once: options.Once = None,
    wait: options.WaitTime = "0s",
    config: options.ConfigFile = None,
    plan: options.PlanOnly = False,
    json: options.AsJson = False,
) -> None:
    """Remove expired backups and the leftovers of interrupted runs.

    A backup is expired if the retention policy does not keep it.
    """
    from zsnapdb.jobs.repository import prune as job
    from zsnapdb.jobs.repository.prune_facts import NOTHING_LOCAL
    from zsnapdb.report.repository import prune as report

    settings, chosen = instance_context(config, instance, repository, wait=wait)
    is_own = chosen.settings.repository == settings.instance[chosen.name].repository
    local = None if is_own else NOTHING_LOCAL
    policy = job.Unrestorable.REMOVE if unrestorable else job.Unrestorable.KEEP
    if plan:
        planned = job.plan(chosen, local=local, unrestorable=policy, trusts_clock=trust_clock)
        show(report.PrunePlanView(planned), json)
        code = _show_problems(planned)
        if code:
            raise typer.Exit(code)
        return

    def make() -> CommandAnswer:
        result = job.prune(chosen, local=local, unrestorable=policy, trusts_clock=trust_clock)
        return CommandAnswer(report.PruneView(result), _show_problems(result.plan))

    about = f"{chosen.name} in {chosen.settings.repository}"
    show_once(chosen.host, once, Repeatable("prune", about, patience=chosen.wait, tell=chosen.events.tell), make, json)


def _show_problems(planned: PrunePlan) -> int:
    """Print unreadable and missing objects to stderr. Return the resulting exit code."""
    errors = list(planned.backups.unreadable.values())
    show_errors(errors)
    is_lacking = show_missing(planned.missing)
    return errors[0].exit_code if errors else DamagedError.exit_code if is_lacking else 0


def pin(
    instance: options.NamedInstance,
    backup: Annotated[
        str, argument("BACKUP", "Backup id, or latest.", autocompletion=completion.backups, show_default=False)
    ],
    reason: Annotated[
        str | None, option("--reason", "TEXT", "Reason to keep the backup, which `zsnapdb prune` shows.")
    ] = None,
    remove: Annotated[bool, flag("--remove", "Remove the pin, so the retention policy applies again.")] = False,
    repository: options.RepositoryName = None,
    config: options.ConfigFile = None,
    json: options.AsJson = False,
) -> None:
    """Keep a backup regardless of the retention policy.

    All backups that its restore needs are kept too.
    """
    from zsnapdb.jobs.base.instance import Instance
    from zsnapdb.jobs.repository import inventory as job
    from zsnapdb.report.repository import list as report

    if remove and reason is not None:
        raise UsageError("--remove takes no --reason", hint="leave --reason out")
    chosen = Instance.at(configuration(config), instance, repository)
    if remove:
        show(report.UnpinView(job.unpin(chosen, backup)), json)
    else:
        show(report.PinView(job.pin(chosen, backup, reason or "")), json)


def unpin(
    instance: options.NamedInstance,
    backup: Annotated[str, argument("BACKUP", "Backup id.", autocompletion=completion.backups)],
    repository: options.RepositoryName = None,
    config: options.ConfigFile = None,
    json: options.AsJson = False,
) -> None:
    """Remove the pin of a backup. This is the old name of `zsnapdb pin --remove`."""
    renamed("unpin", "pin --remove")
    pin(instance, backup, None, True, repository, config, json)


def adopt(
    instance: options.NamedInstance,
    backups: Annotated[
        list[str] | None,
        argument(
            "BACKUP...", "Backup ids. Default: all backups without an objection.", autocompletion=completion.backups
        ),
    ] = None,
    repository: options.RepositoryName = None,
    deep: Annotated[bool, flag("--deep", "Read every byte of the backups.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Adopt without a confirmation.")] = False,
    config: options.ConfigFile = None,
    plan: options.PlanOnly = False,
    json: options.AsJson = False,
) -> None:
    """Adopt backups that this host did not store, after it was rebuilt or took over from another host.

    The command shows the known facts about each foreign backup. The retention policy applies to adopted backups and may
    remove them.
    """
    from zsnapdb.jobs.repository import adopt as job
    from zsnapdb.report.repository.list import AdoptView

    _, chosen = instance_context(config, instance, repository)
    planned = job.plan(chosen, tuple(backups or ()), is_deep=deep)
    if plan:
        show(AdoptView(planned, is_planned=True), json)
        return
    if not planned.is_empty:
        if not yes:
            require_yes("adopt", AdoptView(planned, is_planned=True).text(), "Adopt these?")
        job.adopt(chosen, planned)
    show(AdoptView(planned), json)


MissingBackups = Annotated[
    list[str] | None,
    argument("BACKUP...", "Backup ids. Default: all missing backups.", autocompletion=completion.backups),
]


def acknowledge_removed(
    instance: options.NamedInstance,
    backups: MissingBackups = None,
    config: options.ConfigFile = None,
    plan: options.PlanOnly = False,
    json: options.AsJson = False,
) -> None:
    """Accept the intended removal of missing backups from the repository.

    This host stored the missing backups, and another host or a person removed them. The next prune may destroy the
    local snapshots of these backups.
    """
    from zsnapdb.jobs.repository import adopt as job
    from zsnapdb.report.repository.list import ForgetView

    _, chosen = instance_context(config, instance)
    names = tuple(backups or ())
    show(ForgetView(job.plan_forget(chosen, names) if plan else job.forget(chosen, names), is_planned=plan), json)


def forget(
    instance: options.NamedInstance,
    backups: MissingBackups = None,
    config: options.ConfigFile = None,
    plan: options.PlanOnly = False,
    json: options.AsJson = False,
) -> None:
    """Accept the removal of missing backups. This is the old name of `zsnapdb acknowledge-removed`."""
    renamed("forget", "acknowledge-removed")
    acknowledge_removed(instance, backups, config, plan, json)


IdentityFile = Annotated[
    Path | None, option("--identity", "FILE", "File of an age identity, which decrypts backups.", show_default=False)
]
SigningKeyFile = Annotated[
    Path | None, option("--signing-key", "FILE", "File of a signing key, which signs manifests.", show_default=False)
]


def generate_key(
    identity: IdentityFile = None,
    signing_key: SigningKeyFile = None,
    config: ConfigFile = None,
    plan: PlanOnly = False,
    json: AsJson = False,
) -> None:
    """Generate an age identity, a signing key, or both.

    The keys are written to new files of mode 0600. The public parts of the keys are printed. If there is a
    configuration, the new keys are recorded in the evidence logs of its repositories.
    """
    from zsnapdb.jobs.repository import init as job
    from zsnapdb.report.repository import init as report

    if identity is None and signing_key is None:
        raise typer.BadParameter("name at least one file: --identity FILE, --signing-key FILE")
    if plan:
        job.refuse_existing_keys(identity, signing_key)
        show(report.KeysPlanView(identity, signing_key), json)
        return
    with _evidence(config) as changes:
        made = job.generate_keys(identity, signing_key)
        changes += made.changes
    show(report.KeysView([made]), json)


@contextlib.contextmanager
def _evidence(config: Path | None) -> Iterator[list[PolicyChange]]:
    """Run the block with the evidence logs of the configuration, if a configuration exists.

    Keys are often generated before a configuration exists.
    """
    try:
        settings = configuration(config)
    except ConfigError as error:
        if config is not None:
            log_writer.warn(f"that these keys are made is in no evidence log: {error.message}")
        yield []
        return
    with evidencing_keys("key", settings) as changes:
        yield changes


def show_keys(
    identity: IdentityFile = None, signing_key: SigningKeyFile = None, config: ConfigFile = None, json: AsJson = False
) -> None:
    """Print the public parts of keys.

    The keys are read from the given files or, without these options, from the configured files.
    """
    from zsnapdb.jobs.repository import init as job
    from zsnapdb.report.repository import init as report

    if identity is None and signing_key is None:
        files = job.configured_keys(configuration(config))
    else:
        files = [job.public_parts(identity, signing_key)]
    show(report.KeysView(files), json)
