"""Destroying a clone: own commits never keep it, and what another clone depends on goes to that clone."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from zsnapdb.planning.clone.destroy_plan import CommitSnapshot, OwnSnapshot, Promotion, Removal, removal

LIFE = "tank/clones/life"
CHILD = "tank/clones/child/r1"
OTHER = "tank/clones/other/r1"


def test_a_commit_that_nothing_depends_on_goes_with_its_clone() -> None:
    planned = removal({LIFE: "", f"{LIFE}/r1": "tank/db@a"}, [OwnSnapshot(f"{LIFE}/r1", "c1", 10, "c1")], {})
    assert planned == Removal((), (f"{LIFE}/r1", LIFE), (CommitSnapshot(f"{LIFE}/r1", f"{LIFE}/r1@c1", "c1"),), {})


def test_a_revision_made_from_an_own_commit_is_destroyed_before_that_commit() -> None:
    origins = {LIFE: "", f"{LIFE}/r1": "tank/db@a", f"{LIFE}/r2": f"{LIFE}/r1@c1"}
    snapshots = [OwnSnapshot(f"{LIFE}/r1", "c1", 10, "c1", (f"{LIFE}/r2",))]
    planned = removal(origins, snapshots, {})
    assert planned.datasets == (f"{LIFE}/r2", f"{LIFE}/r1", LIFE)
    assert planned.removed == ("c1",)
    assert planned.promotions == ()


def test_a_commit_that_another_clone_depends_on_goes_to_that_clone_and_older_commits_go() -> None:
    snapshots = [
        OwnSnapshot(f"{LIFE}/r1", "c1", 10, "c1"),
        OwnSnapshot(f"{LIFE}/r1", "c2", 20, "c2", (CHILD,)),
        OwnSnapshot(f"{LIFE}/r1", "c3", 30, "c3"),
    ]
    planned = removal({f"{LIFE}/r1": "tank/db@a"}, snapshots, {CHILD: "child"})
    assert planned.promotions == (Promotion(CHILD, "child"),)
    assert planned.kept == {"c2": "child"}
    assert [snapshot.name for snapshot in planned.snapshots] == [f"{CHILD}@c1", f"{LIFE}/r1@c3"]


def test_two_clones_of_one_commit_need_one_hand_over() -> None:
    snapshots = [OwnSnapshot(f"{LIFE}/r1", "c1", 10, "c1", (OTHER, CHILD))]
    planned = removal({f"{LIFE}/r1": "tank/db@a"}, snapshots, {CHILD: "child", OTHER: "other"})
    assert planned.promotions == (Promotion(CHILD, "child"),)
    assert planned.kept == {"c1": "child"}


def test_a_clone_of_a_commit_of_a_revision_made_from_a_commit_is_promoted_past_both() -> None:
    origins = {f"{LIFE}/r1": "tank/db@a", f"{LIFE}/r2": f"{LIFE}/r1@c1"}
    snapshots = [
        OwnSnapshot(f"{LIFE}/r1", "c1", 10, "c1", (f"{LIFE}/r2",)),
        OwnSnapshot(f"{LIFE}/r2", "c2", 20, "c2", (CHILD,)),
    ]
    planned = removal(origins, snapshots, {CHILD: "child"})
    assert planned.promotions == (Promotion(CHILD, "child"), Promotion(CHILD, "child"))
    assert planned.datasets == (f"{LIFE}/r2", f"{LIFE}/r1")
    assert planned.removed == ()


@st.composite
def families(draw: st.DrawFn) -> tuple[dict[str, str], list[OwnSnapshot], dict[str, str]]:
    """Revisions of a clone, each made from a commit of an older one or from outside; other clones of their commits."""
    count = draw(st.integers(1, 4))
    origins: dict[str, str] = {}
    made: list[tuple[str, int]] = []
    clones: dict[tuple[str, int], list[str]] = {}
    txg = 0
    for revision in range(1, count + 1):
        dataset = f"{LIFE}/r{revision}"
        base = draw(st.none() | st.sampled_from(made)) if made else None
        origins[dataset] = f"{base[0]}@c{base[1]}" if base else "tank/db@a"
        if base:
            clones[base].append(dataset)
        for _ in range(draw(st.integers(0, 3))):
            txg += 1
            made.append((dataset, txg))
            clones[(dataset, txg)] = []
    heirs: dict[str, str] = {}
    for number in range(draw(st.integers(0, 4)) if made else 0):
        heir = f"tank/clones/h{number}/r1"
        heirs[heir] = f"h{number}"
        clones[draw(st.sampled_from(made))].append(heir)
    snapshots = [OwnSnapshot(on, f"c{txg}", txg, f"c{txg}", tuple(clones[on, txg])) for on, txg in made]
    return origins, snapshots, heirs


class _Pool:
    """Datasets with their origins, and snapshots; it refuses what `zfs` refuses."""

    def __init__(self, origins: dict[str, str], snapshots: list[OwnSnapshot], heirs: dict[str, str]) -> None:
        self.snapshots = {s.full_name: s.createtxg for s in snapshots}
        self.origins = dict(origins)
        self.origins |= {heir: s.full_name for heir in heirs for s in snapshots if heir in s.clones}

    def promote(self, heir: str) -> None:
        base = self.origins[heir]
        parent = base.partition("@")[0]
        renamed = {
            name: f"{heir}@{name.partition('@')[2]}"
            for name, txg in self.snapshots.items()
            if name.partition("@")[0] == parent and txg <= self.snapshots[base]
        }
        self.snapshots = {renamed.get(name, name): txg for name, txg in self.snapshots.items()}
        before = self.origins[parent]
        self.origins = {name: renamed.get(origin, origin) for name, origin in self.origins.items()}
        self.origins[heir], self.origins[parent] = before, renamed[base]

    def destroy(self, name: str) -> None:
        if "@" in name:
            assert name not in self.origins.values(), "a snapshot with clones is never destroyed"
            del self.snapshots[name]
            return
        assert not any(snapshot.partition("@")[0] == name for snapshot in self.snapshots)
        assert not any(other.startswith(name + "/") for other in self.origins)
        del self.origins[name]


@given(families())
def test_whatever_depends_on_whatever_nothing_of_the_clone_stays_and_no_other_clone_loses_its_data(
    family: tuple[dict[str, str], list[OwnSnapshot], dict[str, str]],
) -> None:
    origins, snapshots, heirs = family
    planned = removal(origins, snapshots, heirs)
    pool = _Pool(*family)
    for step in planned.promotions:
        pool.promote(step.dataset)
    for dataset in planned.datasets:
        for snapshot in planned.snapshots:
            if snapshot.dataset == dataset:
                pool.destroy(snapshot.name)
        pool.destroy(dataset)
    for snapshot in planned.snapshots:
        if snapshot.dataset not in origins:
            pool.destroy(snapshot.name)
    assert set(pool.origins) == set(heirs)
    assert {name.partition("@")[2] for name in pool.snapshots} == set(planned.kept)
    assert set(planned.kept) | set(planned.removed) == {snapshot.commit for snapshot in snapshots}
    assert not (set(planned.kept) & set(planned.removed))
