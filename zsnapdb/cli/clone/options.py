"""Options that several commands of clones share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from zsnapdb.cli import completion

if TYPE_CHECKING:
    from zsnapdb.config.settings import Settings
    from zsnapdb.jobs.base.host import Host

CloneName = Annotated[
    str,
    typer.Argument(metavar="NAME", help="The name of the clone.", show_default=False, autocompletion=completion.clones),
]


def clone_guids(settings: Settings, host: Host, name: str) -> tuple[str, ...]:
    """Return the GUIDs of the clones of that name. What finds them is loaded only if a command is to be repeated."""
    from zsnapdb.jobs.clone.once import guids

    return guids(settings, host, name)


SOURCE_HELP = (
    "What to clone: latest, live (a snapshot taken now), the id of a backup, a commit or a rewind, or @SNAPSHOT."
)
