"""`zsnapdb doctor`."""

from __future__ import annotations

import traceback
from enum import StrEnum
from typing import Annotated

import typer

from zsnapdb.cli.ending import of_the_system
from zsnapdb.cli.options import AsJson, ConfigFile
from zsnapdb.cli.output import show, show_errors
from zsnapdb.errors import ZsnapdbError

_EXIT = {"ok": 0, "warning": 1, "unfit": 2}
_UNKNOWN = 3
"""The state UNKNOWN of a Nagios plugin (Monitoring Plugins Development Guidelines, "Plugin Return Codes")."""


class DoctorFormat(StrEnum):
    """The form of the answer."""

    TEXT = "text"
    JSON = "json"
    NAGIOS = "nagios"


def doctor(
    instance: Annotated[
        str | None, typer.Argument(metavar="INSTANCE", help="A configured instance.", show_default="all of them")
    ] = None,
    config: ConfigFile = None,
    json: AsJson = False,
    format: Annotated[  # noqa: A002 - the name of the option
        DoctorFormat,
        typer.Option("--format", help="Text for people, one JSON document, or one line for Nagios and its relatives."),
    ] = DoctorFormat.TEXT,
) -> None:
    """Check whether instances can be backed up; change nothing. Exit codes: 0 fit, 1 warnings, 2 unfit.

    `zsnapdb example doctor.md` describes each rule. A rule can be silenced in the configuration, with a reason and a
    last day. With --format nagios, 3 means that the check itself failed.
    """
    from zsnapdb.config import load
    from zsnapdb.jobs import doctor as job
    from zsnapdb.report import document
    from zsnapdb.report.doctor import DoctorView, nagios_line

    try:
        diagnoses = job.diagnose(load(config), instance)
    except ZsnapdbError as error:
        if format is DoctorFormat.JSON and not json:
            print(document.error(error))
        if format is not DoctorFormat.NAGIOS:
            raise
        print(nagios_line("UNKNOWN", error.message))
        raise typer.Exit(_UNKNOWN) from None
    except OSError as error:
        show_errors([of_the_system(error)])
        raise typer.Exit(_EXIT["unfit"]) from None
    except Exception:
        # Exit code 1 would mean "fit, with warnings" to a monitor.
        traceback.print_exc()
        raise typer.Exit(_EXIT["unfit"]) from None
    view = DoctorView(diagnoses)
    if format is DoctorFormat.NAGIOS and not json:
        print(view.nagios())
    else:
        show(view, json or format is DoctorFormat.JSON)
    code = max((_EXIT[diagnosis.worst] for diagnosis in diagnoses), default=0)
    if code:
        raise typer.Exit(code)
