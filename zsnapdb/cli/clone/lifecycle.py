"""Commands that show, change or destroy existing clones, `clone list`, and `clone addresses`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from zsnapdb.base import run_context
from zsnapdb.cli import completion, options
from zsnapdb.cli.command_context import host_context
from zsnapdb.cli.idempotency import CommandAnswer, Repeatable, show_once
from zsnapdb.cli.notified_commands import evidence_of_clone
from zsnapdb.cli.options import argument, flag, option
from zsnapdb.cli.output import show, show_at_once

if TYPE_CHECKING:
    from zsnapdb.jobs.clone.clone_info import CloneInfo


def list_clones(config: options.ConfigFile = None, json: options.AsJson = False) -> None:
    """List the clones, oldest first."""
    from zsnapdb.jobs.base.host import THIS_HOST
    from zsnapdb.jobs.clone import catalogue, isolated_start
    from zsnapdb.report.clone import list as report

    known, reader = catalogue.known_clones(*host_context(config)), run_context.current_audience()
    seen = tuple(isolated_start.with_servers_elsewhere([info for info in known.copies if reader.sees(info.owner)]))
    show(report.ClonesView(seen, THIS_HOST.now(), known.unreadable if reader.sees_all else ()), json)


def show_clone(name: options.CloneName, config: options.ConfigFile = None, json: options.AsJson = False) -> None:
    """Show one clone and its commits."""
    from zsnapdb.jobs.base.host import THIS_HOST
    from zsnapdb.jobs.clone import catalogue, expected_clone, isolated_start, sources
    from zsnapdb.report.clone import list as report

    (info,) = isolated_start.with_servers_elsewhere([catalogue.find(*host_context(config), name)])
    expected_clone.require(info, name)
    show(report.CloneDetailView(info, sources.commits(info.top), THIS_HOST.now()), json)


def connect(
    context: typer.Context,
    name: options.CloneName,
    dsn: Annotated[bool, flag("--dsn", "Print a URL with the password and start no client.")] = False,
    env: Annotated[
        bool, flag("--env", "Print exports with the password for mysql and mariadb. ~/.my.cnf overrides them.")
    ] = False,
    config: options.ConfigFile = None,
    json: options.AsJson = False,
) -> None:
    """Connect to a clone with the server's own client. The arguments after NAME are passed to the client."""
    from zsnapdb.jobs.clone import lifecycle
    from zsnapdb.report.clone import list as report

    settings, host = host_context(config)
    with evidence_of_clone(settings, name):
        login = lifecycle.login(settings, host, name)
    if dsn or env or json:
        show(report.LoginView(name, login, report.LoginForm.ENVIRONMENT if env else report.LoginForm.URL), json)
        return
    lifecycle.open_client(settings, host, name, login, context.args)


def login(
    name: options.CloneName,
    new: Annotated[bool, flag("--new", "First make a new password, and end the sessions of the former one.")] = False,
    dsn: Annotated[bool, flag("--dsn", "Print a URL with the password.")] = False,
    env: Annotated[bool, flag("--env", "Print shell exports with the password.")] = False,
    config: options.ConfigFile = None,
    json: options.AsJson = False,
) -> None:
    """Show the login of a clone, or make a new password for it."""
    from zsnapdb.cli.progress import Terminal
    from zsnapdb.jobs.clone import logins
    from zsnapdb.report.clone import list as report

    settings, host = host_context(config)
    shown = logins.new_login(settings, host, name, Terminal()) if new else logins.known_login(settings, host, name)
    form = report.LoginForm.ENVIRONMENT if env else report.LoginForm.URL if dsn else report.LoginForm.LINES
    show(report.LoginView(name, shown, form), json)


def logs(
    name: options.CloneName,
    lines: Annotated[int, option("--lines", "N", "Number of lines, in at most 64 KiB.", min=1, max=1000)] = 100,
    config: options.ConfigFile = None,
    json: options.AsJson = False,
) -> None:
    """Show the last lines of a clone's error log."""
    from zsnapdb.jobs.clone import lifecycle
    from zsnapdb.report.clone.list import ServerLogView

    show(ServerLogView(lifecycle.tail(*host_context(config), name, lines)), json)


def addresses(
    follow: Annotated[bool, flag("--follow", "First update the ports of HAProxy.")] = False,
    haproxy: Annotated[
        Path | None, option("--haproxy", "FILE", "First write the configuration of HAProxy to this file.")
    ] = None,
    config: options.ConfigFile = None,
    json: options.AsJson = False,
) -> None:
    """List the ports that are reserved for clones, and the targets of these ports in HAProxy."""
    from zsnapdb.jobs.clone import kept_ports as job
    from zsnapdb.report.clone.list import AddressesView

    settings, host = host_context(config)
    if haproxy is not None:
        job.write_configuration(settings, host, haproxy)
    if follow:
        job.follow(settings, host)
    show(AddressesView(job.look(settings, host)), json)


def start(
    name: options.CloneName,
    binary: options.ServerBinary = None,
    config: options.ConfigFile = None,
    plan: options.PlanOnly = False,
    json: options.AsJson = False,
) -> None:
    """Start the server of a stopped clone and check the clone."""
    from zsnapdb.cli.progress import Terminal
    from zsnapdb.jobs.clone import catalogue, lifecycle
    from zsnapdb.report.clone import change as report

    settings, host = host_context(config)
    settings = catalogue.with_binary(settings, host, name, binary)
    verb = lifecycle.start(settings, host, name, Terminal())
    show(report.IntentionView(verb.plan(), "start") if plan else report.ChangedView(verb.run(), "started"), json)


def stop(
    name: options.CloneName,
    config: options.ConfigFile = None,
    plan: options.PlanOnly = False,
    json: options.AsJson = False,
) -> None:
    """Shut down the server of a clone cleanly. The data is kept."""
    from zsnapdb.jobs.clone import lifecycle
    from zsnapdb.report.clone import change as report

    verb = lifecycle.stop(*host_context(config), name)
    show(report.IntentionView(verb.plan(), "stop") if plan else report.ChangedView(verb.run(), "stopped"), json)


_GREATEST_PID = 1 << 22
"""Maximum possible value of pid_max (proc(5))."""


def extend(
    name: options.CloneName,
    ttl: options.LeaseFromNow = None,
    quota: Annotated[
        str | None,
        option("--quota", "SIZE", "Quota of the clone, for example 40GiB. The lease changes only with --ttl."),
    ] = None,
    config: options.ConfigFile = None,
    plan: options.PlanOnly = False,
    json: options.AsJson = False,
) -> None:
    """Extend the lease of a clone, or its quota. A lease is never shortened."""
    from zsnapdb.base.quantities import parse_duration, parse_size
    from zsnapdb.jobs.clone import lifecycle
    from zsnapdb.report.clone import change as report

    seconds = parse_duration(ttl) if ttl is not None else None
    verb = lifecycle.extend(*host_context(config), name, seconds, parse_size(quota) if quota is not None else None)
    show(report.IntentionView(verb.plan(), "extend") if plan else report.ChangedView(verb.run(), "extended"), json)


def protect(
    name: options.CloneName,
    time: options.ProtectionFromNow,
    config: options.ConfigFile = None,
    plan: options.PlanOnly = False,
    json: options.AsJson = False,
) -> None:
    """Protect a clone from `zsnapdb reap` for some time."""
    from zsnapdb.base.quantities import parse_duration
    from zsnapdb.jobs.clone import lifecycle
    from zsnapdb.report.clone import change as report

    verb = lifecycle.protect(*host_context(config), name, parse_duration(time))
    show(report.IntentionView(verb.plan(), "protect") if plan else report.ChangedView(verb.run(), "protected"), json)


def rename(
    name: options.CloneName,
    new: Annotated[str, argument("NEW", "New name of the clone.")],
    config: options.ConfigFile = None,
    json: options.AsJson = False,
) -> None:
    """Rename a clone. Its id, address, login and lease stay the same."""
    from zsnapdb.jobs.clone import lifecycle
    from zsnapdb.report.clone import change as report

    show(report.ChangedView(lifecycle.rename(*host_context(config), name, new), "renamed"), json)


def send_heartbeat(
    name: options.CloneName,
    process: Annotated[
        int | None,
        option("--while", "PID", "Repeat it until this process of this host ends.", min=1, max=_GREATEST_PID),
    ] = None,
    config: options.ConfigFile = None,
    json: options.AsJson = False,
) -> None:
    """Send a heartbeat for a clone.

    `reap` destroys a clone that was created with --heartbeat once its heartbeats stop.
    """
    from zsnapdb.jobs.clone import lifecycle
    from zsnapdb.report.clone import change as report

    settings, host = host_context(config)
    info = (
        lifecycle.beat(settings, host, name)
        if process is None
        else lifecycle.heartbeat_while(settings, host, name, process)
    )
    show(report.ChangedView(info, "in use"), json)


def keep(name: options.CloneName, config: options.ConfigFile = None, json: options.AsJson = False) -> None:
    """Keep a program's clone alive with heartbeats until stdin ends. Each line `reset` on stdin resets the clone.

    The command answers each reset with one line, which is the document of the reset or of an error.
    """
    from zsnapdb.base.errors import ZsnapdbError
    from zsnapdb.cli.notified_commands import evidence_of_clone
    from zsnapdb.cli.progress import Terminal
    from zsnapdb.jobs.clone import lifecycle as job
    from zsnapdb.jobs.clone import reset as resetting
    from zsnapdb.report import view
    from zsnapdb.report.clone import change as report

    def reset(meant: CloneInfo) -> None:
        try:
            # Each reset uses the current configuration, for example its masking rules.
            settings, host = host_context(config)
            with evidence_of_clone(settings, meant.id):
                done = resetting.reset(settings, host, meant.id, None, Terminal(), meant=meant)
        except ZsnapdbError as error:
            print(view.error_json(error) if json else error, flush=True)
            return
        show_at_once(report.ResetView(done), json)

    show(report.ChangedView(job.hold(*host_context(config), name, sys.stdin.fileno(), reset), "held no more"), json)


def commit(
    name: options.CloneName,
    message: Annotated[
        str, typer.Option("--message", "-m", help="Description of the data, shown with the commit.")
    ] = "",
    once: options.Once = None,
    config: options.ConfigFile = None,
    plan: options.PlanOnly = False,
    json: options.AsJson = False,
) -> None:
    """Snapshot a clone in its current state. The commit can be cloned like a backup."""
    from zsnapdb.jobs.clone import commits
    from zsnapdb.report.clone import change as report

    settings, host = host_context(config)
    verb = commits.commit(settings, host, name, message)
    if plan:
        show(report.IntentionView(verb.plan(), "commit"), json)
        return

    def make() -> CommandAnswer:
        return CommandAnswer(report.CommittedView(verb.run()))

    def made() -> CommandAnswer | None:
        from zsnapdb.jobs.clone import run_results as of_run

        known = of_run.committed(settings, host, name)
        return CommandAnswer(report.CommittedView(known)) if known is not None else None

    about = ", ".join(filter(None, (name, commits.message_text(message))))
    command = Repeatable("clone commit", about, aim=lambda: options.clone_guids(settings, host, name), made=made)
    show_once(host, once, command, make, json)


def detach(
    name: options.CloneName,
    config: options.ConfigFile = None,
    plan: options.PlanOnly = False,
    json: options.AsJson = False,
) -> None:
    """Make a clone an independent copy.

    The clone then needs no snapshot of its source. --plan shows the cost.
    """
    from zsnapdb.cli.progress import Terminal
    from zsnapdb.jobs.clone import detach as job
    from zsnapdb.report.clone import change as report

    verb = job.detach(*host_context(config), name, Terminal())
    show(report.DetachPlanView(verb.plan()) if plan else report.DetachedView(verb.run()), json)


def destroy(
    name: options.CloneName,
    with_foreign_snapshots: options.WithForeignSnapshots = False,
    once: options.Once = None,
    config: options.ConfigFile = None,
    plan: options.PlanOnly = False,
    json: options.AsJson = False,
) -> None:
    """Stop the server of a clone or clone set, and destroy its datasets and commits.

    If another clone was created from a commit, the commit becomes a commit of that clone. It is not an error if the
    clone does not exist. With --once a newer clone of the same name is kept.
    """
    from zsnapdb.jobs.clone import destroy as job
    from zsnapdb.jobs.dataset_copies.sweep import ExtraRemoval
    from zsnapdb.report.clone import change as report

    settings, host = host_context(config)
    also = [ExtraRemoval.FOREIGN_SNAPSHOTS] if with_foreign_snapshots else []
    if plan:
        show(report.DestroyPlanView(job.plan(settings, host, name, also), name), json)
        return

    def make() -> CommandAnswer:
        return CommandAnswer(report.DestroyedView(job.destroy(settings, host, name, also), name))

    command = Repeatable(
        "clone destroy",
        name,
        aim=lambda: options.clone_guids(settings, host, name),
        gone=lambda: CommandAnswer(report.DestroyedView((), name)),
    )
    show_once(host, once, command, make, json)


def reset(
    name: options.CloneName,
    source: Annotated[
        str | None,
        option(
            "--from",
            "SOURCE",
            options.SOURCE_HELP,
            autocompletion=completion.sources,
            show_default="what the clone was created from",
        ),
    ] = None,
    replaces: Annotated[bool, flag("--replace", "Replace the data even if its changes could be undone.")] = False,
    accepts_older: options.AcceptOlder = False,
    once: options.Once = None,
    binary: options.ServerBinary = None,
    config: options.ConfigFile = None,
    plan: options.PlanOnly = False,
    json: options.AsJson = False,
) -> None:
    """Reset a clone to its original data, or to other data. Port, credentials and lease stay the same.

    If it is certain that only a few rows changed, the reset undoes these changes. Otherwise the reset replaces the
    data.
    """
    from zsnapdb.cli.progress import Terminal
    from zsnapdb.jobs.clone import catalogue
    from zsnapdb.jobs.clone import reset as job
    from zsnapdb.report.clone import change as report

    settings, host = host_context(config)
    settings = catalogue.with_binary(settings, host, name, binary)
    if plan:
        planned = job.reset_plan(settings, host, name, source, accepts_older=accepts_older, replaces=replaces)
        show(report.ResetPlanView(planned), json)
        return
    terminal = Terminal()

    def make() -> CommandAnswer:
        done = job.reset(settings, host, name, source, terminal, accepts_older=accepts_older, replaces=replaces)
        return CommandAnswer(report.ResetView(done))

    def made() -> CommandAnswer | None:
        known = job.done_by_run(settings, host, name)
        return CommandAnswer(report.ResetView(known)) if known is not None else None

    about = f"{name} to {source}" if source is not None else name
    command = Repeatable(
        "clone reset", about, aim=lambda: options.clone_guids(settings, host, name), made=made, tell=terminal.tell
    )
    show_once(host, once, command, make, json)
