"""`zsnapdb completion`, and the names that a shell offers for completion."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from enum import Enum
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from zsnapdb.config.settings import Settings

_VARIABLE = "_ZSNAPDB_COMPLETE"
"""Variable that the shell's script sets when it requests completions."""


class Shell(Enum):
    """A shell with a completion script."""

    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


def completion(shell: Annotated[Shell, typer.Argument(metavar="SHELL", help="bash, zsh or fish.")]) -> None:
    """Print the shell script for the completion of commands, options and names.

    For bash: zsnapdb completion bash > /etc/bash_completion.d/zsnapdb
    """
    from typer.completion import get_completion_script  # type: ignore[attr-defined]

    values = {"prog_name": "zsnapdb", "complete_var": _VARIABLE, "shell": shell.value}
    print(get_completion_script(**values))


def answer_shells() -> None:
    """Make the command line answer completion requests from a shell."""
    if _VARIABLE in os.environ:
        from typer.completion import completion_init  # type: ignore[attr-defined]

        completion_init()


def _names(find: Callable[[], Iterable[str]], beginning: str) -> list[str]:
    """Return the names that start with `beginning`.

    If the search fails, return no names, because a shell shows no errors.
    """
    from zsnapdb.base.errors import ZsnapdbError

    try:
        return [name for name in find() if name.startswith(beginning)]
    except (ZsnapdbError, OSError):
        return []


def _settings() -> Settings:
    from zsnapdb.config.settings import load

    return load(None)


def instances(incomplete: str) -> list[str]:
    """Return the configured instances that start with `incomplete`."""
    return _names(lambda: _settings().instance, incomplete)


def repositories(incomplete: str) -> list[str]:
    """Return the configured repositories that start with `incomplete`."""
    return _names(lambda: _settings().repository, incomplete)


def targets(incomplete: str) -> list[str]:
    """Return the configured targets of notifications that start with `incomplete`."""
    return _names(lambda: _settings().notifications.to, incomplete)


def examples(incomplete: str) -> list[str]:
    """Return the names of examples that start with `incomplete`."""
    from zsnapdb.jobs.setup.examples import examples as known

    return _names(lambda: [one.name for one in known()], incomplete)


def clones(incomplete: str) -> list[str]:
    """Return the clones on this host that start with `incomplete`."""
    from zsnapdb.jobs.base.host import THIS_HOST
    from zsnapdb.jobs.clone.catalogue import listing

    return _names(lambda: [clone.label for clone in listing(_settings(), THIS_HOST)], incomplete)


def backups(incomplete: str) -> list[str]:
    """Return `latest` and the ids of snapshot sets on this host that have a stored backup and start with `incomplete`.

    No repository is read.
    """
    from zsnapdb.jobs.base.instance import Instance
    from zsnapdb.jobs.host.local_snapshot_sets import local_sets

    def find() -> list[str]:
        settings = _settings()
        sets = [one.backup_id for name in settings.instance for one in local_sets(Instance.of(settings, name))]
        return ["latest", *reversed(sets)]

    return _names(find, incomplete)


def sources(incomplete: str) -> list[str]:
    """Return the sources of a clone: backups and local sets on this host, commits, `latest` and `live`."""
    from zsnapdb.jobs.clone.catalogue import homes
    from zsnapdb.jobs.clone.sources import commits

    def find() -> list[str]:
        return [commit.set.backup_id for home in homes(_settings()) for commit in commits(home)]

    return [*_names(lambda: ["live"], incomplete), *backups(incomplete), *_names(find, incomplete)]


def documented(incomplete: str) -> list[str]:
    """Return the words in the names of commands that print JSON documents."""
    from zsnapdb.cli.commands import COMMANDS, Command

    documented = [words for words, one in COMMANDS.items() if isinstance(one, Command) and one.documents]
    return _names(lambda: sorted({word for words in documented for word in words.split()}), incomplete)


def tables(context: typer.Context, incomplete: str) -> list[str]:
    """Return tables of the running server; before the dot is typed, return schemas. Empty if the server is down."""
    from zsnapdb.jobs.base.instance import Instance
    from zsnapdb.jobs.setup.examples import table_names

    instance = context.params.get("instance")
    return _names(lambda: table_names(Instance.of(_settings(), instance), incomplete), incomplete)
