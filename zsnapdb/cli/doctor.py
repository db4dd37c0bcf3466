"""`zsnapdb doctor`."""

from __future__ import annotations

import traceback
from typing import Annotated

import typer

from zsnapdb.cli.ending import of_the_system
from zsnapdb.cli.options import AsJson, ConfigFile
from zsnapdb.cli.output import show, show_errors
from zsnapdb.errors import ZsnapdbError

_EXIT = {"ok": 0, "warning": 1, "unfit": 2}


def doctor(
    instance: Annotated[
        str | None, typer.Argument(metavar="INSTANCE", help="A configured instance.", show_default="all of them")
    ] = None,
    config: ConfigFile = None,
    json: AsJson = False,
) -> None:
    """Check whether instances can be backed up; change nothing. Exit codes: 0 fit, 1 warnings, 2 unfit."""
    from zsnapdb.config import load
    from zsnapdb.jobs import doctor as job
    from zsnapdb.report.doctor import DoctorView

    settings = load(config)
    try:
        diagnoses = job.diagnose(settings, instance)
    except ZsnapdbError:
        raise
    except OSError as error:
        show_errors([of_the_system(error)])
        raise typer.Exit(_EXIT["unfit"]) from None
    except Exception:
        # Exit code 1 would mean "fit, with warnings" to a monitor.
        traceback.print_exc()
        raise typer.Exit(_EXIT["unfit"]) from None
    show(DoctorView(diagnoses), json)
    code = max((_EXIT[diagnosis.worst] for diagnosis in diagnoses), default=0)
    if code:
        raise typer.Exit(code)
