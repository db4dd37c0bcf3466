"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

InstanceName = Annotated[
    str | None,
    typer.Argument(
        metavar="[INSTANCE]", help="A configured instance; may be left out if there is only one.", show_default=False
    ),
]
NamedInstance = Annotated[str, typer.Argument(metavar="INSTANCE", help="A configured instance.", show_default=False)]
ConfigFile = Annotated[
    Path | None,
    typer.Option(
        "--config", help="Configuration file.", envvar="ZSNAPDB_CONFIG", show_default="/etc/zsnapdb/zsnapdb.toml"
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of text.")]
PlanOnly = Annotated[bool, typer.Option("--plan", help="Print what would be done and why; change nothing.")]
RepositoryName = Annotated[
    str | None,
    typer.Option("--repository", help="Another configured repository than the instance's own.", show_default=False),
]
