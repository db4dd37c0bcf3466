"""Snapshots and bookmarks in memory, and the zfs commands that backups use on them."""

from __future__ import annotations

from dataclasses import dataclass, field

from zsnapdb.base.errors import CommandError, NotFound
from zsnapdb.jobs.backup.source_interface import SnapshotRequest

CHANGES = ("set", "hold", "release", "bookmark", "destroy")


def is_change(argv: list[str]) -> bool:
    """Return whether the zfs command changes something."""
    return argv[1] in CHANGES


@dataclass
class Snap:
    """A snapshot, or a bookmark (then without properties and holds)."""

    name: str
    guid: int
    createtxg: int
    properties: dict[str, str] = field(default_factory=dict)
    holds: set[str] = field(default_factory=set)


class SimulatedZfs:
    """The snapshots and bookmarks of one pool."""

    def __init__(self) -> None:
        self.snapshots: dict[str, Snap] = {}
        self.bookmarks: dict[str, Snap] = {}
        self.guid = 100
        self.history = "2026-11-20.10:00:00 [txg:4] create pool version 5000\n"

    def run(self, argv: list[str]) -> str:
        """Run the zfs command and return its output; errors as from the command module."""
        if argv[:3] == ["zpool", "history", "-i"]:
            return self.history
        assert argv[0] == "zfs"
        return str(getattr(self, f"_zfs_{argv[1]}")(argv[2:]))

    def snapshot(self, request: SnapshotRequest) -> None:
        """Create the snapshots of the request, in one transaction group."""
        self.guid += 2
        group = self.guid // 2
        for number, name in enumerate(request.names):
            snap = Snap(name, self.guid + number, group)
            snap.properties = {
                "zsnapdb:backup": request.backup_id,
                "zsnapdb:instance": request.instance,
                "zsnapdb:state": request.state,
                "zsnapdb:run": request.run_id,
            }
            self.snapshots[snap.name] = snap

    def snap(self, name: str) -> Snap:
        """Return the snapshot or bookmark of that name; NotFound if there is none."""
        snap = self.snapshots.get(name) or self.bookmarks.get(name)
        if snap is None:
            raise NotFound(f"{name}: dataset does not exist")
        return snap

    def _zfs_list(self, words: list[str]) -> str:
        options = {word: words[n + 1] for n, word in enumerate(words) if word in ("-o", "-t", "-d", "-s")}
        names = [
            word
            for n, word in enumerate(words)
            if not word.startswith("-") and words[n - 1] not in ("-o", "-t", "-d", "-s")
        ]
        tables = {"bookmark": self.bookmarks, "snapshot": self.snapshots}
        kinds = [tables[kind] for kind in options.get("-t", "snapshot").split(",") if kind in tables]
        if options.get("-d") == "1":
            of = [(name.replace("#", "@").partition("@")[0], snap) for table in kinds for name, snap in table.items()]
            listed = [snap for dataset, snap in of if dataset in names]
        else:
            listed = [self.snap(name) for name in names]
        listed.sort(key=lambda snap: snap.createtxg)
        columns = options["-o"].split(",")
        return "".join("\t".join(self._column(snap, column) for column in columns) + "\n" for snap in listed)

    def _column(self, snap: Snap, column: str) -> str:
        if column in ("name", "guid", "createtxg"):
            return str(getattr(snap, column))
        if column == "used":
            return "1024"
        return str(len(snap.holds)) if column == "userrefs" else snap.properties.get(column, "-")

    def _zfs_get(self, words: list[str]) -> str:
        columns, keys, *names = words[words.index("-o") + 1 :]
        lines = []
        for name in names:
            snap = self.snap(name)
            for key in keys.split(","):
                value, source = (str(snap.guid), "-") if key == "guid" else (snap.properties.get(key, "-"), "local")
                row = {"name": name, "property": key, "value": value, "source": "-" if value == "-" else source}
                lines.append("\t".join(row[column] for column in columns.split(",")) + "\n")
        return "".join(lines)

    def _zfs_set(self, words: list[str]) -> str:
        for name in (word for word in words if "=" not in word):
            self.snap(name).properties.update(dict(word.split("=", 1) for word in words if "=" in word))
        return ""

    def _zfs_hold(self, words: list[str]) -> str:
        for name in words[1:]:
            assert words[0] not in self.snap(name).holds
            self.snap(name).holds.add(words[0])
        return ""

    def _zfs_holds(self, words: list[str]) -> str:
        return "".join(f"{name}\t{tag}\tnow\n" for name in words[1:] for tag in self.snap(name).holds)

    def _zfs_release(self, words: list[str]) -> str:
        for name in words[1:]:
            self.snap(name).holds.remove(words[0])
        return ""

    def _zfs_bookmark(self, words: list[str]) -> str:
        source, name = words
        assert name not in self.bookmarks
        self.bookmarks[name] = Snap(name, self.snap(source).guid, self.snap(source).createtxg)
        return ""

    def _zfs_destroy(self, words: list[str]) -> str:
        (name,) = words
        if self.snap(name).holds:
            raise CommandError(f"{name}: dataset is held")
        if "clones" in self.snap(name).properties:
            raise CommandError(f"{name}: snapshot has dependent clones")
        (self.bookmarks if "#" in name else self.snapshots).pop(name)
        return ""
