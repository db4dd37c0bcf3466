"""What a failed run of a restore leaves, whether it restores a server or a machine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.unit.support.machine_yard import made_yard
from tests.unit.support.planning_host import PlanningHost
from zsnapdb.base.errors import CommandError, DamagedError, PreflightError
from zsnapdb.jobs.base.instance import Instance
from zsnapdb.jobs.restore.run_lifecycle import RestoreKind, RestoreRun, exclusive_journal, lock_target, refuse_active
from zsnapdb.jobs.steps.journal import JournalFolder
from zsnapdb.jobs.steps.restore_journal import Journals, MachineJournal, MachineJournals, RestoreJournal
from zsnapdb.planning.restore.steps import PoolNeeds, Receive


@dataclass
class Restored:
    """A restore in memory: each step is noted, the step `fails_at` raises `error`, and `remove` may fail too."""

    instance: Instance
    plan: Any
    folder: JournalFolder[Any]
    journal: Any
    fails_at: str = ""
    error: BaseException | None = None
    removal_fails: bool = False
    removed: int = 0
    ran: list[str] = field(default_factory=list)
    is_continued: bool = False

    def is_irreversible(self) -> bool:
        return False

    def remove(self) -> None:
        if self.removal_fails:
            raise CommandError("the pool is suspended", hint="")
        self.removed += 1

    def run(self) -> None:
        kinds = {type(step) for step in self.plan.steps}
        body: RestoreKind[Any, Any] = RestoreKind(Journals, RestoreJournal, dict.fromkeys(kinds, _step), PoolNeeds, id)
        work: Any = self
        with lock_target(self.instance, self.plan):
            RestoreRun(body, work, self.folder.read(self.plan.top) or self.journal, self.folder).carry_out()

    @property
    def is_under_way(self) -> bool:
        return self.folder.read(self.plan.top) is not None


def _step(work: Restored, step: Any) -> None:
    work.ran.append(step.name)
    if step.name == work.fails_at and work.error is not None:
        raise work.error


@pytest.fixture(params=["server", "machine"])
def restored(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Restored:
    """A restore of a server and one of a machine, which no step has begun."""
    if request.param == "server":
        host: PlanningHost = request.getfixturevalue("host")
        plan = host.plan()
        journals = Journals(tmp_path / "journals")
        return Restored(host.instance, plan, journals, RestoreJournal(plan))
    yard = made_yard(tmp_path, monkeypatch)
    machine = yard.plan()
    return Restored(yard.instance, machine, MachineJournals(tmp_path / "journals"), MachineJournal(machine))


def _received(restored: Restored) -> str:
    """Return the name of a step before which a volume is received."""
    names = [step.name for step in restored.plan.steps]
    first = next(step.name for step in restored.plan.steps if isinstance(step, Receive))
    return str(names[names.index(first) + 1])


def _first_receive(restored: Restored) -> str:
    return str(next(step.name for step in restored.plan.steps if isinstance(step, Receive)))


@pytest.mark.parametrize(
    ("fails_at", "error", "is_kept"),
    [
        (_received, CommandError("a broken line", hint=""), True),
        (_received, KeyboardInterrupt(), True),
        (_received, DamagedError("a damaged chunk", hint=""), False),
        (_first_receive, CommandError("a broken line", hint=""), False),
        (_first_receive, KeyboardInterrupt(), True),
    ],
)
def test_what_was_received_is_kept_and_goes_on_unless_it_is_damaged(
    restored: Restored, fails_at: Callable[[Restored], str], error: BaseException, is_kept: bool
) -> None:
    restored.fails_at, restored.error = fails_at(restored), error
    with pytest.raises(type(error)):
        restored.run()
    assert (restored.is_under_way, restored.removed) == (is_kept, 0 if is_kept else 1)
    if not is_kept:
        return
    with pytest.raises(PreflightError, match="was started at"):
        refuse_active(restored.folder, restored.plan)
    ran, restored.error = len(restored.ran), None
    restored.run()
    names = [step.name for step in restored.plan.steps]
    assert restored.ran[ran:] == names[names.index(restored.fails_at) :]
    assert not restored.is_under_way


def test_what_could_not_be_removed_after_an_error_can_be_given_up(restored: Restored) -> None:
    restored.fails_at, restored.error = _first_receive(restored), CommandError("a broken line", hint="")
    restored.removal_fails = True
    with pytest.raises(CommandError) as failed:
        restored.run()
    assert failed.value.__notes__ == [
        "removing the restored datasets failed too: the pool is suspended",
        f"`zsnapdb restore {restored.instance.name} --abandon --target {restored.plan.top}` removes it",
    ]
    with exclusive_journal(restored.instance, restored.folder, None) as journal:
        assert journal.plan == restored.plan


def test_before_the_first_change_nothing_is_written_down_and_a_failed_check_leaves_nothing(restored: Restored) -> None:
    restored.fails_at, restored.error = "preflight", PreflightError("no space", hint="")
    with pytest.raises(PreflightError):
        restored.run()
    assert (restored.is_under_way, restored.removed) == (False, 1)
