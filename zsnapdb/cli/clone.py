"""`zsnapdb clone …`."""

from __future__ import annotations

from typing import Annotated

import typer

from zsnapdb.cli.options import AsJson, ConfigFile, NamedInstance, PlanOnly

app = typer.Typer(help="Throwaway servers on copies of snapshots.", no_args_is_help=True, rich_markup_mode=None)

CloneName = Annotated[str, typer.Argument(metavar="NAME", help="The clone's name.", show_default=False)]


@app.command("create")
def create(
    instance: NamedInstance,
    name: Annotated[str | None, typer.Option("--name", help="The clone's name.", show_default="instance and a random word")] = None,
    source: Annotated[str, typer.Option("--from", metavar="BACKUP", help="A backup id whose snapshots are on this host, or latest.")] = "latest",
    mask: Annotated[bool, typer.Option("--mask", help="Mask it before anyone can reach it, though the policy would not ask for it.")] = False,
    config: ConfigFile = None,
    plan: PlanOnly = False,
    json: AsJson = False,
) -> None:
    """Make a clone of a local snapshot set and start its server."""
    from zsnapdb.config import load
    from zsnapdb.jobs.clone import create as job
    from zsnapdb.jobs.common import Instance
    from zsnapdb.report import clone as report

    settings = load(config)
    if plan:
        planned = job.plan(settings, Instance.of(settings, instance), source, name, mask=mask)
        print(report.plan_json(planned) if json else report.plan(planned))
        return
    result = job.create(settings, Instance.of(settings, instance), source, name, mask=mask)
    print(report.created_json(result) if json else report.created(result))


@app.command("list")
def list_clones(config: ConfigFile = None, json: AsJson = False) -> None:
    """List the clones, oldest first."""
    from zsnapdb.config import load
    from zsnapdb.jobs.clone import catalogue
    from zsnapdb.report import clone as report

    found = catalogue.listing(load(config))
    print(report.listing_json(found) if json else report.listing(found))


@app.command("destroy")
def destroy(name: CloneName, config: ConfigFile = None, plan: PlanOnly = False, json: AsJson = False) -> None:
    """Stop a clone's server and destroy exactly its datasets."""
    from zsnapdb.config import load
    from zsnapdb.jobs.clone import catalogue
    from zsnapdb.jobs.clone import destroy as job
    from zsnapdb.report import clone as report

    settings = load(config)
    if plan:
        found = catalogue.find(settings, name)
        print(report.destroy_plan_json(found) if json else report.destroy_plan(found))
        return
    gone = job.destroy(settings, name)
    print(report.destroyed_json(gone) if json else report.destroyed(gone))
