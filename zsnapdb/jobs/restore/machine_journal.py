"""The journal of a restore of a virtual machine: its plan and its finished steps.

<restore.journal>/machines/<target dataset, / as %>.json      a restore that is under way
<restore.journal>/machines/done/<restore id>.json             a finished restore
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from pydantic import TypeAdapter

from zsnapdb.jobs.steps.journal import Done, JournalFolder
from zsnapdb.planning.restore.machine import MachineRestorePlan


@dataclass(frozen=True)
class MachineJournal:
    """A restore of a machine: its plan and its finished steps, in order."""

    plan: MachineRestorePlan
    done: tuple[Done, ...] = ()

    def is_done(self, step: str) -> bool:
        """Whether the step of that name is finished."""
        return any(done.step == step for done in self.done)

    def with_done(self, done: Done) -> MachineJournal:
        """Return the journal with one more finished step."""
        return replace(self, done=(*self.done, done))

    @property
    def top(self) -> str:
        """The dataset that the restore makes."""
        return self.plan.top


_FORM = TypeAdapter(MachineJournal)


class MachineJournals(JournalFolder[MachineJournal]):
    """The journals of restores of machines, below the folder of all journals."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder / "machines", _FORM)
