"""How far an exchange of datasets has come is known after a kill at any rename, and the way back leads back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zsnapdb.planning.restore.dataset_exchange import (
    ExchangeState,
    NamedDataset,
    judge,
    recovery_commands,
    strangers,
)
from zsnapdb.planning.restore.steps import Promote, PromotePart, place_of, replaced_suffix

ID = "20261120T093000Z-5e75"
SUFFIX = replaced_suffix(ID)
TREE = Promote(
    (
        PromotePart("parent", "tank/z/main", "tank/mysql", f"tank/mysql{SUFFIX}", "/m", 1, "on"),
        PromotePart("data", "tank/z/main/data", "tank/mysql/data", f"tank/mysql{SUFFIX}/data", "/m/data", 2, "on"),
    ),
    (("tank/mysql", f"tank/mysql{SUFFIX}"), ("tank/z/main", "tank/mysql")),
    ID,
)
BESIDE = Promote(
    (
        PromotePart("data", "tank/z/main/data", "tank/data", f"tank/data{SUFFIX}", "/data", 1, "on"),
        PromotePart("logs", "tank/z/main/logs", "tank/logs", f"tank/logs{SUFFIX}", "/logs", 2, "on"),
    ),
    (
        ("tank/data", f"tank/data{SUFFIX}"),
        ("tank/logs", f"tank/logs{SUFFIX}"),
        ("tank/z/main/data", "tank/data"),
        ("tank/z/main/logs", "tank/logs"),
    ),
    ID,
)


def before(step: Promote) -> dict[str, NamedDataset]:
    """Return what is there before an exchange: the server's own datasets, and the restored ones."""
    own = {part.place: NamedDataset(part.old_guid or 0, is_restored=False) for part in step.parts}
    return own | {part.dataset: NamedDataset(100 + at, is_restored=True) for at, part in enumerate(step.parts)}


def renamed(there: dict[str, NamedDataset], old: str, new: str) -> dict[str, NamedDataset]:
    """Return what is there after the rename of a tree of datasets."""
    return {
        new + name[len(old) :] if name == old or name.startswith(old + "/") else name: one
        for name, one in there.items()
    }


@pytest.mark.parametrize("step", [TREE, BESIDE], ids=["tree", "beside"])
def test_every_interruption_of_an_exchange_is_recognised_and_leads_back(step: Promote) -> None:
    there = before(step)
    assert judge(step, there).state is ExchangeState.BEFORE
    for made, (old, new) in enumerate(step.renames, start=1):
        there = renamed(there, old, new)
        expected = ExchangeState.IN_PLACE if made == len(step.renames) else ExchangeState.HALF
        assert (judge(step, there).state, judge(step, there).has_begun) == (expected, True)
        back = there
        for current, wanted in recovery_commands(step):
            if current in back and wanted not in back:
                back = renamed(back, current, wanted)
        assert back == before(step)


@given(lost=st.sampled_from(sorted(before(BESIDE))), made=st.integers(0, 3))
def test_a_dataset_that_is_gone_makes_an_exchange_unclear_until_it_is_done(lost: str, made: int) -> None:
    there = before(BESIDE)
    goes = there[lost]
    for old, new in BESIDE.renames[:made]:
        there = renamed(there, old, new)
    left = {name: one for name, one in there.items() if one != goes}
    assert judge(BESIDE, left).state is ExchangeState.UNCLEAR


def test_another_dataset_of_the_same_name_is_not_taken_for_the_servers_own() -> None:
    there = before(TREE) | {"tank/mysql": NamedDataset(99, is_restored=False)}
    judged = judge(TREE, there)
    assert judged.state is ExchangeState.UNCLEAR
    assert judged.reasons == (
        f"the server's own dataset of volume parent is neither tank/mysql nor tank/mysql{SUFFIX}",
    )


def test_what_was_replaced_may_be_gone_once_the_restored_datasets_are_in_place() -> None:
    there = {part.place: NamedDataset(7, is_restored=True) for part in TREE.parts}
    assert judge(TREE, there).state is ExchangeState.IN_PLACE


def test_before_anything_is_received_nothing_has_begun() -> None:
    there = {part.place: NamedDataset(part.old_guid or 0, is_restored=False) for part in TREE.parts}
    judged = judge(TREE, there)
    assert (judged.state, judged.has_begun) == (ExchangeState.UNCLEAR, False)


def test_datasets_and_mounts_inside_a_place_that_are_no_volumes_are_strangers() -> None:
    places = {"tank/mysql": "/m", "tank/mysql/data": "/m/data"}
    mounts = [
        ("/", "/dev/sda1"),
        ("/m", "tank/mysql"),
        ("/m/data", "tank/mysql/data"),
        ("/m/data/archive", "tank/elsewhere"),
        ("/srv/dumps", "tank/mysql/dumps"),
        ("/mm", "tank/mm"),
    ]
    inside = strangers(places, ["tank/mysql", "tank/mysql/data", "tank/mysql/dumps"], mounts)
    assert [(one.name, one.what) for one in inside] == [
        ("tank/mysql/dumps", "a dataset below it"),
        ("/m/data/archive", "a mount of tank/elsewhere"),
    ]


def test_mount_over_a_replaced_dataset_is_a_stranger() -> None:
    """`zfs unmount` of the dataset would unmount the mount over it, and the dataset would stay mounted."""
    places = {"tank/mysql": "/m", "tank/mysql/data": "/m/data"}
    mounts = [("/m", "old/mysql"), ("/m", "tank/mysql"), ("/m/data", "tank/mysql/data")]
    assert strangers(places, list(places), mounts) == []
    inside = strangers(places, list(places), [*mounts, ("/m", "copy/mysql"), ("/m/data", "copy/mysql/data")])
    assert [(one.name, one.what, one.covers) for one in inside] == [
        ("/m/data", "a mount of copy/mysql/data over tank/mysql/data", True),
        ("/m", "a mount of copy/mysql over tank/mysql", True),
    ]


def test_the_place_of_a_replaced_dataset_is_its_name_before() -> None:
    assert place_of(f"tank/mysql{SUFFIX}/data", ID) == "tank/mysql/data"
    assert place_of("tank/mysql/data", ID) == "tank/mysql/data"
