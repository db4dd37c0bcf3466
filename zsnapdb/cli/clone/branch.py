"""`zsnapdb clone branch`: create, switch, list, log, diff, delete."""

from __future__ import annotations

from typing import Annotated

import typer

from zsnapdb.cli.command_context import host_context
from zsnapdb.cli.options import AsJson, CloneName, ConfigFile, PlanOnly, argument, option
from zsnapdb.cli.output import show

_MOST_SHOWN = 10_000
BranchName = Annotated[str, argument("BRANCH", "Name of the branch.")]
_STATE = "a branch or a commit of the clone"


def create(
    name: CloneName,
    branch: BranchName,
    start: Annotated[
        str | None,
        option("--from", "STATE", f"Start of the branch: {_STATE}.", show_default="the present state, committed"),
    ] = None,
    config: ConfigFile = None,
    plan: PlanOnly = False,
    json: AsJson = False,
) -> None:
    """Create a branch of a clone. The clone stays on its current branch."""
    from zsnapdb.jobs.clone import branches as job
    from zsnapdb.report.clone import branches as report
    from zsnapdb.report.clone.change import IntentionView

    verb = job.create(*host_context(config), name, branch, start)
    show(IntentionView(verb.plan(), "branch create") if plan else report.BranchesView(verb.run()), json)


def switch(
    name: CloneName, branch: BranchName, config: ConfigFile = None, plan: PlanOnly = False, json: AsJson = False
) -> None:
    """Switch a clone to the newest commit of another branch. Port, credentials and lease stay the same.

    Uncommitted changes are first committed to the current branch.
    """
    from zsnapdb.cli.progress import Terminal
    from zsnapdb.jobs.clone import branches as job
    from zsnapdb.report.clone import branches as report
    from zsnapdb.report.clone.change import IntentionView

    verb = job.switch(*host_context(config), name, branch, Terminal())
    show(IntentionView(verb.plan(), "branch switch") if plan else report.SwitchedView(verb.run()), json)


def list_branches(name: CloneName, config: ConfigFile = None, json: AsJson = False) -> None:
    """List the branches of a clone, each with its newest commit."""
    from zsnapdb.jobs.clone import branches as job
    from zsnapdb.report.clone import branches as report

    show(report.BranchesView(job.listing(*host_context(config), name)), json)


def log(
    name: CloneName,
    state: Annotated[
        str | None, argument("[STATE]", f"Last commit: {_STATE}.", show_default="the branch that it is on")
    ] = None,
    config: ConfigFile = None,
    json: AsJson = False,
) -> None:
    """List the commits that lead to a branch or a commit of a clone, newest first."""
    from zsnapdb.jobs.clone import branches as job
    from zsnapdb.report.clone import branches as report

    seen = job.listing(*host_context(config), name)
    show(report.BranchLogView(seen, state or seen.branches.current, job.log(seen, state)), json)


def diff(
    name: CloneName,
    before: Annotated[str, argument("A", f"Earlier state: {_STATE}.")],
    after: Annotated[str, argument("B", f"Later state: {_STATE}.")],
    limit: Annotated[
        int,
        typer.Option("--limit", min=0, max=_MOST_SHOWN, help="Highest number of shown differing rows of each table."),
    ] = 10,
    size: Annotated[str, option("--size", "SIZE", "Highest total size of the shown differences.")] = "8MiB",
    config: ConfigFile = None,
    json: AsJson = False,
) -> None:
    """Compare two branches or commits of a clone: all definitions, and the rows of every table by primary key.

    Tables without a primary key are compared by the number and the checksum of their rows.
    """
    from zsnapdb.base.quantities import parse_size
    from zsnapdb.cli.progress import Terminal
    from zsnapdb.jobs.clone import branches
    from zsnapdb.planning.clone.diff import ShownDifference
    from zsnapdb.report.clone import branches as report

    most = ShownDifference(limit, parse_size(size))
    compared = branches.compare(*host_context(config), name, before, after, most, Terminal())
    show(report.BranchDifferenceView(compared), json)


def delete(
    name: CloneName, branch: BranchName, config: ConfigFile = None, plan: PlanOnly = False, json: AsJson = False
) -> None:
    """Delete a branch of a clone. Its commits are kept as long as the clone exists."""
    from zsnapdb.jobs.clone import branches as job
    from zsnapdb.report.clone import branches as report
    from zsnapdb.report.clone.change import IntentionView

    verb = job.delete(*host_context(config), name, branch)
    show(IntentionView(verb.plan(), "branch delete") if plan else report.BranchesView(verb.run()), json)
