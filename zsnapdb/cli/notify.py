"""`zsnapdb notify`."""

from __future__ import annotations

from typing import Annotated

import typer

from zsnapdb.cli.groups import CommandGroup
from zsnapdb.cli.options import ConfigFile

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
) -> None:
    """Send a test message to each target. A ping gets it at its address with /log, which changes no state there.

    Exit codes: 0 every message arrived, 9 one did not.
    """
    from zsnapdb.base.errors import CommandError, ConfigError
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
    for name in names:
        print(f"{name:<16}{'FAILED' if name in failed else 'arrived'}")
    if failed:
        raise CommandError(
            f"the test message did not reach {', '.join(failed)}", hint="the reasons stand above; check the addresses"
        )


@app.command("failed")
def notify_failed(
    unit: Annotated[
        str, typer.Argument(metavar="UNIT", help="Its name without .service, such as zsnapdb-backup@main.")
    ],
    config: ConfigFile = None,
) -> None:
    """Notify that a unit of systemd failed. The shipped units call it, by OnFailure= or ExecStopPost=.

    It tells also of a job that could not do so itself: it was killed, or did not start. How the unit ended stands in
    variables of systemd. A unit that ended well, or found another run at work (exit code 75), notifies nobody.

    Exit codes: 0 every target was reached, 9 one was not.
    """
    import os

    from zsnapdb.base.errors import CommandError
    from zsnapdb.cli.notifying import tell
    from zsnapdb.config.settings import load
    from zsnapdb.notify.commands import send_failed_unit

    settings = load(config)
    if not settings.notifications.to:
        tell("no target of notifications is configured")
    if failed := send_failed_unit(settings, unit, os.environ, tell):
        raise CommandError(
            f"{', '.join(failed)} did not hear of it", hint="the reasons stand above; check the addresses"
        )
