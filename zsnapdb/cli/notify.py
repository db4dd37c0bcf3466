"""`zsnapdb notify`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from zsnapdb.cli.groups import CommandGroup
from zsnapdb.cli.options import AsJson, ConfigFile
from zsnapdb.cli.output import show, show_errors

app = typer.Typer(name="notify", cls=CommandGroup, help="Notifications to people and services.", rich_markup_mode=None)


@app.callback()
def notify() -> None:
    """Notifications to people and services. The configuration names them in [notifications.to.NAME]."""


@app.command("test")
def notify_test(
    target: Annotated[
        str | None, typer.Argument(metavar="TARGET", help="A configured target.", show_default="all of them")
    ] = None,
    config: ConfigFile = None,
    json: AsJson = False,
) -> None:
    """Send a test message to each target. A ping gets it at its address with /log, which changes no state there.

    Exit codes: 0 every message arrived, 9 one did not.
    """
    from zsnapdb.base.errors import ConfigError
    from zsnapdb.cli.notifying import tell
    from zsnapdb.config.settings import load
    from zsnapdb.notify.commands import send_test

    settings = load(config)
    known = settings.notifications.to
    names = [target] if target is not None else sorted(known)
    if not names or any(name not in known for name in names):
        what = f"no target {target} is configured" if target is not None else "no target is configured"
        raise ConfigError(what, hint=f"configured targets: {', '.join(sorted(known)) or 'none'}")
    failed = send_test(settings, names, tell)
    _show(names, failed, "the test message did not reach", json=json)


def _show(targets: Sequence[str], failed: Sequence[str], what: str, *, json: bool) -> None:
    """Show whom the message reached. typer.Exit with 9 if it did not reach somebody."""
    from zsnapdb.base.errors import CommandError
    from zsnapdb.report.agent import NotifiedView

    show(NotifiedView(targets, failed), json)
    if failed:
        error = CommandError(f"{what} {', '.join(failed)}", hint="the reasons stand above; check the addresses")
        show_errors([error])
        raise typer.Exit(error.exit_code)


@app.command("failed")
def notify_failed(
    unit: Annotated[
        str, typer.Argument(metavar="UNIT", help="Its name without .service, such as zsnapdb-backup@main.")
    ],
    config: ConfigFile = None,
    json: AsJson = False,
) -> None:
    """Notify that a unit of systemd failed. The shipped units call it, by OnFailure= or ExecStopPost=.

    It tells also of a job that could not do so itself: it was killed, or did not start. How the unit ended stands in
    variables of systemd. A unit that ended well, or found another run at work (exit code 75), notifies nobody.

    Exit codes: 0 every target was reached, 9 one was not.
    """
    import os

    from zsnapdb.cli.notifying import tell
    from zsnapdb.config.settings import load
    from zsnapdb.notify.commands import send_failed_unit

    settings = load(config)
    if not settings.notifications.to:
        tell("no target of notifications is configured")
    failed = send_failed_unit(settings, unit, os.environ, tell)
    # Whom it concerns is decided where it is sent. Known are those who were to hear of it, and did not.
    _show(failed, failed, f"the failure of {unit} was not told to", json=json)
