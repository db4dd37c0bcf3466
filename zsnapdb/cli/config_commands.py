"""`zsnapdb config check`, `grants`, `example` and `notify`."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import Annotated

import typer

from zsnapdb.cli import completion, log_writer
from zsnapdb.cli.command_context import configuration
from zsnapdb.cli.options import AsJson, ConfigFile, InstanceName, argument
from zsnapdb.cli.output import show, show_errors


def check(config: ConfigFile = None, json: AsJson = False) -> None:
    """Check every key, unit, name and schedule of the configuration file.

    The command also checks that the objectives and pools are possible. `zsnapdb doctor` also checks servers and
    volumes.
    """
    from zsnapdb.agent.daemon import check_schedules
    from zsnapdb.jobs.base.host import THIS_HOST
    from zsnapdb.jobs.base.instance import Instance
    from zsnapdb.jobs.clone import pool_filling
    from zsnapdb.jobs.doctor.rule_facts import silences
    from zsnapdb.report.setup import ConfigurationView

    settings = configuration(config)
    for name in settings.instance:
        pool_filling.refuse_pool(settings, Instance.of(settings, name))
        silences(settings, name)
    check_schedules(settings, THIS_HOST.now())
    show(ConfigurationView(settings), json)


def show_settings(
    key: Annotated[
        str | None,
        argument("KEY", "A setting or table, such as instance.main.lock, or a part of it.", show_default="all"),
    ] = None,
    config: ConfigFile = None,
    json: AsJson = False,
) -> None:
    """Show the settings in effect, and the origin of each: a line of the file, the environment, or the default.

    Secrets and the arguments of commands are not shown.
    """
    import difflib
    import os

    from zsnapdb.base.errors import UsageError
    from zsnapdb.config import effective as job
    from zsnapdb.config.effective import key_lines
    from zsnapdb.config.settings import parse, path_of, text_of
    from zsnapdb.report.setup import EffectiveConfigurationView

    file = path_of(config)
    text = text_of(file)
    every = (*job.effective(parse(text, str(file)), key_lines(text)), *job.environment(os.environ))
    chosen = every if key is None else job.matching(every, key)
    if not chosen:
        near = difflib.get_close_matches(key or "", [one.key for one in every], n=3)
        hint = f"did you mean {' or '.join(near)}?" if near else "`zsnapdb config show` lists all settings"
        raise UsageError(f"{key!r} is not a setting", hint=hint)
    named = "environment" if str(file) == os.environ.get("ZSNAPDB_CONFIG") else "option"
    show(EffectiveConfigurationView(file, named if config is not None else "default", chosen), json)


class FlavourOption(Enum):
    """The flavour of a server."""

    MYSQL = "mysql"
    MARIADB = "mariadb"


def example(
    name: Annotated[
        str | None,
        argument("NAME", "Example to print. Default: list all examples.", autocompletion=completion.examples),
    ] = None,
    json: AsJson = False,
) -> None:
    """Print an example file, such as a configuration, a unit, a policy or a hook. Needs no configuration."""
    from zsnapdb.jobs.setup import examples as job
    from zsnapdb.report import setup as report

    show(report.ExampleView(job.find(name)) if name is not None else report.ExamplesView(job.examples()), json)


def grants(
    instance: InstanceName = None,
    flavour: Annotated[
        FlavourOption | None,
        typer.Option("--flavour", help="Flavour of the server.", show_default="what the running server says"),
    ] = None,
    config: ConfigFile = None,
    json: AsJson = False,
) -> None:
    """Print the statements that create the account of zsnapdb on a server, with its grants.

    With --flavour alone, no configuration is needed.
    """
    from zsnapdb.base.domain_types import Flavour
    from zsnapdb.jobs.base.instance import Instance
    from zsnapdb.jobs.setup import examples as job
    from zsnapdb.report import setup as report

    if flavour is not None and instance is None:
        chosen, user = Flavour(flavour.value), job.DEFAULT_USER
    else:
        server = Instance.of(configuration(config), instance)
        chosen, user = Flavour(flavour.value) if flavour else job.flavour_of(server), server.settings.user
    show(report.GrantsView(chosen, job.grants(chosen, user)), json)


def notify_test(
    target: Annotated[
        str | None,
        argument("TARGET", "Configured target.", show_default="all of them", autocompletion=completion.targets),
    ] = None,
    config: ConfigFile = None,
    json: AsJson = False,
) -> None:
    """Send a test message to each target.

    A ping is sent to its address followed by /log, so it does not change the state of the monitored check.

    Exit codes: 0 every message arrived, 9 a message did not arrive.
    """
    from zsnapdb.base.errors import ConfigError
    from zsnapdb.notify.occasions import send_test

    settings = configuration(config)
    known = settings.notifications.to
    names = [target] if target is not None else sorted(known)
    if not names or any(name not in known for name in names):
        what = f"no target {target} is configured" if target is not None else "no target is configured"
        add = 'add one, such as [notifications.to.dba] with email = ["dba@example.net"]: `zsnapdb example zsnapdb.toml`'
        raise ConfigError(what, hint=f"configured targets: {', '.join(sorted(known))}" if known else add)
    failed = send_test(settings, names, log_writer.warn)
    _show(names, failed, "the test message did not reach", json=json)


def _show(targets: Sequence[str], failed: Sequence[str], what: str, *, json: bool) -> None:
    """Show the targets that received the message.

    Raises: typer.Exit with code 9 if a target did not get the message.
    """
    from zsnapdb.base.errors import CommandError
    from zsnapdb.report.agent import NotifiedView

    show(NotifiedView(targets, failed), json)
    if failed:
        error = CommandError(f"{what} {', '.join(failed)}", hint="the reasons are shown above; check the addresses")
        show_errors([error])
        raise typer.Exit(error.exit_code)


def notify_failed(
    unit: Annotated[str, argument("UNIT", "Name of the unit without .service, such as zsnapdb-backup@main.")],
    config: ConfigFile = None,
    json: AsJson = False,
) -> None:
    """Notify that a systemd unit failed. The shipped units call this command by OnFailure= or ExecStopPost=.

    The message covers jobs that were killed or did not start, and so could not report their own failure. systemd passes
    the unit's result in environment variables. No message is sent if the unit succeeded or another run was in progress
    (exit code 75).

    Exit codes: 0 every target was reached, 9 a target was not reached.
    """
    import os

    from zsnapdb.notify.occasions import send_failed_unit

    settings = configuration(config)
    if not settings.notifications.to:
        log_writer.warn("no notification target is configured")
    failed = send_failed_unit(settings, unit, os.environ, log_writer.warn)
    # The sender selects the targets by their rules. This command knows only which targets were not reached.
    _show(failed, failed, f"the failure of {unit} was not told to", json=json)
