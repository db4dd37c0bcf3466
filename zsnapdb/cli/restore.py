"""`zsnapdb restore`."""

from __future__ import annotations

from typing import Annotated

import typer

from zsnapdb.cli.options import AsJson, ConfigFile, NamedInstance, PlanOnly


def restore(
    instance: NamedInstance,
    target: Annotated[str, typer.Option("--target", metavar="DATASET", help="A new dataset; the restored volumes go there.", show_default=False)],
    to: Annotated[str, typer.Option("--to", metavar="BACKUP", help="A backup id, or latest.")] = "latest",
    config: ConfigFile = None,
    plan: PlanOnly = False,
    json: AsJson = False,
) -> None:
    """Restore a backup into a new dataset, start its server once, and check that it stands at the recorded position."""
    from zsnapdb.cli.progress import ProgressLine, tell
    from zsnapdb.config import load
    from zsnapdb.jobs import restore as job
    from zsnapdb.jobs.common import Instance
    from zsnapdb.report import json as as_json
    from zsnapdb.report import text as as_text

    settings = load(config)
    chosen = Instance.of(settings, instance, tell)
    if plan:
        planned = job.plan(settings, chosen, chosen.open_repository(), to, target)
        print(as_json.restore_plan(planned) if json else as_text.restore_plan(planned))
        return
    progress = ProgressLine()
    result = job.restore(settings, chosen, to, target, progress)
    progress.end()
    print(as_json.restore(result) if json else as_text.restore(result))
