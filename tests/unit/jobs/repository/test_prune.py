"""A prune that ends at any moment leaves every listed backup complete."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tests.unit.support.manifests import stored_manifests
from tests.unit.support.pruning import check_whole, manifests, plan, prune
from tests.unit.support.stored_backups import DyingStore, Killed, Site, dies, id_of, store_backup
from zsnapdb.base.errors import ConfigError, PreflightError, RepositoryError, UsageError
from zsnapdb.config.settings import parse
from zsnapdb.jobs.base.instance import Instance
from zsnapdb.jobs.repository import prune as job
from zsnapdb.jobs.repository.prune_facts import NOTHING_LOCAL
from zsnapdb.planning.repository.retention import Unrestorable
from zsnapdb.repository import layout
from zsnapdb.store.local import LocalStore

TWO_CHAINS = [None, 0, 1, None, 3, 4]


def test_what_no_rule_keeps_is_gone_with_all_its_chunks(site: Site) -> None:
    names = site.fill(TWO_CHAINS)
    planned = plan(site)
    result = prune(site)
    assert result.removed == planned.retention.removal_order == (names[2], names[1], names[0])
    assert result.size == planned.freed > 0
    assert manifests(site) == names[3:]
    assert {key.split("/")[2] for key in site.objects("main/chunks/")} == set(names[3:])
    check_whole(site)


def test_a_plan_changes_nothing(site: Site) -> None:
    site.fill(TWO_CHAINS)
    before = site.objects()
    plan(site)
    assert site.objects() == before


def test_pruning_again_removes_nothing(site: Site) -> None:
    site.fill(TWO_CHAINS)
    prune(site)
    again = prune(site)
    assert (again.removed, again.swept, again.objects) == ((), (), 0)


def test_increments_that_stay_keep_their_chain(site: Site) -> None:
    site.keep = "last = 1"
    names = site.fill([None, 0, 1, 2])
    assert prune(site).removed == ()
    assert manifests(site) == names


def test_without_rules_nothing_is_ever_removed(site: Site) -> None:
    site.fill(TWO_CHAINS)
    text = site.instance()
    bare = replace(text, settings=text.settings.model_copy(update={"keep": None}))
    for action in (
        lambda: job.plan(bare, local=NOTHING_LOCAL),
        lambda: job.prune(bare, local=NOTHING_LOCAL),
    ):
        with pytest.raises(ConfigError, match="no retention policy"):
            action()


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_killed_at_any_change_it_leaves_no_gap_and_a_later_run_finishes(
    site: Site, tmp_path: Path, after: bool
) -> None:
    names = site.fill([None, 0, None])
    site.keep = "last = 1"
    store = LocalStore(site.folder)
    content = {item.key: store.get(item.key) for item in store.list("")}
    with site.opening(DyingStore) as made:
        prune(site)
        changes = made[-1].changes
    whole = site.objects()
    assert len(changes) > 15
    for moment in range(1, len(changes) + 1):
        for key, body in content.items():
            store.put(key, body)
        with site.opening(dies(moment, after=after)), pytest.raises(Killed):
            prune(site)
        store.delete("main/writer.lock")
        check_whole(site)
        assert names[2] in manifests(site)
        site.later(days=30)
        prune(site)
        site.later()
        assert [k for k in site.objects() if not k.endswith(".lock")] == [k for k in whole if not k.endswith(".lock")]


def test_an_error_of_the_store_at_any_removal_is_told_and_the_next_run_goes_on(site: Site) -> None:
    site.fill([None, 0, None])
    site.keep = "last = 1"

    def refuse(what: str, key: str) -> None:
        if what == "delete" and key.endswith("00000002"):
            raise RepositoryError(f"removing {key}: denied")

    with site.opening(lambda store: DyingStore(store, refuse)), pytest.raises(RepositoryError, match="denied"):
        prune(site)
    check_whole(site)
    site.later(days=30)
    prune(site)
    assert len({key.split("/")[2] for key in site.objects("main/chunks/")}) == 1


def test_a_backup_with_a_gap_in_its_chain_stays_unless_its_removal_is_requested(site: Site) -> None:
    names = site.fill([None, 0, 1, None])
    site.keep = "last = 1"
    LocalStore(site.folder).delete(layout.manifest("main", names[0]))
    assert prune(site).removed == ()
    assert prune(site, Unrestorable.REMOVE).removed == (names[2], names[1])
    assert manifests(site) == [names[3]]


def test_a_repository_elsewhere_is_pruned_by_its_own_rules(site: Site) -> None:
    site.keep = "last = 1"
    text = site.text() + "[repository.there.keep]\nlast = 2\n[repository.here.keep]\nlast = 9\n"
    settings = parse(text, "test")
    assert Instance.at(settings, "main", None).retention_policy().last == 1
    assert Instance.at(settings, "main", "here").retention_policy().last == 1
    assert Instance.at(settings, "main", "there").retention_policy().last == 2
    with pytest.raises(UsageError, match="'nowhere' is not configured"):
        Instance.at(settings, "main", "nowhere")


def test_a_clock_a_year_ahead_removes_nothing(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    site = Site(tmp_path / "store", keep='within = "30d"')
    names = site.fill([None] * 8)
    site.later(days=365)
    for attempt in (job.plan, job.prune):
        with pytest.raises(
            PreflightError, match=r"by the clock of this host|ahead of the clock of the store"
        ) as refused:
            attempt(site.instance(), local=NOTHING_LOCAL)
        assert "--trust-clock" in refused.value.hint
    assert site.instance().open_repository().backup_ids("main") == names
    assert len(job.prune(site.instance(), local=NOTHING_LOCAL, trusts_clock=True).removed) == 7


def test_an_id_a_day_ahead_hides_no_later_increment(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    site = Site(tmp_path / "store", keep="last = 1")
    repository = site.instance().open_or_create_repository()
    now = datetime.now(UTC)
    names = [
        id_of(number, now + timedelta(days=1 if number == 1 else 0), 4, timedelta(minutes=1)) for number in range(4)
    ]
    for number, base in enumerate([None, 0, 1, 2]):
        made = store_backup(repository, names[number], number, base)
        site.record(made)
        assert made.createtxg == number
    assert [backup.backup_id for backup in site.instance().summaries(repository).backups] == names
    assert stored_manifests(repository)[-1].backup_id == names[3]
    assert set(plan(site).retention.kept) == set(names)
    assert {d.backup_id: d.reasons for d in plan(site).retention.decisions}[names[3]] == ("last (1 of 1)",)
