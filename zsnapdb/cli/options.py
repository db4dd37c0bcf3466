"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

InstanceName = Annotated[
    str | None,
    typer.Argument(
        metavar="INSTANCE", help="A configured instance. Optional if only one is configured.", show_default=False
    ),
]
NamedInstance = Annotated[str, typer.Argument(metavar="INSTANCE", help="A configured instance.", show_default=False)]
ConfigFile = Annotated[
    Path | None,
    typer.Option(
        "--config",
        metavar="FILE",
        help="The configuration file.",
        envvar="ZSNAPDB_CONFIG",
        show_default="/etc/zsnapdb/zsnapdb.toml",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of text.")]
PlanOnly = Annotated[bool, typer.Option("--plan", help="Print what the command would do and why; change nothing.")]
RepositoryName = Annotated[
    str | None,
    typer.Option(
        "--repository",
        metavar="NAME",
        help="A configured repository to use instead of the instance's own.",
        show_default=False,
    ),
]
