"""Options that several commands of clones share."""

from __future__ import annotations

from typing import Annotated

import typer

from zsnapdb.cli import completion

CloneName = Annotated[
    str,
    typer.Argument(metavar="NAME", help="The name of the clone.", show_default=False, autocompletion=completion.clones),
]
SOURCE_HELP = (
    "What to clone: latest, live (a snapshot taken now), the id of a backup, a commit or a rewind, or @SNAPSHOT."
)
