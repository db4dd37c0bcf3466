"""Only what carries our mark, set locally, under this exact name is destroyed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from zsnapdb.base.errors import CommandError, NotFound, NotOursError
from zsnapdb.zfs import command, datasets, destruction, holds, mounts, snapshots
from zsnapdb.zfs.destruction import Mark

MARK = Mark("zsnapdb:clone", "life")
OURS = ("life", "local")
ANCHOR = "tank/clones/life"
SNAPSHOT = f"{ANCHOR}/r1@zsnapdb-one"
BOOKMARK = f"{ANCHOR}/r1#zsnapdb-one"


@dataclass
class Zfs:
    """A scripted `zfs`: objects by full name, each with properties as value and source; and what was changed."""

    objects: dict[str, dict[str, tuple[str, str]]] = field(default_factory=dict)
    holds: dict[str, set[str]] = field(default_factory=dict)
    changes: list[str] = field(default_factory=list)
    in_use: set[str] = field(default_factory=set)

    def run(self, argv: list[str], *, timeout: float = 60.0) -> str:
        assert argv[0] == "zfs"
        if argv[1] == "get":
            return self._get(argv)
        if argv[1] == "list":
            return self._list(argv)
        if argv[1] == "holds":
            return "".join(f"{argv[-1]}\t{tag}\tnow\n" for tag in self.holds.get(argv[-1], ()))
        return self._change(argv)

    def _look(self, name: str, key: str) -> tuple[str, str]:
        if name not in self.objects:
            raise NotFound(f"{name}: dataset does not exist")
        return self.objects[name].get(key, ("-", "-"))

    def _get(self, argv: list[str]) -> str:
        columns, keys, *names = argv[argv.index("-o") + 1 :]
        if "-r" in argv:
            names = [name for name in self.objects if name == names[0] or name.startswith(names[0] + "/")]
            names = [name for name in names if "@" not in name and "#" not in name]
        lines = []
        for name in names:
            for key in keys.split(","):
                value, source = self._look(name, key)
                row = {"name": name, "property": key, "value": value, "source": source}
                lines.append("\t".join(row[column] for column in columns.split(",")) + "\n")
        return "".join(lines)

    def _list(self, argv: list[str]) -> str:
        options = {word: argv[n + 1] for n, word in enumerate(argv) if word in ("-o", "-t")}
        places = [word for word in argv[argv.index("-t") + 2 :] if "/" in word]
        if options["-t"] == "all" or "-d" not in argv:
            names = places
            for name in names:
                self._look(name, "guid")
        else:
            separator = "#" if options["-t"] == "bookmark" else "@"
            names = [other for other in self.objects for name in places if other.startswith(name + separator)]
        columns = options["-o"].split(",")
        return "".join(
            "\t".join(other if column == "name" else self._look(other, column)[0] for column in columns) + "\n"
            for other in names
        )

    def _change(self, argv: list[str]) -> str:
        assert argv[1] in ("destroy", "unmount", "release", "rollback", "receive")
        if argv[-1] in self.in_use and argv[1] in ("destroy", "unmount"):
            raise CommandError(f"cannot unmount '/{argv[-1]}': it is open")
        if argv[1] == "destroy":
            _, _, words = argv  # No flag: never recursive, never forced.
            dataset, separator, short = words.partition("@")
            names = [f"{dataset}{separator}{part}" for part in short.split(",")]
            for name in names:
                if self.objects.get(name, {}).get("receive_resume_token"):
                    raise CommandError(f"{name}: filesystem has children")
                if self.holds.get(name):
                    raise CommandError(f"{name}: dataset is busy")
            for name in names:
                del self.objects[name]
        if argv[1] == "receive":
            assert argv[2:-1] == ["-A"]
            if any(other.startswith(f"{argv[-1]}@") for other in self.objects):
                del self.objects[argv[-1]]["receive_resume_token"]
            else:
                del self.objects[argv[-1]]
        if argv[1] == "release":
            self.holds[argv[-1]].remove(argv[2])
        self.changes.append(" ".join(argv[1:]))
        return ""

    @property
    def destroyed(self) -> list[str]:
        return [change.removeprefix("destroy ") for change in self.changes if change.startswith("destroy ")]


@pytest.fixture
def zfs(monkeypatch: pytest.MonkeyPatch) -> Zfs:
    scripted = Zfs()
    for module in (command, datasets, holds, snapshots):
        monkeypatch.setattr(module, "run", scripted.run)
    monkeypatch.setattr(mounts, "mounted_datasets", lambda: {name for name in scripted.objects if "@" not in name})
    scripted.objects = {
        ANCHOR: {"zsnapdb:clone": OURS},
        f"{ANCHOR}/r1": {"zsnapdb:clone": OURS},
        SNAPSHOT: {"guid": ("11", "-"), "createtxg": ("5", "-"), "zsnapdb:backup": ("one", "local")},
        BOOKMARK: {"guid": ("11", "-")},
    }
    return scripted


FOREIGN = {
    "unset": ("-", "-"),
    "inherited": ("life", f"inherited from {ANCHOR}"),
    "received": ("life", "received"),
    "of another": ("other", "local"),
}


@pytest.mark.parametrize("seen", FOREIGN.values(), ids=FOREIGN)
def test_a_dataset_without_the_mark_set_locally_is_refused_and_nothing_is_destroyed(
    zfs: Zfs, seen: tuple[str, str]
) -> None:
    zfs.objects[f"{ANCHOR}/r1"]["zsnapdb:clone"] = seen
    before = dict(zfs.objects)
    with pytest.raises(NotOursError) as refusal:
        destruction.destroy_datasets([ANCHOR, f"{ANCHOR}/r1"], MARK, with_snapshots=True)
    assert zfs.objects == before
    assert zfs.changes == []
    assert refusal.value.name == f"{ANCHOR}/r1"
    assert (refusal.value.property_name, refusal.value.value, refusal.value.source) == ("zsnapdb:clone", *seen)


def test_the_refusal_says_the_name_the_property_and_its_value(zfs: Zfs) -> None:
    zfs.objects[ANCHOR]["zsnapdb:clone"] = ("life", "inherited from tank")
    with pytest.raises(NotOursError, match=f"^{ANCHOR} is not ours.*zsnapdb:clone is life \\(inherited from tank\\)"):
        destruction.destroy_datasets([ANCHOR], MARK)
    zfs.objects[ANCHOR] = {}
    with pytest.raises(NotOursError, match="zsnapdb:clone is not set, it must be life \\(local\\)"):
        destruction.destroy_datasets([ANCHOR], MARK)


def test_datasets_go_inner_ones_first_and_with_their_snapshots_where_that_was_said(zfs: Zfs) -> None:
    destruction.destroy_datasets([ANCHOR, f"{ANCHOR}/r1"], MARK, with_snapshots=True)
    assert zfs.changes == [
        f"unmount {ANCHOR}/r1",
        f"destroy {SNAPSHOT}",
        f"destroy {ANCHOR}/r1",
        f"destroy {ANCHOR}",
    ]


def test_the_snapshots_of_a_dataset_go_together_by_their_names(zfs: Zfs) -> None:
    zfs.objects[f"{ANCHOR}/r1@of-another"] = {"guid": ("12", "-"), "createtxg": ("6", "-")}
    destruction.destroy_datasets([f"{ANCHOR}/r1"], MARK, with_snapshots=True)
    assert zfs.destroyed == [f"{SNAPSHOT},of-another", f"{ANCHOR}/r1"]


def test_what_would_be_a_range_of_snapshots_is_refused(zfs: Zfs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshots, "names_of", lambda names: [f"{ANCHOR}/r1@one%two"])
    with pytest.raises(ValueError, match="not the name of one snapshot"):
        destruction.destroy_datasets([f"{ANCHOR}/r1"], MARK, with_snapshots=True)
    assert zfs.destroyed == []


def test_a_dataset_in_use_keeps_its_snapshots(zfs: Zfs) -> None:
    zfs.in_use.add(f"{ANCHOR}/r1")
    with pytest.raises(CommandError, match="it is open"):
        destruction.destroy_datasets([ANCHOR, f"{ANCHOR}/r1"], MARK, with_snapshots=True)
    assert zfs.changes == []


def test_snapshots_of_a_dataset_stay_where_nobody_said_they_go(zfs: Zfs) -> None:
    destruction.destroy_datasets([f"{ANCHOR}/r1"], MARK)
    assert zfs.destroyed == [f"{ANCHOR}/r1"]


def test_one_of_several_marks_is_enough(zfs: Zfs) -> None:
    zfs.objects[ANCHOR] = {"zsnapdb:restored": ("any", "local")}
    destruction.destroy_datasets([ANCHOR], MARK, Mark("zsnapdb:restored"))
    assert zfs.destroyed == [ANCHOR]


def test_members_are_the_anchor_and_all_below_it_or_a_refusal(zfs: Zfs) -> None:
    assert destruction.members(ANCHOR, MARK) == [ANCHOR, f"{ANCHOR}/r1"]
    assert destruction.members("tank/clones/gone", MARK) == []
    zfs.objects[f"{ANCHOR}/r1/foreign"] = {"zsnapdb:clone": ("life", f"inherited from {ANCHOR}")}
    with pytest.raises(NotOursError, match="r1/foreign is not ours"):
        destruction.members(ANCHOR, MARK)


def test_a_snapshot_is_not_ours_by_the_mark_of_its_dataset(zfs: Zfs) -> None:
    zfs.objects[SNAPSHOT]["zsnapdb:clone"] = ("life", f"inherited from {ANCHOR}/r1")
    with pytest.raises(NotOursError):
        destruction.destroy_snapshot(SNAPSHOT, MARK)
    zfs.objects[SNAPSHOT]["zsnapdb:clone"] = OURS
    destruction.destroy_snapshot(SNAPSHOT, MARK)
    assert zfs.destroyed == [SNAPSHOT]


def test_a_received_snapshot_goes_by_its_guid_on_a_dataset_of_ours(zfs: Zfs) -> None:
    with pytest.raises(NotOursError, match="guid is 11, it must be 12"):
        destruction.destroy_received_snapshot(SNAPSHOT, 12, MARK)
    with pytest.raises(NotOursError, match=f"^{ANCHOR}/r1 is not ours"):
        destruction.destroy_received_snapshot(SNAPSHOT, 11, Mark("zsnapdb:clone", "other"))
    destruction.destroy_received_snapshot(SNAPSHOT, 11, MARK)
    assert zfs.destroyed == [SNAPSHOT]


def test_a_named_snapshot_goes_by_our_name_on_a_dataset_of_ours(zfs: Zfs) -> None:
    with pytest.raises(NotOursError, match="name is zsnapdb-one, it must be zsnapdb-detach"):
        destruction.destroy_named_snapshot(SNAPSHOT, "zsnapdb-detach-", MARK)
    with pytest.raises(NotOursError):
        destruction.destroy_named_snapshot(SNAPSHOT, "zsnapdb-", Mark("zsnapdb:clone", "other"))
    destruction.destroy_named_snapshot(SNAPSHOT, "zsnapdb-", MARK)
    assert zfs.destroyed == [SNAPSHOT]


def test_a_set_that_came_to_nothing_goes_with_its_bookmarks_and_holds_and_can_go_twice(zfs: Zfs) -> None:
    zfs.holds[SNAPSHOT] = {holds.HOLD_TAG}
    for _ in range(2):
        destruction.destroy_set([SNAPSHOT], "one")
    assert zfs.changes == [f"destroy {BOOKMARK}", f"release {holds.HOLD_TAG} {SNAPSHOT}", f"destroy {SNAPSHOT}"]


def test_a_bookmark_of_the_name_of_a_set_that_stands_for_another_snapshot_stays(zfs: Zfs) -> None:
    zfs.objects[BOOKMARK]["guid"] = ("99", "-")
    destruction.destroy_set([SNAPSHOT], "one")
    assert zfs.destroyed == [SNAPSHOT]


def test_a_set_of_another_backup_keeps_its_snapshots_and_holds(zfs: Zfs) -> None:
    zfs.holds[SNAPSHOT] = {holds.HOLD_TAG}
    with pytest.raises(NotOursError, match="zsnapdb:backup is one"):
        destruction.destroy_set([SNAPSHOT], "two")
    assert zfs.changes == []


def test_a_refused_set_loses_none_of_its_snapshots(zfs: Zfs) -> None:
    other = f"{ANCHOR}@zsnapdb-one"
    zfs.objects[other] = {"guid": ("12", "-"), "createtxg": ("5", "-"), "zsnapdb:backup": ("two", "local")}
    with pytest.raises(NotOursError, match="zsnapdb:backup is two"):
        destruction.destroy_set([SNAPSHOT, f"{ANCHOR}/gone@zsnapdb-one", other], "one")
    assert zfs.changes == []


def test_a_stored_snapshot_goes_only_if_it_is_the_very_one(zfs: Zfs) -> None:
    with pytest.raises(NotOursError, match="guid is 11, it must be 12"):
        destruction.destroy_stored(SNAPSHOT, 12, "one")
    with pytest.raises(NotOursError, match="zsnapdb:backup is one"):
        destruction.destroy_stored(SNAPSHOT, 11, "two")
    assert zfs.changes == []
    for _ in range(2):
        destruction.destroy_stored(SNAPSHOT, 11, "one")
    assert zfs.destroyed == [SNAPSHOT]


def test_a_stored_snapshot_that_somebody_holds_stays_at_once(zfs: Zfs) -> None:
    zfs.holds[SNAPSHOT] = {"theirs"}
    with pytest.raises(CommandError, match="is busy"):
        destruction.destroy_stored(SNAPSHOT, 11, "one")
    assert SNAPSHOT in zfs.objects


def test_a_bookmark_goes_by_our_name_and_its_guid(zfs: Zfs) -> None:
    foreign = f"{ANCHOR}/r1#theirs"
    zfs.objects[foreign] = {"guid": ("11", "-")}
    with pytest.raises(NotOursError, match="guid is 11, it must be 12"):
        destruction.destroy_bookmark(BOOKMARK, 12)
    with pytest.raises(NotOursError, match="name is theirs, it must be zsnapdb-"):
        destruction.destroy_bookmark(foreign, 11)
    for _ in range(2):
        destruction.destroy_bookmark(BOOKMARK, 11)
    assert zfs.destroyed == [BOOKMARK]


def test_only_a_dataset_of_ours_is_rolled_back(zfs: Zfs) -> None:
    with pytest.raises(NotOursError, match="r1 is not ours"):
        destruction.roll_back(f"{ANCHOR}/r1", "zsnapdb-one", "zsnapdb-step-", Mark("zsnapdb:clone", "other"))
    assert zfs.changes == []


@pytest.mark.parametrize("foreign", ["theirs", "zsnapdb-step-four"])
def test_rollback_over_a_foreign_later_snapshot_changes_nothing(zfs: Zfs, foreign: str) -> None:
    for name in ("zsnapdb-step-two", foreign, "zsnapdb-step-three"):
        zfs.objects[f"{ANCHOR}/r1@{name}"] = {} if name == foreign else {"zsnapdb:clone": OURS}
    with pytest.raises(NotOursError, match=foreign):
        destruction.roll_back(f"{ANCHOR}/r1", "zsnapdb-one", "zsnapdb-step-", MARK)
    assert zfs.changes == []


def test_rollback_destroys_later_snapshots_of_ours(zfs: Zfs) -> None:
    later = {f"{ANCHOR}/r1@zsnapdb-step-two": OURS, f"{ANCHOR}/r1@zsnapdb-step-three": OURS}
    for name, seen in later.items():
        zfs.objects[name] = {"zsnapdb:clone": seen}
    destruction.roll_back(f"{ANCHOR}/r1", "zsnapdb-one", "zsnapdb-step-", MARK)
    assert zfs.destroyed == list(reversed(later))
    assert zfs.changes[-1] == f"rollback {SNAPSHOT}"


def test_snapshots_of_others_go_by_their_names_and_only_on_datasets_of_ours(zfs: Zfs) -> None:
    theirs, elsewhere = f"{ANCHOR}/r1@autosnap_one", "tank/mysql@autosnap_one"
    zfs.objects |= {theirs: {}, elsewhere: {}, "tank/mysql": {}}
    with pytest.raises(NotOursError, match="tank/mysql is not ours"):
        destruction.destroy_snapshots_on([theirs, elsewhere], MARK)
    assert zfs.changes == []
    destruction.destroy_snapshots_on([theirs], MARK)
    assert zfs.destroyed == [theirs]


WRONG_KINDS: dict[str, Callable[[], None]] = {
    "a snapshot as a dataset": lambda: destruction.destroy_datasets([SNAPSHOT], MARK),
    "a dataset as a snapshot": lambda: destruction.destroy_snapshot(ANCHOR, MARK),
    "a dataset as a stored snapshot": lambda: destruction.destroy_stored(ANCHOR, 11, "one"),
    "a dataset in a set": lambda: destruction.destroy_set([ANCHOR], "one"),
    "a snapshot as a bookmark": lambda: destruction.destroy_bookmark(SNAPSHOT, 11),
}


@pytest.mark.parametrize("call", WRONG_KINDS.values(), ids=WRONG_KINDS)
def test_nothing_is_destroyed_as_something_else(zfs: Zfs, call: Callable[[], None]) -> None:
    with pytest.raises(ValueError, match=r"^not a "):
        call()
    assert zfs.changes == []


def test_what_an_interrupted_receive_left_goes_before_its_dataset_and_with_nothing_else(zfs: Zfs) -> None:
    token = {"receive_resume_token": ("1-d2-d8-78", "-")}
    # An increment was interrupted in one, a full stream in the other, which has no snapshot.
    zfs.objects[f"{ANCHOR}/r1"] |= token
    zfs.objects[f"{ANCHOR}/r2"] = {"zsnapdb:clone": OURS, **token}
    destruction.destroy_datasets([ANCHOR, f"{ANCHOR}/r1", f"{ANCHOR}/r2"], MARK, with_snapshots=True)
    assert set(zfs.objects) == {BOOKMARK}
    changes = [change for change in zfs.changes if not change.startswith("unmount")]
    assert changes == [
        f"receive -A {ANCHOR}/r1",
        f"destroy {SNAPSHOT}",
        f"destroy {ANCHOR}/r1",
        f"receive -A {ANCHOR}/r2",
        f"destroy {ANCHOR}",
    ]


def test_what_an_interrupted_receive_left_in_a_foreign_dataset_stays(zfs: Zfs) -> None:
    zfs.objects["tank/theirs"] = {"receive_resume_token": ("1-d2-d8-78", "-")}
    with pytest.raises(NotOursError):
        destruction.drop_partial("tank/theirs", MARK)
    assert zfs.changes == []
