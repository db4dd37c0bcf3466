"""A repository and its marker."""

from __future__ import annotations

from zsnapdb.jobs.repository.init import InitPlan, InitStep
from zsnapdb.report.document import document

_DONE = {
    InitStep.CREATE: "{url} is a new repository",
    InitStep.REBUILD: "{url} had lost its marker; it is written again, from the repository's manifests",
    InitStep.RECIPIENTS: "{url} lists its recipients anew; backups that are there stay encrypted to those they were",
    InitStep.NOTHING: "{url} is a repository already; nothing was changed",
}
_PLANNED = {
    InitStep.CREATE: "{url} holds no repository: make one",
    InitStep.REBUILD: "{url} has lost its marker: write it again, from the repository's manifests",
    InitStep.RECIPIENTS: "{url} lists other recipients: list those that are configured",
    InitStep.NOTHING: "{url} is a repository already: nothing to do",
}


def _lines(planned: InitPlan, first: str) -> str:
    lines = [first.format(url=planned.url), f"  id          {planned.marker.id}"]
    lines += [f"  recipient   {recipient}" for recipient in planned.marker.recipients] or [
        "  encryption  none: no recipients are configured"
    ]
    lines += [
        f"  no longer   {recipient}" for recipient in planned.before if recipient not in planned.marker.recipients
    ]
    return "\n".join(lines)


def plan_text(planned: InitPlan) -> str:
    """What `init` would do."""
    return _lines(planned, _PLANNED[planned.step])


def text(done: InitPlan) -> str:
    """What `init` has done."""
    return _lines(done, _DONE[done.step])


def _fields(planned: InitPlan, kind: str) -> str:
    marker = {"format": planned.marker.format, "id": planned.marker.id, "recipients": list(planned.marker.recipients)}
    return document(kind, repository=planned.name, url=planned.url, step=planned.step.value, marker=marker)


def plan_json(planned: InitPlan) -> str:
    """What `init` would do, for programs."""
    return _fields(planned, "init-plan")


def as_json(done: InitPlan) -> str:
    """What `init` has done, for programs."""
    return _fields(done, "init")
