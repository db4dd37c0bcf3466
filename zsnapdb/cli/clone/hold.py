"""`zsnapdb clone hold`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from zsnapdb.cli.clone.options import CloneName
from zsnapdb.cli.options import AsJson, ConfigFile
from zsnapdb.cli.output import show, show_at_once

if TYPE_CHECKING:
    from zsnapdb.jobs.clone.clone_info import CloneInfo


def hold(name: CloneName, config: ConfigFile = None, json: AsJson = False) -> None:
    """Hold a clone for a program: beat for it, and reset it for each line `reset` on stdin, until stdin ends.

    Each reset is answered by a line with its document, or with that of an error.
    """
    from zsnapdb.base.errors import ZsnapdbError
    from zsnapdb.cli.evidencing import evidence_of_clone
    from zsnapdb.cli.progress import Terminal
    from zsnapdb.config.settings import load
    from zsnapdb.jobs.base.host import THIS_HOST
    from zsnapdb.jobs.clone import hold as job
    from zsnapdb.jobs.clone import reset as resetting
    from zsnapdb.report import document
    from zsnapdb.report.clone import change as report

    def reset(meant: CloneInfo) -> None:
        try:
            # The rules of masking, for example, are those of now.
            settings = load(config)
            with evidence_of_clone(settings, meant.id):
                done = resetting.reset(settings, THIS_HOST, meant.id, None, Terminal(), meant=meant)
        except ZsnapdbError as error:
            print(document.error(error) if json else error, flush=True)
            return
        show_at_once(report.ResetView(done), json)

    show(report.ChangedView(job.hold(load(config), THIS_HOST, name, sys.stdin.fileno(), reset), "held no more"), json)
