"""`zsnapdb doctor`, and `zsnapdb sizing`, which needs no configuration."""

from __future__ import annotations

import traceback
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from zsnapdb.base.errors import UsageError, ZsnapdbError
from zsnapdb.cli import completion
from zsnapdb.cli.command_context import configuration, instance_context
from zsnapdb.cli.main_process import unexpected_system_error
from zsnapdb.cli.options import AsJson, ConfigFile, InstanceName, PlanOnly, argument, flag, option
from zsnapdb.cli.output import renamed, require_yes, show, show_errors

if TYPE_CHECKING:
    from zsnapdb.jobs.doctor.instance_checks import Diagnosis

SizingChange = Annotated[
    str | None, option("--change", "RATE", "Changed bytes, for example 20GiB/day.", show_default="2% a day")
]
SizingBinlog = Annotated[
    str | None, option("--binlog", "RATE", "Bytes of binlog, 0B/day if none is archived.", show_default="as --change")
]
SizingKeep = Annotated[
    str | None,
    option("--keep", "RULES", "The retention policy.", show_default="as setup: last=7,daily=14,weekly=8,monthly=12"),
]
SizingEvery = Annotated[str, option("--every", "DURATION", "Time between two backups.")]
SizingFull = Annotated[str, option("--full-every", "DURATION", "Time between two full backups.")]
SizingLine = Annotated[str, option("--line", "BANDWIDTH", "Bandwidth to the store; 119MiB/s is 1 Gbit/s.")]
SizingPrices = Annotated[str, option("--prices", "LIST|FILE", "Price list: s3, azure, google, all, or a TOML file.")]


def sizing(
    size: Annotated[str, option("--size", "SIZE", "Size of the data, for example 1TiB.")],
    change: SizingChange = None,
    binlog: SizingBinlog = None,
    keep: SizingKeep = None,
    every: SizingEvery = "1d",
    full_every: SizingFull = "30d",
    line: SizingLine = "119MiB/s",
    prices: SizingPrices = "s3",
    json: AsJson = False,
) -> None:
    """Estimate hours, memory, objects, requests and money for a server of a given size. Needs no configuration.

    The rates were measured; the answer says under which conditions. The retention policy is simulated.
    """
    from zsnapdb.base.quantities import parse_duration, parse_size
    from zsnapdb.jobs.repository import sizing as job
    from zsnapdb.planning.repository.sizing import Workload
    from zsnapdb.report.setup import SizingView

    data = parse_size(size)
    changed = job.parse_daily(change) if change is not None else data * 0.02
    load = Workload(
        size=data,
        change=changed,
        binlog=job.parse_daily(binlog) if binlog is not None else changed,
        keep=job.parse_keep(keep),
        every=parse_duration(every),
        full_every=parse_duration(full_every),
        line=job.parse_line(line),
    )
    show(SizingView(job.size_workload(load, job.parse_prices(prices))), json)


_EXIT = {"ok": 0, "warning": 1, "unfit": 2}
_UNKNOWN = 3
"""The state UNKNOWN of a Nagios plugin (Monitoring Plugins Development Guidelines, "Plugin Return Codes")."""
_PERIOD = "60s"


class DoctorFormat(StrEnum):
    """Output format of the answer."""

    TEXT = "text"
    JSON = "json"
    NAGIOS = "nagios"


EveryInstance = Annotated[
    str | None,
    argument("INSTANCE", "Configured instance.", show_default="all of them", autocompletion=completion.instances),
]
AnswerFormat = Annotated[
    DoctorFormat,
    flag("--format", "Output format: text, one JSON document, or one line for Nagios-compatible monitors."),
]
FixedProperties = Annotated[
    bool, flag("--fix", "Set the properties of datasets that are safe to set, after a confirmation.")
]
Unasked = Annotated[bool, typer.Option("--yes", "-y", help="With --fix: skip the confirmation.")]
WatchedLoad = Annotated[
    bool, flag("--load", "Estimate the effect of other memory, devices or record sizes on the present load.")
]
WatchedTime = Annotated[
    str | None,
    option("--for", "DURATION", "With --load: length of the observation, for example 10m.", show_default=_PERIOD),
]


def doctor(
    instance: EveryInstance = None,
    config: ConfigFile = None,
    json: AsJson = False,
    format: AnswerFormat = DoctorFormat.TEXT,  # noqa: A002 - the name of the option
    fix: FixedProperties = False,
    yes: Unasked = False,
    plan: PlanOnly = False,
    load: WatchedLoad = False,
    period: WatchedTime = None,
) -> None:
    """Check whether instances can be backed up; change nothing without --fix. Exit codes: 0 fit, 1 warnings, 2 unfit.

    With --fix the answer and the exit code are those of a second check after the changes. --fix --plan only shows the
    changes.

    `zsnapdb example doctor.md` describes each rule. The configuration can silence a rule, with a reason and a last day.
    With --format nagios, exit code 3 means that the check itself failed.

    With --load doctor checks nothing. It reads counters of the server, the ARC, the intent log and the disks twice. It
    estimates the effect of different settings, shows the figures behind each estimate, and lists facts that no counter
    shows.
    """
    if load:
        if fix or format is DoctorFormat.NAGIOS:
            raise UsageError(
                "--load does not apply to --fix or --format nagios", hint="leave out --fix and --format nagios"
            )
        _show_load(instance, period or _PERIOD, config, json or format is DoctorFormat.JSON)
        return
    if period is not None:
        raise UsageError("--for needs --load", hint="add --load")
    if fix and format is DoctorFormat.NAGIOS:
        raise UsageError("--fix has no output in Nagios format", hint="leave out --format nagios")
    from zsnapdb.jobs.doctor import instance_checks as job
    from zsnapdb.report.doctor import DoctorView

    is_json = json or format is DoctorFormat.JSON
    diagnoses = _diagnoses(config, instance, format, json)
    view = DoctorView(diagnoses)
    changes = job.safe_changes(diagnoses) if fix else ()
    if changes and plan:
        view = DoctorView(diagnoses, planned=changes)
    elif changes:
        if not yes:
            shown = "\n".join(change.command for change in changes)
            require_yes("doctor --fix", shown, "Run these commands?", json=is_json)
        job.apply_changes(changes)
        diagnoses = _diagnoses(config, instance, format, json)
        view = DoctorView(diagnoses, fixed=changes)
    if format is DoctorFormat.NAGIOS and not json:
        print(view.nagios())
    else:
        show(view, is_json)
    code = max((_EXIT[diagnosis.worst] for diagnosis in diagnoses), default=0)
    if code:
        raise typer.Exit(code)


def _diagnoses(config: Path | None, instance: str | None, format: DoctorFormat, json: bool) -> list[Diagnosis]:  # noqa: A002
    """Return the diagnoses. An error is printed in the requested format, and ends the command."""
    from zsnapdb.jobs.base.host import THIS_HOST
    from zsnapdb.jobs.doctor import instance_checks as job
    from zsnapdb.report import view
    from zsnapdb.report.doctor import nagios_line

    try:
        return job.diagnose(configuration(config), THIS_HOST, instance)
    except ZsnapdbError as error:
        if format is DoctorFormat.JSON and not json:
            print(view.error_json(error))
        if format is not DoctorFormat.NAGIOS:
            raise
        print(nagios_line("UNKNOWN", error.message))
        raise typer.Exit(_UNKNOWN) from None
    except OSError as error:
        show_errors([unexpected_system_error(error)])
        raise typer.Exit(_EXIT["unfit"]) from None
    except Exception:
        # A monitor would interpret exit code 1 as "fit, with warnings".
        traceback.print_exc()
        raise typer.Exit(_EXIT["unfit"]) from None


def advise(
    instance: InstanceName = None,
    period: Annotated[str, option("--for", "DURATION", "Length of the observation, for example 10m.")] = _PERIOD,
    size: Annotated[str | None, option("--size", "SIZE", "With a size: `zsnapdb sizing`.")] = None,
    change: SizingChange = None,
    keep: SizingKeep = None,
    prices: SizingPrices = "s3",
    config: ConfigFile = None,
    json: AsJson = False,
) -> None:
    """Estimate how different memory, devices or record sizes affect the current load: `zsnapdb doctor --load`."""
    if size is not None:
        renamed("advise --size", "sizing --size")
        sizing(size, change, keep=keep, prices=prices, json=json)
        return
    renamed("advise", "doctor --load")
    _show_load(instance, period, config, json)


def _show_load(instance: str | None, period: str, config: Path | None, json: bool) -> None:
    from zsnapdb.base.quantities import parse_duration
    from zsnapdb.jobs.doctor.rule_facts import watch
    from zsnapdb.report.doctor import LoadView

    _, chosen = instance_context(config, instance)
    show(LoadView(watch(chosen, parse_duration(period))), json)
