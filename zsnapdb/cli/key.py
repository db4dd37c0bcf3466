"""`zsnapdb key …`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from zsnapdb.cli.groups import CommandGroup
from zsnapdb.cli.options import AsJson, ConfigFile, PlanOnly
from zsnapdb.cli.output import show

app = typer.Typer(
    cls=CommandGroup, help="Make and show the keys of repositories.", no_args_is_help=True, rich_markup_mode=None
)

IdentityFile = Annotated[
    Path | None,
    typer.Option(
        "--identity", metavar="FILE", help="File of an age identity, which decrypts backups.", show_default=False
    ),
]
SigningKeyFile = Annotated[
    Path | None,
    typer.Option(
        "--signing-key", metavar="FILE", help="File of a signing key, which signs manifests.", show_default=False
    ),
]


@app.command("generate")
def generate(
    identity: IdentityFile = None, signing_key: SigningKeyFile = None, plan: PlanOnly = False, json: AsJson = False
) -> None:
    """Generate an age identity, a signing key, or both.

    The keys are written to new files of mode 0600. Their public parts are printed.
    """
    from zsnapdb.jobs.repository import keys as job
    from zsnapdb.report.repository import keys as report

    if identity is None and signing_key is None:
        raise typer.BadParameter("name at least one file: --identity FILE, --signing-key FILE")
    if plan:
        job.refuse_existing(identity, signing_key)
        show(report.KeysPlanView(identity, signing_key), json)
        return
    show(report.KeysView([job.generate(identity, signing_key)]), json)


@app.command("show")
def show_keys(
    identity: IdentityFile = None, signing_key: SigningKeyFile = None, config: ConfigFile = None, json: AsJson = False
) -> None:
    """Print the public parts of keys.

    The keys are those in the given files, or else those that the configuration names.
    """
    from zsnapdb.jobs.repository import keys as job
    from zsnapdb.report.repository import keys as report

    if identity is None and signing_key is None:
        from zsnapdb.config import load

        files = job.configured(load(config))
    else:
        files = [job.public_parts(identity, signing_key)]
    show(report.KeysView(files), json)
