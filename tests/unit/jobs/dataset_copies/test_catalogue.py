"""Copies of every kind are listed by the properties of their datasets, whatever somebody wrote into one of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.unit.support import clone_pool, machine_pool
from tests.unit.support.clone_pool import Thing
from tests.unit.support.machine_pool import MachinePool
from zsnapdb.base.errors import DamagedError, PreflightError, UnknownNameError
from zsnapdb.config.settings import CloneSettings, MachineSettings, Settings
from zsnapdb.jobs.base.host import THIS_HOST
from zsnapdb.jobs.clone import cached_sets, clone_info
from zsnapdb.jobs.clone import catalogue as clones
from zsnapdb.jobs.clone.cached_sets import RECEIVED
from zsnapdb.jobs.dataset_copies import catalogue
from zsnapdb.jobs.dataset_copies.catalogue import KnownCopies, NamedCopy
from zsnapdb.jobs.vm import catalogue as machines
from zsnapdb.planning.clone.pool import PoolMark

STAMP = "2026-11-22T00:00:00Z"
SETS = ("zdb-20261122T000000Z-aaaaaaaa", "zdb-20261122T000000Z-bbbbbbbb")
NAMES = ("one", "two")
JUNK = ("", "-", "redy", "no\x0bline", "\x1b[2J", "-7", "9" * 40, "../../etc")
Known = Callable[[Settings], KnownCopies[Any]]
KINDS: dict[str, tuple[Known, str, tuple[str, str]]] = {
    "clone": (lambda settings: clones.known_clones(settings, THIS_HOST), clone_pool.HOME, NAMES),
    "machine": (machines.known_machines, f"{machine_pool.HOME}/machines", NAMES),
    "base": (machines.known_bases, f"{machine_pool.HOME}/bases", NAMES),
    "received set": (lambda settings: cached_sets.known_sets(settings, RECEIVED), "tank/zsnapdb/received", SETS),
}


@pytest.fixture
def pool(monkeypatch: pytest.MonkeyPatch) -> MachinePool:
    """A pool with two complete copies of each kind."""
    pool = MachinePool()
    pool.install(monkeypatch)
    for name in NAMES:
        dataset = pool.clone(name, pool.snapshot(f"tank/mysql@zsnapdb-{name}"), protected="no")
        assert dataset.startswith(clone_pool.HOME)
    pool.things[machine_pool.HOME] = Thing()
    common = {"phase": "ready", "created": STAMP, "vm-base": "pxc", "vm-uuid": "u", "vm-network": "user"}
    leased = {"owner": "ada", "expires": STAMP, "protected": "no", "vm-identity": "none"}
    make(pool, f"{machine_pool.HOME}/machines", "vm", NAMES, {**common, **leased}, "vda")
    make(pool, f"{machine_pool.HOME}/bases", "vm-base", NAMES, {**common, "vm-domain": "", "vm-made-of": "x"}, "vda")
    kept = {"phase": "ready", "source": "backup", "instance": "main", "origin": clone_pool.origin().encode()}
    make(pool, "tank/zsnapdb/received", "kept", SETS, {**kept, "used": STAMP, "point": "-"}, "c")
    return pool


def make(pool: MachinePool, home: str, mark: str, names: tuple[str, ...], facts: dict[str, str], child: str) -> None:
    pool.things[home] = Thing()
    for name in names:
        values = {**facts, mark: name}
        pool.things[f"{home}/{name}"] = Thing({f"zsnapdb:{key}": value for key, value in values.items()})
        below = {f"zsnapdb:{mark}": name, "zsnapdb:role": "data", "volsize": "33554432"}
        pool.things[f"{home}/{name}/{child}"] = Thing(below)


def settings() -> Settings:
    places = MachineSettings(dataset=machine_pool.HOME, folder=Path("/nowhere"))
    return Settings.model_construct(
        instance={}, repository={}, clones=CloneSettings(dataset=clone_pool.HOME), vms=places
    )


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_copy_is_listed_and_found_by_its_name(pool: MachinePool, kind: str) -> None:
    listing, _, (one, two) = KINDS[kind]
    known = listing(settings())
    assert ([copy.name for copy in known.copies], known.unreadable) == ([one, two], [])
    found: NamedCopy = catalogue.find(known, two)
    assert found is known.copies[1]
    with pytest.raises(UnknownNameError, match="there is no") as error:
        catalogue.find(known, "three")
    assert one in str(error.value.hint)


@pytest.mark.parametrize("junk", JUNK)
@pytest.mark.parametrize("kind", KINDS)
def test_a_copy_with_an_altered_property_hides_no_other_and_is_no_other_itself(
    pool: MachinePool, kind: str, junk: str
) -> None:
    listing, home, (one, two) = KINDS[kind]
    anchor = pool.things[f"{home}/{one}"].properties
    for key in [key for key in anchor if key.startswith("zsnapdb:")]:
        whole, anchor[key] = anchor[key], junk
        known = listing(settings())
        assert two in [copy.name for copy in known.copies], key
        named = {copy.name for copy in known.copies} | {item.name for item in known.unreadable}
        assert named == {one, two}, key
        anchor[key] = whole


@pytest.mark.parametrize("kind", KINDS)
def test_a_copy_whose_phase_says_nothing_is_named_with_what_to_do_and_is_not_used(pool: MachinePool, kind: str) -> None:
    listing, home, (one, two) = KINDS[kind]
    pool.things[f"{home}/{one}"].properties["zsnapdb:phase"] = "redy"
    known = listing(settings())
    (item,) = known.unreadable
    assert ([copy.name for copy in known.copies], item.anchor) == ([two], f"{home}/{one}")
    with pytest.raises(DamagedError, match="zsnapdb:phase is 'redy'") as error:
        catalogue.find(known, one)
    assert f"zfs get all {home}/{one}" in str(error.value.hint)
    with pytest.raises(DamagedError):
        catalogue.find_or_none(known, one)


@pytest.mark.parametrize("owner", ["ada", "root", "user:ada@example.org", clone_info.POOL_OWNER])
@pytest.mark.parametrize("mark", PoolMark)
def test_clone_with_a_user_is_no_clone_of_the_pool(pool: MachinePool, mark: PoolMark, owner: str) -> None:
    """A pool gives its clones to other users, or removes them."""
    listing, home, (one, two) = KINDS["clone"]
    changed = {"zsnapdb:pool": mark, "zsnapdb:owner": owner, "zsnapdb:label": "handed-out"}
    pool.things[f"{home}/{one}"].properties |= changed
    known = listing(settings())
    is_taken = mark.is_of_nobody and owner != clone_info.POOL_OWNER
    assert [copy.name for copy in known.copies] == ([two] if is_taken else [one, two])
    for item in known.unreadable:
        with pytest.raises(DamagedError):
            clones.find(settings(), THIS_HOST, "handed-out")
        assert f"its zsnapdb:pool is {mark}, but it has a user" in item.reason
        assert f"`zfs inherit zsnapdb:pool {home}/{one}`" in item.reason


@pytest.mark.parametrize("phase", ["making", "destroying"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_half_made_copy_is_listed_and_not_used(pool: MachinePool, kind: str, phase: str) -> None:
    listing, home, (one, _) = KINDS[kind]
    pool.things[f"{home}/{one}"].properties["zsnapdb:phase"] = phase
    known = listing(settings())
    with pytest.raises(PreflightError, match=f"not complete \\(phase {phase}\\)"):
        catalogue.complete(known.what, catalogue.find(known, one))


@pytest.mark.parametrize("kind", KINDS)
def test_what_others_made_below_a_copy_is_no_part_of_it(pool: MachinePool, kind: str) -> None:
    listing, home, (one, _) = KINDS[kind]
    before = listing(settings()).copies
    # It has the mark of the anchor above it, which it inherited.
    pool.things[f"{home}/{one}/vdz"] = Thing({"volsize": "33554432", "zsnapdb:role": "data"})
    pool.things[f"{home}/foreign"] = Thing({"zsnapdb:phase": "ready"})
    assert listing(settings()).copies == before


@pytest.mark.parametrize("is_name_taken", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_copy_whose_dataset_was_renamed_is_named(pool: MachinePool, kind: str, is_name_taken: bool) -> None:
    listing, home, (one, two) = KINDS[kind]
    for name in [name for name in pool.things if name == f"{home}/{two}" or name.startswith(f"{home}/{two}/")]:
        thing = pool.things[name] if is_name_taken else pool.things.pop(name)
        pool.things[f"{home}/moved{name.removeprefix(f'{home}/{two}')}"] = thing
    known = listing(settings())
    assert [copy.name for copy in known.copies] == ([one, two] if is_name_taken else [one])
    (moved,) = known.unreadable
    assert (moved.name, moved.anchor) == ("moved", f"{home}/moved")
    assert f" is {two}: another program renamed its dataset" in moved.reason
    assert f"`zfs rename -u {home}/moved {home}/{two}`" in moved.hint
    for name in ("moved",) if is_name_taken else ("moved", two):
        with pytest.raises(DamagedError, match="another program renamed"):
            catalogue.find(known, name)
    if is_name_taken:
        assert catalogue.find(known, two) is known.copies[1]


def test_a_home_in_another_pool_than_the_data_is_refused_by_the_name_of_its_setting() -> None:
    assert catalogue.home(None, "tank", "zsnapdb/clones", "clones.dataset") == "tank/zsnapdb/clones"
    with pytest.raises(PreflightError, match=r"clones\.dataset other/x is not in the pool tank"):
        catalogue.home("other/x", "tank", "zsnapdb/clones", "clones.dataset")


def test_clone_that_two_pools_have_is_neither_shown_nor_destroyed(pool: MachinePool) -> None:
    """A pool that was split, or received from another host, has the same names and properties."""
    _, home, (one, two) = KINDS["clone"]
    second = "second/zsnapdb/clones"
    for name in ("second", "second/zsnapdb", second):
        pool.things[name] = Thing()
    for name in [name for name in pool.things if name.startswith(f"{home}/{one}")]:
        pool.things[second + name[len(home) :]] = replace(pool.things[name])
    seen = catalogue.known_copies("clone", [home, second], ["guid"], "zsnapdb:clone", lambda found: found.name)
    assert list(seen.copies) == [two]
    assert [item.anchor for item in seen.unreadable] == [f"{home}/{one}", f"{second}/{one}"]
    assert f"{home}/{one} and {second}/{one}" in seen.unreadable[0].reason
