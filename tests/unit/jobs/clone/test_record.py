"""Each property of a clone is declared once, with what a hand-out, a swap and a reset do with it."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import fields
from pathlib import Path

import pytest

from tests.unit.support.clone_pool import HOME, ClonePool
from zsnapdb.config.settings import CloneSettings, Settings
from zsnapdb.jobs.base.host import THIS_HOST
from zsnapdb.jobs.clone import catalogue, clone_info
from zsnapdb.jobs.clone.clone_info import CloneInfo, CloneRecord
from zsnapdb.jobs.clone.sources import COMMIT_COLUMNS, CommitRecord
from zsnapdb.jobs.dataset_copies import property_fields
from zsnapdb.jobs.dataset_copies.catalogue import CopyDatasets
from zsnapdb.jobs.dataset_copies.property_fields import PropertyTransition
from zsnapdb.zfs.datasets import Property

PACKAGE = Path(clone_info.__file__).parent
DECLARED = {name for name in property_fields.columns(CloneRecord) if name.startswith("zsnapdb:")}
HOME_OF_ALL = {"zsnapdb:floor-quota"}
BESIDE = {*HOME_OF_ALL, clone_info.CLONE_PROPERTY, *clone_info.OF_DATA, *clone_info.OF_COMMITS, *clone_info.OF_SETS}


def test_every_property_that_the_code_of_clones_names_is_declared() -> None:
    named = {
        f"zsnapdb:{word}"
        for file in PACKAGE.glob("*.py")
        for word in re.findall(r"\{PROPERTY\}:([a-z-]+)", file.read_text())
    }
    assert not named - DECLARED - BESIDE
    assert len(DECLARED) > 30
    assert not DECLARED & BESIDE


def test_every_stored_property_says_what_a_hand_out_a_swap_and_a_reset_do_with_it() -> None:
    declared = property_fields.declared(CloneRecord)
    assert {each.name for each in fields(CloneRecord)} - set(declared) == {"name", "top"}
    for name, each in declared.items():
        assert set(each.fates) == {"hand_out", "swap", "reset"}, name
        assert PropertyTransition.EXCHANGED not in (each.fates["hand_out"], each.fates["reset"]), name
    assert max(Counter(property_fields.columns(CloneRecord)).values()) == 1


@pytest.fixture
def clone(monkeypatch: pytest.MonkeyPatch) -> CloneInfo:
    pool = ClonePool()
    pool.install(monkeypatch)
    pool.clone("dev", pool.snapshot("tank/main@zsnapdb-20261121T000000Z-0001"))
    settings = Settings.model_construct(instance={}, repository={}, clones=CloneSettings(dataset=HOME))
    return catalogue.find(settings, THIS_HOST, "dev")


@pytest.mark.parametrize("verb", ["hand_out", "swap", "reset"])
def test_a_verb_changes_exactly_what_is_declared(verb: str, clone: CloneInfo) -> None:
    changed = property_fields.changed_by(verb, clone, PropertyTransition.TAKEN, PropertyTransition.EXCHANGED)
    stays = {
        name
        for each in property_fields.declared(CloneRecord).values()
        if each.fates[verb] is PropertyTransition.STAYS
        for name in each.form.names
    }
    assert changed
    assert not set(changed) & stays
    assert set(changed) <= DECLARED


def test_commit_is_read_as_it_was_recorded(clone: CloneInfo) -> None:
    new = CommitRecord(
        id="20261122T000000Z-0001",
        instance="main",
        message="before\tthe change",
        created="2026-11-22T00:00:00Z",
        origin=clone.origin,
        owner="ada",
        parent=clone.backup_id,
        log_end=None,
        run_id="",
        masked="no",
        masked_by=None,
    )
    facts = property_fields.property_values(new, *property_fields.declared(CommitRecord))
    assert {*clone_info.OF_COMMITS, "zsnapdb:backup"} - {clone_info.LOG_END_PROPERTY} <= set(facts)
    values = {name: Property(facts.get(name, "-"), "local" if name in facts else "-") for name in COMMIT_COLUMNS}
    assert property_fields.read(CommitRecord, CopyDatasets(new.id, new.id, {new.id: values})) == vars(new)
