"""Commands that leave evidence of what they did, if the repository keeps an evidence log."""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

from zsnapdb.base.errors import ZsnapdbError

if TYPE_CHECKING:
    from zsnapdb.config.settings import Settings
    from zsnapdb.jobs.health.evidence import PolicyChange

Command = TypeVar("Command", bound=Callable[..., None])


def evidencing(job: str, command: Command, only_with: str | None = None) -> Command:
    """Return the command, which now also writes into the evidence log how it ended. Showing a plan is no deed.

    `only_with` is the parameter without which the command changes nothing (None: it always does).
    """

    @functools.wraps(command)
    def run(*words: Any, **options: Any) -> None:
        from zsnapdb.cli.progress import Terminal
        from zsnapdb.config.settings import load
        from zsnapdb.jobs.base.instance import Instance

        if options.get("plan") or (only_with is not None and not options.get(only_with)):
            command(*words, **options)
            return
        try:
            name = options.get("repository")
            chosen = Instance.at(load(options.get("config")), options.get("instance"), name, Terminal())
        except ZsnapdbError:
            # The command says what is wrong.
            command(*words, **options)
            return
        from zsnapdb.jobs.health import evidence

        typed = ("zsnapdb", *sys.argv[1:])
        if not chosen.repository.evidence:
            evidence.note_end(chosen, typed)
            command(*words, **options)
            return
        with evidence.recorded(chosen, job, typed):
            command(*words, **options)

    return run  # type: ignore[return-value]


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
