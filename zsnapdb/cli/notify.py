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
    from zsnapdb.cli.notifying import tell
    from zsnapdb.config import load
    from zsnapdb.errors import CommandError, ConfigError
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
