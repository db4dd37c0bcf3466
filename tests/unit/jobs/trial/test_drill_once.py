"""A drill whose run has an id that its caller chose is made once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.unit.support.drilled import evidence
from tests.unit.support.stored_backups import Site
from zsnapdb.jobs.base.instance import Instance
from zsnapdb.jobs.trial.drill import DrillResult, drill_of_run
from zsnapdb.repository import drills
from zsnapdb.repository.drills import Outcome

RUN, OTHER = "20261127T080000Z-0123abcd", "20261127T090000Z-0123abcd"


class Drills:
    """Makes drills that fail, and counts them."""

    def __init__(self, site: Site) -> None:
        self.site, self.made = site, 0

    def instance(self, run: str = RUN) -> Instance:
        return replace(self.site.instance(), host=replace(self.site.host, run_id=lambda: run))

    def make(self, run: str = RUN) -> DrillResult:
        self.made += 1
        repository = self.site.instance().open_repository()
        drill = evidence(Outcome.FAILED, repository.id, f"20261122T0000{self.made:02d}Z-0001")
        named = drill.model_copy(update={"run_id": run, "sequence": self.made})
        return DrillResult(named, drills.write(repository, named))


def once(instance: Instance, make: Callable[[], DrillResult]) -> DrillResult:
    """Do what `drill --once` does, but for the records of this host: another host has none."""
    return drill_of_run(instance) or make()


@pytest.fixture
def host(tmp_path: Path) -> Drills:
    (tmp_path / "store").mkdir()
    site = Site(tmp_path / "store")
    site.fill([None])
    return Drills(site)


def test_repeated_it_shows_the_drill_that_was_made_also_one_that_failed(host: Drills) -> None:
    first = once(host.instance(), host.make)
    assert once(host.instance(), host.make) == first
    assert host.made == 1
    once(host.instance(OTHER), lambda: host.make(OTHER))
    assert host.made == 2


def test_a_run_that_ended_without_evidence_is_made_again(host: Drills) -> None:
    def dies() -> DrillResult:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        once(host.instance(), dies)
    assert once(host.instance(), host.make).evidence.run_id == RUN


def test_evidence_that_cannot_be_read_is_of_no_run(host: Drills) -> None:
    once(host.instance(), host.make)
    for file in (host.site.folder / "main" / "drills").iterdir():
        file.write_bytes(b"{}")
    once(host.instance(), host.make)
    assert host.made == 2
