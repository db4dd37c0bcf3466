"""`undo --apply` shows the rows before it tests the undo, and before it asks."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import typer

from zsnapdb.cli import rescue
from zsnapdb.jobs.binlog import undo as job
from zsnapdb.jobs.clone import undo_trial
from zsnapdb.planning.binlog.changes import ChangeKind
from zsnapdb.planning.binlog.row_values import SqlValue, TableShape
from zsnapdb.planning.binlog.undo import RowChange

GTID = "0-1-7"
CONFIGURATION = (
    '[instance.main]\nhost = "127.0.0.1"\nrepository = "here"\n[repository.here]\nurl = "file:///nonexistent"\n'
)


def change(number: int) -> RowChange:
    value = SqlValue(str(number), str(number), str(number))
    return RowChange(TableShape("app", "t", ()), ChangeKind.DELETE, {"id": value}, None)


@pytest.mark.parametrize("more", [(), (change(9),)], ids=["same", "cascade"])
@pytest.mark.parametrize("answer", [True, False])
def test_rows_are_shown_before_the_test_and_the_question(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    more: tuple[RowChange, ...],
    answer: bool,
) -> None:
    config, seen, applied = tmp_path / "zsnapdb.toml", list[str](), list[str]()
    config.write_text(f"{CONFIGURATION}\n[clones]\nkeep_unused = '3d'\n")
    logged: Any = SimpleNamespace(committed=1_764_000_000_000_000)
    undone = job.Undo("main", GTID, logged, (change(1), change(2)), ())

    def look(where: str) -> None:
        seen.append(f"{where}: {capsys.readouterr().err}")

    def prove(*_: object) -> undo_trial.UndoProof:
        look("test")
        return undo_trial.UndoProof((change(2), change(1), *more), Any)  # type: ignore[arg-type]

    def apply(_: object, one: job.Undo, __: object) -> job.Undo:
        applied.append(one.gtid)
        return one

    def confirm(*_: object, **__: object) -> bool:
        look("question")
        return answer

    monkeypatch.setattr(job, "undo", lambda *_: undone)
    monkeypatch.setattr(job, "who_sees_triggers", lambda own, *_, **__: own)
    monkeypatch.setattr(job, "check", lambda _: None)
    monkeypatch.setattr(job, "apply", apply)
    monkeypatch.setattr(undo_trial, "prove", prove)
    monkeypatch.setattr(typer, "confirm", confirm)
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True)
    rescue.undo("main", GTID, applied=True, config=config)
    test, question = seen
    for row in ("delete app.t (id=1)", "delete app.t (id=2)"):
        assert row in test
    assert ("delete app.t (id=9)" in question) is bool(more)
    assert applied == ([GTID] if answer else [])
    shown = capsys.readouterr().out
    assert "reap destroys them 3 d after their last use" in shown
    assert "`zsnapdb clone prepare main --from received/NAME --remove`" in shown


def test_each_state_of_the_test_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    instance: Any = SimpleNamespace(events=SimpleNamespace(tell=told.append))

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(undo_trial, "_point", stop)
    monkeypatch.setattr(undo_trial, "with_volumes", lambda one: one)
    monkeypatch.setattr(undo_trial, "ephemeral_clone", stop)
    settings: Any = None
    for at in (f"before-{GTID}", GTID):
        with pytest.raises(KeyboardInterrupt), undo_trial._state(settings, instance, at, GTID):
            pass
    with pytest.raises(KeyboardInterrupt):
        undo_trial._try(settings, instance, GTID, (change(1),), Any, ())  # type: ignore[arg-type]
    assert [one.split(" transaction")[0] for one in told] == [
        "creating a clone of the data right before",
        "creating a clone of the data right after",
        "testing the undo of 1 row on a clone of the current data",
    ]
