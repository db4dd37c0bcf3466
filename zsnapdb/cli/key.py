"""`zsnapdb key …`."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from zsnapdb.base.errors import ConfigError
from zsnapdb.cli import log
from zsnapdb.cli.command_context import configuration
from zsnapdb.cli.notified_commands import evidencing_keys
from zsnapdb.cli.options import AsJson, ConfigFile, PlanOnly, option
from zsnapdb.cli.output import show
from zsnapdb.report.log_lines import LogLevel

if TYPE_CHECKING:
    from zsnapdb.jobs.health.evidence import PolicyChange


IdentityFile = Annotated[
    Path | None, option("--identity", "FILE", "File of an age identity, which decrypts backups.", show_default=False)
]
SigningKeyFile = Annotated[
    Path | None, option("--signing-key", "FILE", "File of a signing key, which signs manifests.", show_default=False)
]


def generate(
    identity: IdentityFile = None,
    signing_key: SigningKeyFile = None,
    config: ConfigFile = None,
    plan: PlanOnly = False,
    json: AsJson = False,
) -> None:
    """Generate an age identity, a signing key, or both.

    The keys are written to new files of mode 0600. Their public parts are printed. If there is a configuration, the
    evidence logs of its repositories record the new keys.
    """
    from zsnapdb.jobs.repository import keys as job
    from zsnapdb.report.repository import init as report

    if identity is None and signing_key is None:
        raise typer.BadParameter("name at least one file: --identity FILE, --signing-key FILE")
    if plan:
        job.refuse_existing(identity, signing_key)
        show(report.KeysPlanView(identity, signing_key), json)
        return
    with _evidence(config) as changes:
        made = job.generate(identity, signing_key)
        changes += made.changes
    show(report.KeysView([made]), json)


@contextlib.contextmanager
def _evidence(config: Path | None) -> Iterator[list[PolicyChange]]:
    """Run the block with the evidence logs of the configuration.

    Keys are often generated before a configuration exists.
    """
    try:
        settings = configuration(config)
    except ConfigError as error:
        if config is not None:
            log.write(LogLevel.WARNING, f"that these keys are made is in no evidence log: {error.message}")
        yield []
        return
    with evidencing_keys("key", settings) as changes:
        yield changes


def show_keys(
    identity: IdentityFile = None, signing_key: SigningKeyFile = None, config: ConfigFile = None, json: AsJson = False
) -> None:
    """Print the public parts of keys.

    The keys are those in the given files, otherwise those that the configuration names.
    """
    from zsnapdb.jobs.repository import keys as job
    from zsnapdb.report.repository import init as report

    if identity is None and signing_key is None:
        files = job.configured(configuration(config))
    else:
        files = [job.public_parts(identity, signing_key)]
    show(report.KeysView(files), json)
