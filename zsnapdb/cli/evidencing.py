"""Commands that leave evidence of what they did, if the repository keeps an evidence log."""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

from zsnapdb.base.errors import ZsnapdbError
from zsnapdb.cli.opened import of_instance

if TYPE_CHECKING:
    from zsnapdb.config.settings import Settings
    from zsnapdb.jobs.base.instance import Instance
    from zsnapdb.jobs.copies.sweeping import ReapOutcome
    from zsnapdb.jobs.health.evidence import PolicyChange

Command = TypeVar("Command", bound=Callable[..., None])
_CLONE = "clone"


def evidencing(job: str, command: Command, only_with: str | None = None) -> Command:
    """Return the command, which now also writes into the evidence log how it ended. Showing a plan is no deed.

    `only_with` is the parameter without which the command changes nothing (None: it always does).
    """

    @functools.wraps(command)
    def run(*words: Any, **options: Any) -> None:
        if options.get("plan") or (only_with is not None and not options.get(only_with)):
            command(*words, **options)
            return
        try:
            _, chosen = of_instance(options.get("config"), options.get("instance"), options.get("repository"))
        except ZsnapdbError:
            # The command says what is wrong.
            command(*words, **options)
            return
        with evidence_of(chosen, job):
            command(*words, **options)

    return run  # type: ignore[return-value]


def evidencing_clone(command: Command) -> Command:
    """Return the command on a clone, or on each clone of a set, which now also leaves evidence of how it ended."""

    @functools.wraps(command)
    def run(*words: Any, **options: Any) -> None:
        from zsnapdb.config.settings import load

        if options.get("plan"):
            command(*words, **options)
            return
        with contextlib.ExitStack() as stack:
            # The command says what is wrong with the configuration or the name.
            with contextlib.suppress(ZsnapdbError):
                stack.enter_context(evidence_of_clone(load(options.get("config")), str(options.get("name"))))
            command(*words, **options)

    return run  # type: ignore[return-value]


@contextlib.contextmanager
def evidence_of_clone(settings: Settings, name: str) -> Iterator[None]:
    """Run the block, a deed on the clone (or set of clones) of that name, and write how it ended into evidence logs.

    The log is that of the instance of the clone. Nothing is written where nothing has that name.
    """
    if not any(repository.evidence for repository in settings.repository.values()):
        # Clones are looked for only if that can lead to a log.
        yield
        return
    from zsnapdb.jobs.base.host import THIS_HOST
    from zsnapdb.jobs.clone import catalogue
    from zsnapdb.jobs.health import evidence

    with contextlib.ExitStack() as stack:
        for instance in sorted(catalogue.instances_of(settings, THIS_HOST, name)):
            chosen = _keeping(settings, instance)
            if chosen is not None:
                stack.enter_context(evidence.recorded(chosen, _CLONE, ("zsnapdb", *sys.argv[1:]), name))
        yield


def evidence_of_removed(settings: Settings, outcome: ReapOutcome) -> None:
    """Write a record of a clone that a sweep has removed into the log of its instance."""
    from zsnapdb.jobs.health import evidence

    chosen = _keeping(settings, outcome.instance) if outcome.what == _CLONE and outcome.instance else None
    if chosen is not None:
        with evidence.recorded(chosen, _CLONE, ("zsnapdb", *sys.argv[1:]), f"{outcome.name}: {outcome.reason}"):
            pass


def evidence_of_pool(instance: Instance, changed: str) -> None:
    """Write a record of what filling the pool of the instance changed ("": nothing, of which there is none)."""
    from zsnapdb.jobs.health import evidence

    if changed and instance.repository.evidence:
        with evidence.recorded(instance, _CLONE, ("zsnapdb", *sys.argv[1:]), changed):
            pass


@contextlib.contextmanager
def evidence_of(instance: Instance, job: str, about: str = "") -> Iterator[None]:
    """Run the block, a job of the instance, and write how it ended into the evidence log, if there is one.

    `about` names what the job is about, such as a clone.
    """
    from zsnapdb.jobs.health import evidence

    typed = ("zsnapdb", *sys.argv[1:])
    if not instance.repository.evidence:
        evidence.note_end(instance, typed)
        yield
        return
    with evidence.recorded(instance, job, typed, about):
        yield


def _keeping(settings: Settings, name: str) -> Instance | None:
    """Return the instance if it is configured and its repository keeps an evidence log."""
    from zsnapdb.cli.progress import Terminal
    from zsnapdb.jobs.base.instance import Instance

    with contextlib.suppress(ZsnapdbError):
        chosen = Instance.of(settings, name, Terminal())
        return chosen if chosen.repository.evidence else None
    return None


@contextlib.contextmanager
def evidencing_keys(job: str, settings: Settings, repository: str | None = None) -> Iterator[list[PolicyChange]]:
    """Run the block, which adds the keys that it changed to the list: they are written into evidence logs.

    These are the logs of all instances whose repository keeps one; with `repository`, only of those of this one.
    """
    from zsnapdb.cli.progress import Terminal
    from zsnapdb.jobs.base.instance import Instance
    from zsnapdb.jobs.health.evidence import recorded_keys

    known = [Instance.of(settings, name, Terminal()) for name in sorted(settings.instance)]
    chosen = [
        one
        for one in known
        if one.repository.evidence and (repository is None or one.settings.repository == repository)
    ]
    with recorded_keys(chosen, job, ("zsnapdb", *sys.argv[1:])) as changes:
        yield changes
