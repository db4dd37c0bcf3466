"""`zsnapdb clone …` and `zsnapdb reap`."""

from __future__ import annotations

from enum import Enum
from typing import Annotated

import typer

from zsnapdb.cli.clone_set import create_set
from zsnapdb.cli.options import AsJson, ConfigFile, NamedInstance, PlanOnly

app = typer.Typer(help="Throwaway servers on copies of snapshots.", no_args_is_help=True, rich_markup_mode=None)

CloneName = Annotated[str, typer.Argument(metavar="NAME", help="The clone's name.", show_default=False)]
_FROM = "latest, live (a snapshot taken now), the id of a backup or commit, or @SNAPSHOT."


class ProfileOption(Enum):
    """How much of the host a clone takes."""

    TINY = "tiny"
    NORMAL = "normal"


class TopologyOption(Enum):
    """How the clones of a set belong together."""

    independent = "independent"
    replication = "replication"


def _owner() -> str:
    import getpass
    import os

    return os.environ.get("SUDO_USER") or getpass.getuser()


@app.command("create")
def create(
    instance: NamedInstance,
    name: Annotated[
        str | None, typer.Option("--name", help="The clone's name.", show_default="instance and a random word")
    ] = None,
    source: Annotated[str, typer.Option("--from", metavar="SOURCE", help=_FROM)] = "latest",
    at: Annotated[
        str | None,
        typer.Option("--at", metavar="POINT", help="A time or GTID between backups: replayed from archived binlogs."),
    ] = None,
    ttl: Annotated[
        str | None,
        typer.Option("--ttl", metavar="DURATION", help="How long it stays, such as 2h.", show_default="clones.ttl"),
    ] = None,
    owner: Annotated[str | None, typer.Option("--owner", help="Whose it is.", show_default="the caller")] = None,
    profile: Annotated[
        ProfileOption, typer.Option("--profile", help="How much of the host its server takes.")
    ] = ProfileOption.NORMAL,
    bind: Annotated[
        str | None,
        typer.Option("--bind", metavar="ADDRESS", help="Where it listens.", show_default="clones.bind_address"),
    ] = None,
    count: Annotated[
        int | None,
        typer.Option(
            "--count", metavar="N", help="A set of N clones of one moment, NAME-1 and on.", show_default=False
        ),
    ] = None,
    topology: Annotated[
        TopologyOption,
        typer.Option("--topology", help="Of a set: independent, or the first as the source of the others."),
    ] = TopologyOption.independent,
    mask: Annotated[
        bool, typer.Option("--mask", help="Mask it before anyone can reach it, where the policy would not ask for it.")
    ] = False,
    no_start: Annotated[
        bool, typer.Option("--no-start", help="Make the files only; `clone start` starts and checks the server.")
    ] = False,
    config: ConfigFile = None,
    plan: PlanOnly = False,
    json: AsJson = False,
) -> None:
    """Make a clone of a snapshot set and start its server, separate from its source."""
    from zsnapdb.cli.progress import ProgressLine
    from zsnapdb.config import load
    from zsnapdb.jobs.clone import create as job
    from zsnapdb.jobs.instance import Instance
    from zsnapdb.quantities import duration
    from zsnapdb.report.clone import clones as report

    if at is not None and source != "latest":
        raise typer.BadParameter("give --from or --at, not both")
    settings = load(config)
    found = Instance.of(settings, instance)
    wish = job.CloneRequest(
        owner=owner or _owner(),
        name=name,
        source=source,
        at=at,
        ttl=duration(ttl) if ttl is not None else None,
        profile=job.profile_of(profile.value),
        bind_address=bind,
        starts=not no_start,
        masks=mask,
    )
    if count is not None or topology is not TopologyOption.independent:
        create_set(settings, found, wish, count or 0, topology.value, plan=plan, json=json)
        return
    if plan:
        planned = job.plan(settings, found, wish)
        print(report.plan_json(planned) if json else report.plan(planned))
        return
    progress = ProgressLine()
    result = job.create(settings, found, wish, progress, progress.tell)
    progress.end()
    print(report.created_json(result) if json else report.created(result))


@app.command("prepare")
def prepare(
    instance: NamedInstance,
    source: Annotated[
        str, typer.Option("--from", metavar="SOURCE", help="latest, the id of a backup or commit, or @SNAPSHOT.")
    ] = "latest",
    config: ConfigFile = None,
    plan: PlanOnly = False,
    json: AsJson = False,
) -> None:
    """Recover a snapshot set once and shut it down cleanly: clones of it then start without recovery."""
    from zsnapdb.cli.progress import ProgressLine
    from zsnapdb.config import load
    from zsnapdb.jobs.clone import create as job
    from zsnapdb.jobs.clone import plans
    from zsnapdb.jobs.instance import Instance
    from zsnapdb.report.clone import clones as report

    if plan:
        planned = plans.prepare(load(config), Instance.of(load(config), instance), source)
        print(report.intention_json(planned, "prepare") if json else report.intention(planned))
        return
    settings = load(config)
    progress = ProgressLine()
    made = job.prepare(settings, Instance.of(settings, instance), source, progress, progress.tell)
    progress.end()
    print(report.prepared_json(made) if json else report.prepared(made))


@app.command("list")
def list_clones(config: ConfigFile = None, json: AsJson = False) -> None:
    """List the clones, oldest first."""
    from zsnapdb.config import load
    from zsnapdb.jobs.clone import catalogue
    from zsnapdb.report.clone import clones as report

    found = catalogue.listing(load(config))
    print(report.listing_json(found) if json else report.listing(found))


@app.command("show")
def show(name: CloneName, config: ConfigFile = None, json: AsJson = False) -> None:
    """Show one clone and its commits."""
    from zsnapdb.config import load
    from zsnapdb.jobs.clone import catalogue, sources
    from zsnapdb.report.clone import clones as report

    found = catalogue.find(load(config), name)
    made = sources.commits(found.top)
    print(report.detail_json(found, made) if json else report.detail(found, made))


@app.command("connect", context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def connect(
    context: typer.Context,
    name: CloneName,
    dsn: Annotated[bool, typer.Option("--dsn", help="Print a URL instead, with its password.")] = False,
    env: Annotated[bool, typer.Option("--env", help="Print shell exports instead, with its password.")] = False,
    config: ConfigFile = None,
    json: AsJson = False,
) -> None:
    """Open the server's own client on a clone; words after NAME go to the client."""
    from zsnapdb.config import load
    from zsnapdb.jobs.clone import client, lifecycle
    from zsnapdb.report.clone import clones as report

    settings = load(config)
    if dsn or env or json:
        login = lifecycle.login(settings, name)
        print(report.login_json(login) if json else report.environment(login) if env else login.dsn)
        return
    client.open_client(settings, name, context.args)


@app.command("start")
def start(name: CloneName, config: ConfigFile = None, plan: PlanOnly = False, json: AsJson = False) -> None:
    """Start a clone's server, after a stop or a reboot, and check it again."""
    from zsnapdb.config import load
    from zsnapdb.jobs.clone import lifecycle, plans
    from zsnapdb.report.clone import clones as report

    if plan:
        planned = plans.start(load(config), name)
        print(report.intention_json(planned, "start") if json else report.intention(planned))
        return
    found = lifecycle.start(load(config), name)
    print(report.changed_json(found, "started") if json else report.changed(found, "is started"))


@app.command("stop")
def stop(name: CloneName, config: ConfigFile = None, plan: PlanOnly = False, json: AsJson = False) -> None:
    """Shut a clone's server down cleanly; its data stays."""
    from zsnapdb.config import load
    from zsnapdb.jobs.clone import lifecycle, plans
    from zsnapdb.report.clone import clones as report

    if plan:
        planned = plans.stop(load(config), name)
        print(report.intention_json(planned, "stop") if json else report.intention(planned))
        return
    found = lifecycle.stop(load(config), name)
    print(report.changed_json(found, "stopped") if json else report.changed(found, "is stopped"))


@app.command("reset")
def reset(
    name: CloneName,
    source: Annotated[
        str | None, typer.Option("--from", metavar="SOURCE", help=_FROM, show_default="its original data")
    ] = None,
    config: ConfigFile = None,
    plan: PlanOnly = False,
    json: AsJson = False,
) -> None:
    """Give a clone its original data back, or new data; port, credentials and lease stay."""
    from zsnapdb.cli.progress import ProgressLine
    from zsnapdb.config import load
    from zsnapdb.jobs.clone import revision
    from zsnapdb.report.clone import clones as report

    settings = load(config)
    if plan:
        planned = revision.reset_plan(settings, name, source)
        print(report.reset_plan_json(planned) if json else report.reset_plan(planned))
        return
    progress = ProgressLine()
    found = revision.reset(settings, name, source, progress, progress.tell)
    progress.end()
    print(report.changed_json(found, "reset") if json else report.changed(found, "is reset"))


@app.command("extend")
def extend(
    name: CloneName,
    ttl: Annotated[
        str | None, typer.Option("--ttl", metavar="DURATION", help="From now, such as 2h.", show_default="clones.ttl")
    ] = None,
    config: ConfigFile = None,
    plan: PlanOnly = False,
    json: AsJson = False,
) -> None:
    """Let a clone stay longer; its lease is never made shorter."""
    from zsnapdb.config import load
    from zsnapdb.jobs.clone import lifecycle, plans
    from zsnapdb.quantities import duration
    from zsnapdb.report.clone import clones as report

    if plan:
        planned = plans.extend(load(config), name, duration(ttl) if ttl is not None else None)
        print(report.intention_json(planned, "extend") if json else report.intention(planned))
        return
    found = lifecycle.extend(load(config), name, duration(ttl) if ttl is not None else None)
    print(report.changed_json(found, "extended") if json else report.changed(found, "is extended"))


@app.command("protect")
def protect(
    name: CloneName,
    time: Annotated[
        str,
        typer.Option(
            "--for", metavar="DURATION", help="From now, such as 2d; 0s takes the protection away.", show_default=False
        ),
    ],
    config: ConfigFile = None,
    plan: PlanOnly = False,
    json: AsJson = False,
) -> None:
    """Keep the reaper off a clone for a while."""
    from zsnapdb.config import load
    from zsnapdb.jobs.clone import lifecycle, plans
    from zsnapdb.quantities import duration
    from zsnapdb.report.clone import clones as report

    if plan:
        planned = plans.protect(load(config), name, duration(time))
        print(report.intention_json(planned, "protect") if json else report.intention(planned))
        return
    found = lifecycle.protect(load(config), name, duration(time))
    print(
        report.changed_json(found, "protected")
        if json
        else report.changed(found, "is protected" if found.lease.protected_until else "is not protected")
    )


@app.command("commit")
def commit(
    name: CloneName,
    message: Annotated[str, typer.Option("--message", "-m", help="What is in it.")] = "",
    config: ConfigFile = None,
    plan: PlanOnly = False,
    json: AsJson = False,
) -> None:
    """Snapshot a clone as it is; the snapshot can be cloned like a backup's."""
    from zsnapdb.config import load
    from zsnapdb.jobs.clone import lifecycle, plans
    from zsnapdb.report.clone import clones as report

    if plan:
        planned = plans.commit(load(config), name, message)
        print(report.intention_json(planned, "commit") if json else report.intention(planned))
        return
    made = lifecycle.commit(load(config), name, message)
    print(report.committed_json(made) if json else report.committed(made))


@app.command("detach")
def detach(name: CloneName, config: ConfigFile = None, plan: PlanOnly = False, json: AsJson = False) -> None:
    """Make a clone a copy of its own, which needs no snapshot of its source. --plan shows the cost."""
    from zsnapdb.cli.progress import ProgressLine
    from zsnapdb.config import load
    from zsnapdb.jobs.clone import revision
    from zsnapdb.report.clone import clones as report

    settings = load(config)
    if plan:
        planned = revision.detach_plan(settings, name)
        print(report.detach_json(planned, "clone-detach-plan") if json else report.detach_plan(planned))
        return
    progress = ProgressLine()
    done = revision.detach(settings, name, progress)
    progress.end()
    print(report.detach_json(done, "clone-detached") if json else report.detached(done))


@app.command("destroy")
def destroy(
    name: CloneName,
    commits: Annotated[bool, typer.Option("--commits", help="Destroy its commits too.")] = False,
    config: ConfigFile = None,
    plan: PlanOnly = False,
    json: AsJson = False,
) -> None:
    """Stop a clone's server and destroy exactly its datasets. One that is not there is no error."""
    from zsnapdb.config import load
    from zsnapdb.jobs.clone import destroy as job
    from zsnapdb.report.clone import clones as report

    settings = load(config)
    if plan:
        planned = job.plan(settings, name, with_commits=commits)
        print(report.destroy_plan_json(planned, name) if json else report.destroy_plan(planned, name))
        return
    gone = job.destroy(settings, name, with_commits=commits)
    print(report.destroyed_json(gone, name) if json else report.destroyed(gone, name))


def reap(config: ConfigFile = None, plan: PlanOnly = False, json: AsJson = False) -> None:
    """Destroy clones whose time is up, and clear what runs that died left behind."""
    from zsnapdb.config import load
    from zsnapdb.jobs.clone import reaper
    from zsnapdb.report.clone import clones as report

    settings = load(config)
    found = reaper.plan(settings) if plan else reaper.reap(settings)
    print(report.swept_json(found, planned=plan) if json else report.swept(found))
    for item in found:
        if item.error is not None:
            raise item.error
