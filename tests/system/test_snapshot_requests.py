"""The library and the `zfs` commands change snapshots alike: a whole set at once, all or none, with the reason."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from zsnapdb.base import safe_open
from zsnapdb.base.errors import ExistsError, NotFound, ZsnapdbError
from zsnapdb.zfs import datasets, holds, kernel_facts, libzfs, snapshot_files, snapshots, version
from zsnapdb.zfs.snapshot_files import snapshot_names

from .in_guest import zfs

pytestmark = [pytest.mark.usefixtures("first"), pytest.mark.any_server]

TAG = holds.HOLD_TAG


@pytest.fixture(params=["library", "command"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Whether the library or the commands change the snapshots."""
    assert libzfs.load() is not None
    if request.param == "command":
        monkeypatch.setattr(libzfs, "load", lambda: None)
    return str(request.param)


@pytest.fixture
def make(way: str) -> Any:
    library = libzfs.load()
    return snapshots.by_command if library is None else library.snapshot


@pytest.fixture
def scratch() -> Iterator[list[str]]:
    zfs("create", "-o", "mountpoint=none", "tank/scratch")
    zfs("create", "tank/scratch/below")
    yield ["tank/scratch", "tank/scratch/below"]
    zfs("destroy", "-r", "tank/scratch")


def test_snapshots_are_of_one_transaction_group_and_carry_their_properties(make: Any, scratch: list[str]) -> None:
    value = "x" * 8191
    make([f"{dataset}@s" for dataset in scratch], {"zsnapdb:backup": "one two", "zsnapdb:position": value})
    made = snapshots.describe([f"{dataset}@s" for dataset in scratch])
    snapshots.check_one_group(made)
    for dataset in scratch:
        assert zfs("get", "-H", "-o", "value,source", "zsnapdb:backup,zsnapdb:position", f"{dataset}@s") == [
            "one two\tlocal",
            f"{value}\tlocal",
        ]


@pytest.mark.parametrize(
    ("names", "error"),
    [
        (("tank/scratch@s", "tank/scratch/below@old"), ExistsError),
        (("tank/scratch@s", "tank/nowhere@s"), NotFound),
    ],
)
def test_either_all_snapshots_are_made_or_none_and_the_reason_is_told(
    make: Any, scratch: list[str], names: tuple[str, ...], error: type
) -> None:
    zfs("snapshot", "tank/scratch/below@old")
    with pytest.raises(error) as caught:
        make(list(names), {"zsnapdb:backup": "x"})
    assert isinstance(caught.value, ZsnapdbError)
    assert names[1] in caught.value.message
    assert zfs("list", "-H", "-t", "snapshot", "-o", "name", "-r", "tank/scratch") == ["tank/scratch/below@old"]


def test_a_property_that_is_too_long_makes_no_snapshot(make: Any, scratch: list[str]) -> None:
    with pytest.raises(ZsnapdbError):
        make(["tank/scratch@s"], {"zsnapdb:position": "x" * 8193})
    assert zfs("list", "-H", "-t", "snapshot", "-o", "name", "-r", "tank/scratch") == []


@pytest.fixture
def pair(scratch: list[str]) -> Iterator[list[str]]:
    names = [f"{dataset}@s" for dataset in scratch]
    zfs("snapshot", *names)
    yield names
    for name in zfs("list", "-H", "-r", "-t", "snapshot", "-o", "name", scratch[0]):
        for tag in holds.hold_tags(name):
            zfs("release", tag, name)


def test_a_hold_is_on_all_snapshots_and_can_be_asked_for_again_and_released_again(way: str, pair: list[str]) -> None:
    holds.hold(pair[:1])
    assert holds.snapshots_with_hold(pair) == pair[:1]
    holds.ensure_held(pair, TAG)
    assert [holds.hold_tags(name) for name in pair] == [(TAG,), (TAG,)]
    with pytest.raises(ZsnapdbError):
        holds.hold(pair)
    zfs("release", TAG, pair[0])
    holds.release(pair)
    holds.release(pair)
    assert holds.snapshots_with_hold(pair) == []


def test_what_is_not_there_cannot_be_held_or_bookmarked_and_the_reason_is_told(way: str, pair: list[str]) -> None:
    zfs("destroy", pair[1])
    with pytest.raises(NotFound) as caught:
        holds.hold(pair)
    assert pair[1] in caught.value.message
    with pytest.raises(NotFound):
        snapshots.bookmark(pair)


@pytest.mark.parametrize("missing", [(0,), (1,), (0, 1)])
def test_a_hold_that_meets_a_missing_snapshot_holds_none_and_names_exactly_the_missing(
    way: str, pair: list[str], missing: tuple[int, ...]
) -> None:
    gone, there = [pair[each] for each in missing], [name for name in pair if pair.index(name) not in missing]
    for name in there:
        zfs("hold", "somebody", name)
    for name in gone:
        zfs("destroy", name)
    with pytest.raises(NotFound) as caught:
        holds.hold(pair)
    assert gone[0] in caught.value.message
    assert way == "command" or [name for name in pair if name in caught.value.message] == gone
    assert [holds.hold_tags(name) for name in there] == [("somebody",)] * len(there)


def test_a_hold_that_one_snapshot_has_already_leaves_the_other_without_one(way: str, pair: list[str]) -> None:
    for order in (pair, pair[::-1]):
        holds.hold(pair[:1])
        with pytest.raises(ZsnapdbError):
            holds.hold(order)
        assert [holds.hold_tags(name) for name in pair] == [(TAG,), ()]
        holds.release(pair)


def test_a_hold_that_somebody_else_released_counts_as_released(way: str, pair: list[str]) -> None:
    holds.hold(pair)
    zfs("release", TAG, pair[1])
    holds.release(pair)
    assert holds.snapshots_with_hold(pair) == []


def test_each_snapshot_has_one_bookmark_however_often_it_is_asked_for(way: str, pair: list[str]) -> None:
    made = snapshots.describe(pair)
    snapshots.bookmark(pair[:1])
    snapshots.bookmark(pair)
    snapshots.bookmark(pair)
    assert [snapshots.bookmarks([each.dataset])[each.dataset] for each in made] == [
        {each.guid: each.full_name.replace("@", "#")} for each in made
    ]


def test_a_hold_and_properties_are_set_together_and_any_text_stays_as_it_is(way: str, pair: list[str]) -> None:
    values = {"zsnapdb:position": "x" * 8191, "zsnapdb:lock": 'a "b" = \\ ]] \u00e4\n--'}
    holds.keep(pair, values, {})
    assert holds.snapshots_with_hold(pair) == pair
    for name in pair:
        seen = zfs("get", "-H", "-p", "-o", "value", ",".join(values), name)
        assert "\n".join(seen) == "\n".join(values.values())


def test_what_a_backup_is_made_of_is_held_and_bookmarked_with_its_base_and_given_back(
    way: str, pair: list[str], scratch: list[str]
) -> None:
    bases = {f"{dataset}@base": "zsnapdb:base" for dataset in scratch}
    zfs("snapshot", *bases)
    # A killed run has left a hold on one of them.
    zfs("hold", "zsnapdb:base", next(iter(bases)))
    holds.keep(pair, {"zsnapdb:state": "taken"}, bases)
    assert holds.snapshots_with_hold(pair) == pair
    assert holds.snapshots_with_hold(list(bases), "zsnapdb:base") == list(bases)
    marked = [snapshots.bookmarks([dataset])[dataset] for dataset in scratch]
    assert [list(each.values()) for each in marked] == [[name.replace("@", "#")] for name in pair]
    holds.keep(pair, {"zsnapdb:state": "again"}, bases)
    holds.give_back(pair, {"zsnapdb:state": "stored"}, bases)
    holds.give_back(pair, {"zsnapdb:state": "stored"}, bases)
    for name in (*pair, *bases):
        assert holds.hold_tags(name) == ()
    assert [zfs("get", "-H", "-o", "value", "zsnapdb:state", name) for name in pair] == [["stored"], ["stored"]]
    assert [snapshots.bookmarks([dataset])[dataset] for dataset in scratch] == marked


def test_a_property_that_is_too_long_is_refused_with_the_reason_of_the_command(way: str, pair: list[str]) -> None:
    with pytest.raises(ZsnapdbError) as caught:
        holds.keep(pair, {"zsnapdb:position": "x" * 8193}, {})
    assert "zfs set" in caught.value.message
    assert holds.snapshots_with_hold(pair) == pair, "the hold has ended when the error is raised"


def test_the_library_sets_the_properties_of_a_set_without_a_command(
    pair: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(argv: list[str], timeout: float = 0.0) -> str:
        raise AssertionError(argv)

    with monkeypatch.context() as without:
        without.setattr(snapshots, "run", refuse)
        holds.keep(pair, {"zsnapdb:state": "taken"}, {})
    for name in pair:
        assert zfs("get", "-H", "-o", "value,source", "zsnapdb:state", name) == ["taken\tlocal"]


@pytest.fixture
def volume() -> Iterator[Path]:
    """The mount point of `tank/files`, whose file was changed after the snapshot `s`."""
    mountpoint = Path("/mnt/files")
    zfs("create", "-o", f"mountpoint={mountpoint}", "tank/files")
    try:
        (mountpoint / "a").write_text("then")
        zfs("snapshot", "tank/files@s")
        (mountpoint / "a").write_text("now")
        yield mountpoint
    finally:
        zfs("destroy", "-r", "tank/files")


def test_the_files_of_a_snapshot_are_read_without_a_mount_that_others_see_or_that_stays(volume: Path) -> None:
    mounts = Path("/proc/self/mountinfo").read_text()
    with snapshot_files.root_of("tank/files@s", volume) as root:
        assert safe_open.read_text(root / "a") == "then"
        assert Path("/proc/self/mountinfo").read_text() == mounts
        with pytest.raises(OSError, match="Read-only"):
            (root / "a").write_text("changed")
    with pytest.raises(NotFound) as caught, snapshot_files.root_of("tank/files@s", volume) as root:
        raise NotFound(f"{root}/b is not there", hint="none")
    assert caught.value.message == f"{volume}/.zfs/snapshot/s/b is not there"
    assert str(caught.value).startswith(str(volume))
    zfs("destroy", "tank/files@s")


def test_without_the_right_to_mount_the_files_of_a_snapshot_are_below_zfs(
    volume: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshot_files, "_mounted", lambda snapshot: None)
    with snapshot_files.root_of("tank/files@s", volume) as root:
        assert root.is_relative_to(volume)
        assert safe_open.read_text(root / "a") == "then"


AS_DELEGATED = """
import sys
from zsnapdb.zfs import holds, libzfs, snapshots
names = sys.argv[1:]
assert libzfs.load() is not None
made = snapshots.PendingSnapshots.of(names, {"zsnapdb:state": "taken"})
made.start()
made.finish()
holds.keep(names, {"zsnapdb:position": "proved"}, {})
snapshots.check_one_group(snapshots.describe(names))
print(*holds.snapshots_with_hold(names))
holds.release(names)
"""


def test_an_account_with_delegated_rights_changes_snapshots_as_root_does(scratch: list[str]) -> None:
    zfs("allow", "nobody", "snapshot,hold,release,bookmark,userprop,mount", scratch[0])
    names = [f"{dataset}@s" for dataset in scratch]
    done = subprocess.run(
        [sys.executable, "-c", AS_DELEGATED, *names],
        user="nobody",
        env={**os.environ, "PYTHONPATH": str(Path(libzfs.__file__).parents[2])},
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout.split()) == (0, names), done.stderr
    assert holds.snapshots_with_hold(names) == []
    for dataset, name in zip(scratch, names, strict=True):
        assert zfs("get", "-H", "-o", "value", "zsnapdb:state,zsnapdb:position", name) == ["taken", "proved"]
        assert len(snapshots.bookmarks([dataset])[dataset]) == 1


def test_the_library_and_the_module_say_what_the_commands_say(
    scratch: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    zfs("snapshot", "tank/scratch@s")
    zfs("bookmark", "tank/scratch@s", "tank/scratch#b")
    names = [*scratch, "tank", "tank/scratch@s", "tank/scratch#b", "tank/nothing", "tank/scratch@none", "nopool"]
    names += ["tank/" + "x" * 240, "tank/" + "x" * 260]
    asked = [existence(name) for name in names]
    facts = datasets.pools(), version.pool_guid("tank"), version.kernel_release()
    monkeypatch.setattr(libzfs, "load", lambda: None)
    for name in ("MODULE", "POOLS"):
        monkeypatch.setattr(kernel_facts, name, Path("/nonexistent"))
    assert asked == [existence(name) for name in names]
    assert facts == (datasets.pools(), version.pool_guid("tank"), version.kernel_release())
    assert (facts[0], True in asked, False in asked) == (["tank"], True, True)


def test_the_kernel_says_of_a_set_what_the_command_says(
    scratch: list[str], pair: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half of all GUIDs do not fit into a number with a sign, as a channel program has them."""
    more = [f"{dataset}@n{number}" for number in range(8) for dataset in scratch]
    for at in range(0, len(more), 2):
        zfs("snapshot", *more[at : at + 2])
    asked: list[list[str]] = []
    with monkeypatch.context() as without:
        without.setattr(snapshots, "table", lambda argv, columns: asked.append(argv))
        said = snapshots.describe([*more, *pair])
    assert asked == []
    monkeypatch.setattr(libzfs, "load", lambda: None)
    assert said == snapshots.describe([*more, *pair])
    assert max(each.guid for each in said) >= 1 << 63
    snapshots.check_one_group(said[:2])
    assert len({each.createtxg for each in said}) == len(said) // 2


@pytest.mark.parametrize(
    "name", ["tank/scratch@none", "tank/nothing@s", "tank/scratch", "nopool@s", "tank@" + "x" * 260]
)
def test_the_facts_of_what_is_no_snapshot_are_refused_with_the_reason(way: str, pair: list[str], name: str) -> None:
    with pytest.raises(ZsnapdbError) as caught:
        snapshots.describe([*pair, name])
    assert name in caught.value.message


def existence(name: str) -> bool | str:
    """Return what is said about the name, or that it is refused."""
    try:
        return datasets.exists(name)
    except ZsnapdbError:
        return "refused"


def test_one_command_reads_the_points_of_all_datasets(scratch: list[str]) -> None:
    zfs("snapshot", *(f"{dataset}@one" for dataset in scratch))
    zfs("bookmark", "tank/scratch@one", "tank/scratch#one")
    zfs("snapshot", "tank/scratch@two")
    zfs("destroy", "tank/scratch@one")
    points = snapshots.send_points(scratch)
    assert {place: sorted(point.names.values()) for place, point in points.items()} == {
        "tank/scratch": ["tank/scratch#one", "tank/scratch@two"],
        "tank/scratch/below": ["tank/scratch/below@one"],
    }
    assert snapshots.send_points_there([*scratch, "tank/nothing"]) == points
    with pytest.raises(NotFound):
        snapshots.send_points([*scratch, "tank/nothing"])


@pytest.fixture
def shown(tmp_path: Path) -> Iterator[Path]:
    """The place of the mounted filesystem tank/shown."""
    place = tmp_path / "shown"
    zfs("create", "-o", f"mountpoint={place}", "tank/shown")
    yield place
    zfs("destroy", "-r", "tank/shown")


def test_the_kernel_names_the_snapshots_of_a_mounted_filesystem_as_zfs_does(shown: Path) -> None:
    zfs("snapshot", "tank/shown@one")
    zfs("snapshot", "tank/shown@two")
    first = snapshot_names(["tank/shown"])
    assert first is not None
    listed = zfs("list", "-H", "-o", "name,objsetid", "-t", "snapshot", "tank/shown")
    objects = {line.split("@")[1].split("\t")[0]: int(line.split("\t")[1]) for line in listed}
    numbers = first["tank/shown"].numbers
    assert numbers.keys() == objects.keys() == {"one", "two"}
    assert numbers["one"] - numbers["two"] == objects["two"] - objects["one"], "the number comes from the object"
    assert snapshot_names(["tank/shown"]) == first
    zfs("destroy", "tank/shown@one")
    zfs("snapshot", "tank/shown@three")
    again = snapshot_names(["tank/shown"])
    assert again is not None
    assert again["tank/shown"].numbers.keys() == {"two", "three"}
    assert again["tank/shown"].numbers["two"] == numbers["two"]
    assert again["tank/shown"].mount == first["tank/shown"].mount


def test_names_of_an_earlier_mount_are_told_from_those_of_this_one(shown: Path) -> None:
    before = snapshot_names(["tank/shown"])
    zfs("unmount", "tank/shown")
    assert snapshot_names(["tank/shown"]) is None
    zfs("mount", "tank/shown")
    after = snapshot_names(["tank/shown"])
    assert before is not None
    assert after is not None
    assert before["tank/shown"].mount != after["tank/shown"].mount


def test_a_folder_that_looks_like_that_of_the_snapshots_is_not_believed(shown: Path) -> None:
    zfs("snapshot", "tank/shown@real")
    subprocess.run(["mount", "-t", "tmpfs", "none", str(shown)], check=True)
    try:
        (shown / ".zfs" / "snapshot" / "planted").mkdir(parents=True)
        assert snapshot_names(["tank/shown"]) is None
    finally:
        subprocess.run(["umount", str(shown)], check=True)
    seen = snapshot_names(["tank/shown"])
    assert seen is not None
    assert seen["tank/shown"].numbers.keys() == {"real"}
