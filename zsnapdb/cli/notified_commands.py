"""Notifications and evidence records for the start and end of commands."""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from zsnapdb.base.errors import ZsnapdbError
from zsnapdb.cli import log_writer
from zsnapdb.cli.command_context import configuration, instance_context
from zsnapdb.cli.commands import Command, EvidenceKeeper
from zsnapdb.cli.progress import Terminal

if TYPE_CHECKING:
    from zsnapdb.config.settings import Settings
    from zsnapdb.jobs.base.instance import Instance
    from zsnapdb.jobs.dataset_copies.sweep import ReapOutcome
    from zsnapdb.jobs.health.evidence_records import PolicyChange

_CLONE = "clone"


def wrap_with_notifications(job: str, command: Command, function: Callable[..., None]) -> Callable[..., None]:
    """Return the function of the command, wrapped so that it sends notifications and writes evidence.

    The name of the job is the first word of the command. The evidence records how the command ended. `--plan` leaves no
    evidence.
    """

    @functools.wraps(function)
    def run(**options: Any) -> None:
        with contextlib.ExitStack() as stack:
            if not options.get("plan"):
                _enter(stack, job, command, options)
            function(**options)

    return run


def _enter(stack: contextlib.ExitStack, job: str, command: Command, options: Mapping[str, Any]) -> None:
    """Activate notifications and the evidence log for the command.

    Errors in the configuration or in a name are ignored here, because the command itself reports them.
    """
    # The group `agent` has its own option for the configuration.
    config, named = options.get("config") or getattr(options.get("context"), "obj", None), options.get("instance")
    if command.notifies:
        with contextlib.suppress(ZsnapdbError):
            settings = configuration(config)
            instance, _ = settings.one_instance(named)
            log_writer.add_log_fields(instance=instance, job=job)
            if settings.notifications.to:
                from zsnapdb.config.notifications import NotifiedJob
                from zsnapdb.notify.occasions import notified

                stack.enter_context(notified(settings, NotifiedJob(job), instance, log_writer.warn))
    if command.only_with is not None and not options.get(command.only_with):
        return
    if command.evidence is EvidenceKeeper.OF_INSTANCE:
        try:
            _, chosen = instance_context(config, named, options.get("repository"))
        except ZsnapdbError:
            return
        stack.enter_context(evidence_of(chosen, job))
    elif command.evidence is EvidenceKeeper.OF_CLONE:
        with contextlib.suppress(ZsnapdbError):
            stack.enter_context(evidence_of_clone(configuration(config), str(options.get("name"))))
    elif command.evidence is EvidenceKeeper.OF_HOST:
        with contextlib.suppress(ZsnapdbError):
            stack.enter_context(evidencing_keys(job, configuration(config)))


@contextlib.contextmanager
def evidence_of_clone(settings: Settings, name: str) -> Iterator[None]:
    """Run the block, which acts on the clone or set `name`, and record its result in an evidence log.

    The record is written to the log of the clone's instance. If no clone has this name, nothing is written.
    """
    if not any(repository.evidence for repository in settings.repository.values()):
        # Clones are searched only if a repository keeps an evidence log.
        yield
        return
    from zsnapdb.jobs.base.host import THIS_HOST
    from zsnapdb.jobs.clone import catalogue
    from zsnapdb.jobs.health import evidence_records

    with contextlib.ExitStack() as stack:
        for instance in sorted(catalogue.instances_of(settings, THIS_HOST, name)):
            chosen = _keeping(settings, instance)
            if chosen is not None:
                stack.enter_context(evidence_records.recorded(chosen, _CLONE, ("zsnapdb", *sys.argv[1:]), name))
        yield


def evidence_of_removed(settings: Settings, outcome: ReapOutcome) -> None:
    """Record in the instance's evidence log that `reap` removed a clone of the instance."""
    from zsnapdb.jobs.health import evidence_records

    chosen = _keeping(settings, outcome.instance) if outcome.what == _CLONE and outcome.instance else None
    if chosen is not None:
        with evidence_records.recorded(chosen, _CLONE, ("zsnapdb", *sys.argv[1:]), f"{outcome.name}: {outcome.reason}"):
            pass


def evidence_of_pool(instance: Instance, changed: str) -> None:
    """Record a change of the instance's pool in the instance's evidence log. If `changed` is empty, record nothing."""
    from zsnapdb.jobs.health import evidence_records

    if changed and instance.repository.evidence:
        with evidence_records.recorded(instance, _CLONE, ("zsnapdb", *sys.argv[1:]), changed):
            pass


@contextlib.contextmanager
def evidence_of(instance: Instance, job: str, about: str = "") -> Iterator[None]:
    """Run the block as a job of the instance. Record its result in the evidence log, if the repository has one.

    The argument `about` names the object of the job, such as a clone.
    """
    from zsnapdb.jobs.health import evidence_records

    typed = ("zsnapdb", *sys.argv[1:])
    if not instance.repository.evidence:
        evidence_records.note_end(instance, typed)
        yield
        return
    with evidence_records.recorded(instance, job, typed, about):
        yield


def _keeping(settings: Settings, name: str) -> Instance | None:
    """Return the instance if it is configured and its repository has an evidence log, and None otherwise."""
    from zsnapdb.jobs.base.instance import Instance

    with contextlib.suppress(ZsnapdbError):
        chosen = Instance.of(settings, name, Terminal())
        return chosen if chosen.repository.evidence else None
    return None


@contextlib.contextmanager
def evidencing_keys(job: str, settings: Settings, repository: str | None = None) -> Iterator[list[PolicyChange]]:
    """Run the block, an action on this host, and record its end and the keys that it adds to the yielded list.

    The records are written to the logs of all instances whose repository has an evidence log. If `repository` is given,
    only the instances of that repository are considered.
    """
    from zsnapdb.jobs.base.instance import Instance
    from zsnapdb.jobs.health.evidence_records import recorded_keys

    known = [Instance.of(settings, name, Terminal()) for name in sorted(settings.instance)]
    chosen = [
        one
        for one in known
        if one.repository.evidence and (repository is None or one.settings.repository == repository)
    ]
    with recorded_keys(chosen, job, ("zsnapdb", *sys.argv[1:])) as changes:
        yield changes
