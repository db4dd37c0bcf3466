"""`zsnapdb clone list` and `zsnapdb clone show`."""

from __future__ import annotations

from zsnapdb.cli.clone.options import CloneName
from zsnapdb.cli.options import AsJson, ConfigFile
from zsnapdb.cli.output import show


def list_clones(config: ConfigFile = None, json: AsJson = False) -> None:
    """List the clones, oldest first."""
    from zsnapdb.config.settings import load
    from zsnapdb.jobs.base.host import THIS_HOST
    from zsnapdb.jobs.clone import catalogue
    from zsnapdb.report.clone import list as report

    known = catalogue.known(load(config), THIS_HOST)
    show(report.ClonesView(known.copies, THIS_HOST.now(), known.unreadable), json)


def show_clone(name: CloneName, config: ConfigFile = None, json: AsJson = False) -> None:
    """Show one clone and its commits."""
    from zsnapdb.config.settings import load
    from zsnapdb.jobs.base.host import THIS_HOST
    from zsnapdb.jobs.clone import catalogue, sources
    from zsnapdb.report.clone import list as report

    info = catalogue.find(load(config), THIS_HOST, name)
    show(report.CloneDetailView(info, sources.commits(info.top), THIS_HOST.now()), json)
