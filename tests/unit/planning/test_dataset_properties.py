"""Every property of every OpenZFS that the lab has is in exactly one class, with a reason."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zsnapdb.planning.dataset_property_classes import (
    CLASSIFIED,
    GUARANTEES,
    SPACE,
    PropertyClass,
    carried_names,
    data_values,
    explicit_values,
    is_user_name,
    property_class,
    removed_names,
)

RECORDED = [
    line.split()
    for line in Path(__file__).with_name("openzfs_properties.txt").read_text().splitlines()
    if not line.startswith("#")
]
RELEASES = ("2.1", "2.2", "2.3", "2.4")
BY_NAME = {one.name: one for one in CLASSIFIED}
NOBODY_SETS = {"version", "volsize", "keylocation"}
"""They can be set, and come with the data or the key."""


@pytest.mark.parametrize("release", RELEASES)
def test_every_property_of_a_release_is_in_exactly_one_class(release: str) -> None:
    counted = Counter(one.name for one in CLASSIFIED)
    of_release = {name for name, _, _, releases in RECORDED if release in releases.split(",")}
    assert len(of_release) > 75
    assert {name: counted[name] for name in of_release} == dict.fromkeys(of_release, 1)


def test_no_class_has_a_property_that_no_release_has() -> None:
    assert {one.name for one in CLASSIFIED} - {name for name, *_ in RECORDED} == {"name"}


@pytest.mark.parametrize(("name", "how", "kinds", "releases"), RECORDED, ids=[" ".join(row) for row in RECORDED])
def test_the_class_of_a_property_fits_how_zfs_gives_it_a_value(name: str, how: str, kinds: str, releases: str) -> None:
    one = BY_NAME[name]
    assert (one.kind is PropertyClass.FACT) == (how in ("read", "once") or name in NOBODY_SETS)
    assert one.reason
    if one.kind in (PropertyClass.DATA, PropertyClass.EXPLICIT):
        assert {kind[0] for kind in one.kinds} <= set(kinds)
    if one.kind is PropertyClass.DATA:
        assert {kind[0] for kind in one.kinds} == set(kinds) & set("fv")
    if how == "inherited" and one.kind is PropertyClass.PLACE:
        # A copy takes it from the datasets above it: it decides neither what data is nor who reaches it.
        assert name in {"special_small_blocks", "overlay", "zoned", "jailed", "mlslabel", "longname"}


def test_a_property_is_known_since_the_first_release_that_has_it() -> None:
    first = {
        name: min(release for row in RECORDED if row[0] == name for release in row[3].split(","))
        for name, *_ in RECORDED
    }
    assert {name: f"{one.since[0]}.{one.since[1]}" for name, one in BY_NAME.items() if name != "name"} == first


def test_what_a_copy_must_not_inherit_has_a_value_of_its_own() -> None:
    assert explicit_values() == {
        "readonly": "off",
        "setuid": "off",
        "devices": "off",
        "sharenfs": "off",
        "sharesmb": "off",
        "dedup": "off",
        "snapdir": "hidden",
        "nbmand": "off",
        "vscan": "off",
    }
    assert explicit_values("volume") == {"readonly": "off", "dedup": "off", "snapdev": "hidden"}


@given(st.from_regex(r"[a-z][a-z0-9_]{0,20}", fullmatch=True).filter(lambda name: name not in BY_NAME))
def test_a_property_that_nobody_classified_goes_to_the_place_and_to_no_copy(name: str) -> None:
    assert property_class(name) is PropertyClass.PLACE
    assert carried_names([name]) == [name]
    assert data_values({name: "on"}) == {}


@given(st.from_regex(r"[a-z0-9._-]{0,10}:[a-z0-9:._-]{0,10}", fullmatch=True))
def test_user_properties_of_others_go_to_the_place_and_ours_do_not(name: str) -> None:
    assert carried_names([name]) == ([] if name.startswith("zsnapdb:") else [name])
    assert is_user_name(name) == (not name.startswith("-"))


@given(st.sets(st.sampled_from(sorted(BY_NAME))), st.sets(st.sampled_from(sorted(BY_NAME))))
def test_what_is_carried_and_what_is_removed_make_the_place_equal(production: set[str], place: set[str]) -> None:
    wanted = set(carried_names(production))
    after = (set(carried_names(place)) - set(removed_names(place, wanted))) | wanted
    assert after == wanted


def test_limits_are_set_after_the_room_is_known() -> None:
    assert set(GUARANTEES) < set(SPACE)
    assert all(property_class(name) is PropertyClass.PLACE for name in SPACE)


def test_no_copy_writes_past_the_arc_whatever_its_source_does() -> None:
    assert data_values({"direct": "always", "recordsize": "16384"}) == {"direct": "disabled", "recordsize": "16384"}
    assert data_values({"recordsize": "16384"}) == {"recordsize": "16384"}
