"""What takes production's place has what the site had set on production, and the old dataset has it still."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.unit.support.site_pool import SiteDataset, SitePool
from zsnapdb.jobs.restore import dataset_exchange
from zsnapdb.planning.dataset_property_classes import CLASSIFIED, GUARANTEES, SPACE, PropertyClass, carried_names
from zsnapdb.planning.restore.steps import PromotePart
from zsnapdb.zfs.explicit_settings import Right

OLD, PLACE = "tank/mysql-replaced-x", "tank/mysql"
PART = PromotePart("data", "tank/z", PLACE, OLD, "/m", 1, "on", old_canmount_is_set=False)
SETTABLE = [one.name for one in CLASSIFIED if one.kind is not PropertyClass.FACT and one.name not in SPACE]
HOSTILE = "x\tlocal\ntank/mysql\tsharenfs\ton\tlocal"

natives = st.dictionaries(st.sampled_from([n for n in SETTABLE if n not in ("mountpoint", "canmount")]), st.just("a"))
space = st.dictionaries(st.sampled_from(SPACE), st.sampled_from(["100", "200"]))
users = st.dictionaries(
    st.sampled_from(["autobackup:offsite", "com.sun:auto-snapshot", "org.znapzend:src_plan", "a:b"]),
    st.sampled_from(["true", "1d=>1h", HOSTILE, "", "\udcff", "-r"]),
)
permissions = st.sampled_from(["send", "hold", "@keepers", "userprop"])
rights = st.sets(
    st.one_of(
        st.builds(Right, st.just("set"), st.just(""), st.just("@keepers"), st.sampled_from(["send", "hold"])),
        st.builds(Right, st.just("create"), st.just(""), st.just(""), permissions),
        st.builds(
            Right,
            st.sampled_from(["local", "descendants", "both"]),
            st.sampled_from(["user", "group"]),
            st.sampled_from(["daemon", "54321", "DOMAIN\\some user"]),
            permissions,
        ),
        st.builds(Right, st.sampled_from(["local", "both"]), st.just("everyone"), st.just(""), permissions),
    )
)
own = st.builds(lambda *parts: {k: v for part in parts for k, v in part.items()}, natives, space, users)


def exchanged(old: SiteDataset, place: SiteDataset, **more: object) -> SitePool:
    """Return a pool whose dataset was replaced by another one a moment ago."""
    pool = SitePool(**more)  # type: ignore[arg-type]
    pool.datasets = {"tank": SiteDataset(), OLD: old, PLACE: place}
    return pool


def carried(pool: SitePool, *, is_foreign: bool = False) -> list[str]:
    """Carry what the site had set, and return the warnings."""
    warnings: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        pool.install(patch)
        dataset_exchange.copy_site_settings(PART, warnings.append, is_foreign=is_foreign)
    return warnings


def settings_of(one: SiteDataset) -> dict[str, str]:
    """Return what is carried of the dataset's own properties."""
    return {name: one.own[name] for name in carried_names(one.own)}


@example(old={"refreservation": "100"}, place={}, allowed=set(), others=set(), room=250, dies_after=1)
@given(
    old=own, place=own, allowed=rights, others=rights, room=st.sampled_from([250, 10**6]), dies_after=st.integers(0, 30)
)
def test_the_place_has_exactly_what_production_had_after_a_kill_anywhere(
    old: dict[str, str], place: dict[str, str], allowed: set[Right], others: set[Right], room: int, dies_after: int
) -> None:
    place = {name: value for name, value in place.items() if name not in SPACE}
    pool = exchanged(SiteDataset(dict(old), set(allowed)), SiteDataset(place, set(others)), room=room)
    pool.dies_after = dies_after
    try:
        carried(pool)
    except KeyboardInterrupt:
        pool.dies_after = None
        assert carried(pool) == []
    assert settings_of(pool.datasets[PLACE]) == old
    assert pool.datasets[PLACE].rights == allowed
    left = pool.datasets[OLD]
    assert settings_of(left) == {name: value for name, value in old.items() if name not in GUARANTEES}
    assert {name: left.own[key] for name, key in dataset_exchange.RELEASED.items() if key in left.own} == {
        name: value for name, value in old.items() if name in GUARANTEES
    }
    assert left.rights == allowed


def test_a_text_of_a_user_property_sets_no_other_property() -> None:
    pool = exchanged(SiteDataset({"a:b": HOSTILE}), SiteDataset())
    assert carried(pool) == []
    assert pool.datasets[PLACE].own == {"a:b": HOSTILE}


def test_a_property_that_cannot_be_set_is_named_and_the_others_are_given() -> None:
    pool = exchanged(SiteDataset({"refquota": "100", "copies": "2", "a:b": "c"}), SiteDataset())
    pool.refused = frozenset({"copies", "refquota"})
    said = carried(pool)
    assert [line.partition(" of ")[0] for line in said] == [
        f"{PLACE} could not get copies=2",
        f"{PLACE} could not get refquota=100",
    ]
    assert pool.datasets[PLACE].own == {"a:b": "c"}


def test_a_reservation_that_fits_once_moves_to_the_place() -> None:
    pool = exchanged(SiteDataset({"reservation": "200"}), SiteDataset(), room=250)
    assert carried(pool) == []
    assert pool.datasets[PLACE].own == {"reservation": "200"}
    assert pool.datasets[OLD].own == {dataset_exchange.RELEASED["reservation"]: "200"}


def test_received_files_stay_without_special_permissions() -> None:
    pool = exchanged(SiteDataset(), SiteDataset({"setuid": "off", "devices": "off", "readonly": "off"}))
    carried(pool, is_foreign=True)
    assert pool.datasets[PLACE].own == {"setuid": "off", "devices": "off"}


def test_other_snapshot_programs_work_again_if_nothing_was_replaced() -> None:
    pool = exchanged(SiteDataset(), SiteDataset({"com.sun:auto-snapshot": "false", "recordsize": "16384"}))
    with pytest.MonkeyPatch.context() as patch:
        pool.install(patch)
        dataset_exchange.copy_site_settings(replace(PART, old=None), print, is_foreign=False)
    assert pool.datasets[PLACE].own == {"recordsize": "16384"}
