"""Options that several commands of virtual machines share."""

from __future__ import annotations

from typing import Annotated

import typer

MachineName = Annotated[
    str, typer.Argument(metavar="NAME", help="The name of the virtual machine.", show_default=False)
]
BaseName = Annotated[str, typer.Argument(metavar="BASE", help="The name of the base.", show_default=False)]
CloneSourceName = Annotated[
    str,
    typer.Argument(
        metavar="SOURCE",
        help="A base; or an instance that is a virtual machine, as INSTANCE[@BACKUP]: its newest backup, or that one.",
        show_default=False,
    ),
]
WaitFor = Annotated[
    str,
    typer.Option(
        "--wait-for",
        metavar="WHAT",
        help="When a started machine is ready: started, agent (the agent inside answers), serial:TEXT (its serial"
        " line prints TEXT), or server:PORT (a MySQL or MariaDB server greets on this TCP port).",
    ),
]
