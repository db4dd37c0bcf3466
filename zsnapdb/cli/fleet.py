"""`zsnapdb fleet`: all instances of all hosts, and the jobs that move between hosts."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from zsnapdb.cli import fleet_engine, fleet_orders
from zsnapdb.cli.groups import CommandGroup
from zsnapdb.cli.options import AsJson
from zsnapdb.cli.output import show, show_errors

app = typer.Typer(
    name="fleet",
    cls=CommandGroup,
    help="Look at all instances of all hosts, and run their jobs.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

FleetFile = Annotated[
    Path | None,
    typer.Option(
        "--config",
        metavar="FILE",
        help="The configuration of the fleet: the repositories.",
        readable=False,  # whoever may not read it is told so by `fleet.load`
        envvar="ZSNAPDB_FLEET_CONFIG",
        show_default="/etc/zsnapdb/fleet.toml",
    ),
]


app.command("worker")(fleet_engine.worker)
app.command("control")(fleet_engine.control)
app.command("dev")(fleet_engine.dev)
app.command("apply")(fleet_orders.apply)
app.command("run")(fleet_orders.run)
app.command("pause")(fleet_orders.pause)
app.command("resume")(fleet_orders.resume)
app.command("cancel")(fleet_orders.cancel)
app.command("history")(fleet_orders.history)


@app.command("status")
def status(
    where: Annotated[
        list[str] | None,
        typer.Option(
            "--where",
            metavar="FILTER",
            help="Show only these: red, host=PATTERN, instance=PATTERN, repository=PATTERN. May be repeated.",
            show_default=False,
        ),
    ] = None,
    sort: Annotated[
        str, typer.Option("--sort", metavar="KEY", help="The order: red, instance, host, age or stored.")
    ] = "red",
    cached: Annotated[
        bool, typer.Option("--cached", help="Ask no repository: judge what was read last, in a second.")
    ] = False,
    metrics: Annotated[
        Path | None,
        typer.Option(
            "--metrics",
            metavar="FILE.prom",
            help="Also write the state as metrics for the textfile collector of node_exporter.",
            show_default=False,
        ),
    ] = None,
    config: FleetFile = None,
    json: AsJson = False,
) -> None:
    """Show all instances of all hosts, red first, with the reason and since when.

    Everything comes from the repositories, which are only listed and read: no host, no server and no agent is asked.
    So it is right when hosts are dead. What has not changed since the last time is not fetched again.

    Exit codes: as `zsnapdb status`, the greatest of the instances that are shown and of the repositories: 0 every
    objective is met; 1 there is a warning; 2 an objective is broken, or a host is silent; 6 nothing of an instance can
    be restored, or a repository cannot be read; 7 something is damaged.
    """
    from zsnapdb.base.errors import ZsnapdbError
    from zsnapdb.config import fleet as fleet_config
    from zsnapdb.jobs.base.host import THIS_HOST
    from zsnapdb.jobs.fleet import fleet as job
    from zsnapdb.jobs.health import metrics_file
    from zsnapdb.report.fleet import status as report

    if metrics is not None:
        metrics_file.check_name(metrics)
    request = job.FleetRequest.parse(where or (), sort, cached=cached)
    state = job.status(fleet_config.load(config), request, THIS_HOST)
    errors: list[ZsnapdbError] = []
    if metrics is not None:
        from zsnapdb.report.fleet.metrics import text as metrics_text

        try:
            metrics_file.write(metrics, metrics_text(state))
        except ZsnapdbError as error:
            errors.append(error)
    show(report.FleetView(state), json)
    show_errors(errors)
    code = max(state.exit_code, 2 if errors else 0)
    if code:
        raise typer.Exit(code)
