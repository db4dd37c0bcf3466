"""A command that is repeated with the id of its run does nothing twice, wherever the run was killed."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, ClassVar

import pytest
import typer

from zsnapdb.base import files
from zsnapdb.base.errors import PreflightError, ServerError, UsageError
from zsnapdb.cli.idempotency import CommandAnswer, Repeatable, show_once
from zsnapdb.jobs.base.host import THIS_HOST, Host
from zsnapdb.report.view import Fields, View

RUN = "20261127T080000Z-0123abcd"


class Died(BaseException):
    """The process was killed."""


@dataclass(frozen=True)
class Made(View):
    """A result with a secret."""

    number: int
    password: str | None = None
    kind: ClassVar[str] = "made"

    def text(self) -> str:
        return f"made number {self.number}"

    def fields(self) -> Fields:
        return {"number": self.number, "password": self.password}


@dataclass
class Site:
    """A host that makes things, with a password each, and can die before any step."""

    host: Host
    things: dict[str, int] = field(default_factory=dict)
    made: int = 0
    die_at: int = 0
    steps: int = 0
    guid: str = "7"
    code: int = 0

    def step(self) -> None:
        self.steps += 1
        if self.steps == self.die_at:
            raise Died

    def make(self) -> CommandAnswer:
        self.step()
        self.made += 1
        self.things[RUN] = self.made
        self.step()
        return self.answer(self.made)

    def found(self) -> CommandAnswer | None:
        return self.answer(self.things[RUN]) if RUN in self.things else None

    def answer(self, number: int) -> CommandAnswer:
        return CommandAnswer(Made(number, f"secret-{number}"), self.code, kept=Made(number))

    def command(self, **changes: Any) -> Repeatable:
        def revealed(recorded: Mapping[str, Any]) -> Mapping[str, Any]:
            return {**recorded, "password": f"secret-{recorded['number']}"}

        verb = Repeatable("make", "web", aim=lambda: (self.guid,), made=self.found, revealed=revealed)
        return replace(verb, **changes)

    def run(self, **changes: Any) -> None:
        show_once(self.host, RUN, self.command(**changes), self.make, json=True)


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    now = datetime(2026, 11, 27, 9, tzinfo=UTC)
    site = Site(replace(THIS_HOST, run=tmp_path / "run", records=tmp_path / "lib" / "stored", now=lambda: now))
    write = files.replace

    def written(*words: Any) -> None:
        site.step()
        write(*words)
        site.step()

    monkeypatch.setattr(files, "replace", written)
    return site


@pytest.mark.parametrize("is_scheduled", [True, False])
@pytest.mark.parametrize("was_ahead", [True, False])
def test_only_a_scheduled_run_is_not_answered_by_one_of_a_clock_that_was_ahead(
    site: Site, *, was_ahead: bool, is_scheduled: bool
) -> None:
    """Its id is made of the time of the schedule, which had not come yet."""
    site.host = replace(site.host, steady=lambda: ("boot", 1000.0))
    site.run(is_scheduled=is_scheduled)
    later = site.host.now() + timedelta(seconds=60 if was_ahead else 86_400)
    site.host = replace(site.host, now=lambda: later, steady=lambda: ("boot", 87_400.0))
    for _ in range(2):
        site.run(is_scheduled=is_scheduled)
    assert site.made == (2 if was_ahead and is_scheduled else 1)


def documents(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def test_repeated_it_shows_the_same_document_and_does_nothing(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    for _ in range(3):
        site.run()
    first, second, third = documents(capsys.readouterr().out)
    assert first == second == third == {"version": 1, "kind": "made", "number": 1, "password": "secret-1"}
    assert site.made == 1


def test_killed_before_any_step_the_repetition_does_it_once(tmp_path: Path, site: Site) -> None:
    killed = 0
    while True:
        killed += 1
        folder = tmp_path / str(killed)
        site.host = replace(site.host, run=folder / "run", records=folder / "lib" / "stored")
        site.things, site.made, site.steps, site.die_at = {}, 0, 0, killed
        try:
            site.run()
            break
        except Died:
            site.die_at = 0
        site.run()
        assert site.made == 1
        site.run()
        assert site.made == 1
    assert killed > 6


def test_a_run_that_failed_is_done_again_and_a_code_that_was_its_answer_is_its_answer_again(site: Site) -> None:
    def fails() -> CommandAnswer:
        raise ServerError("it does not answer")

    with pytest.raises(ServerError):
        show_once(site.host, RUN, site.command(), fails, json=True)
    site.code = 7
    for _ in range(2):
        with pytest.raises(typer.Exit) as ended:
            site.run()
        assert ended.value.exit_code == 7
    assert site.made == 1


def test_the_id_of_another_command_is_refused(site: Site) -> None:
    site.run()
    with pytest.raises(UsageError, match="was `make` of web, not `make` of shop"):
        site.run(about="shop")
    assert site.made == 1


def test_what_has_the_name_since_is_left_alone(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    site.die_at = 3
    with pytest.raises(Died):
        site.run()
    site.die_at, site.guid = 0, "8"
    with pytest.raises(PreflightError, match="no longer exists"):
        site.run()
    site.run(gone=lambda: CommandAnswer(Made(0)))
    assert (site.made, documents(capsys.readouterr().out)[-1]["number"]) == (0, 0)


def test_no_secret_is_recorded(site: Site) -> None:
    site.run()
    recorded = [file.read_text() for file in site.host.runs.rglob("*.json")]
    assert len(recorded) == 1
    assert "secret" not in recorded[0]


def test_what_was_done_is_shown_also_if_that_cannot_be_recorded(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    def fills_the_disk() -> CommandAnswer:
        shutil.rmtree(site.host.runs)
        site.host.runs.write_text("in the way")
        return site.make()

    show_once(site.host, RUN, site.command(), fills_the_disk, json=True)
    shown = capsys.readouterr()
    assert documents(shown.out)[0]["number"] == 1
    assert "could run twice" in shown.err


def test_without_an_id_nothing_is_recorded(site: Site) -> None:
    show_once(site.host, None, site.command(), site.make, json=True)
    assert not site.host.runs.exists()
