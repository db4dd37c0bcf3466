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
    config: ConfigFile = None,
    plan: PlanOnly = False,
    json: AsJson = False,
) -> None:
    """Make a clone of a local snapshot set and start its server."""
    from zsnapdb.config import load
    from zsnapdb.jobs import clone as job
    from zsnapdb.jobs.common import Instance
    from zsnapdb.report import json as as_json
    from zsnapdb.report import text as as_text

    settings = load(config)
    if plan:
        planned = job.plan(settings, Instance.of(settings, instance), source, name)
        print(as_json.clone_plan(planned) if json else as_text.clone_plan(planned))
        return
    result = job.create(settings, Instance.of(settings, instance), source, name)
    print(as_json.created(result) if json else as_text.created(result))


@app.command("list")
def list_clones(config: ConfigFile = None, json: AsJson = False) -> None:
    """List the clones, oldest first."""
    from zsnapdb.config import load
    from zsnapdb.jobs import clone as job
    from zsnapdb.report import json as as_json
    from zsnapdb.report import text as as_text

    found = job.listing(load(config))
    print(as_json.clones(found) if json else as_text.clones(found))


@app.command("destroy")
def destroy(name: CloneName, config: ConfigFile = None, plan: PlanOnly = False, json: AsJson = False) -> None:
    """Stop a clone's server and destroy exactly its datasets."""
    from zsnapdb.config import load
    from zsnapdb.jobs import clone as job
    from zsnapdb.report import json as as_json
    from zsnapdb.report import text as as_text

    settings = load(config)
    if plan:
        found = job.find(settings, name)
        print(as_json.destroy_plan(found) if json else as_text.destroy_plan(found))
        return
    gone = job.destroy(settings, name)
    print(as_json.destroyed(gone) if json else as_text.destroyed(gone))
