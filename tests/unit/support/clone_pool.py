"""A pool with clones in memory. It runs the `zfs` commands of jobs on clones, and refuses what `zfs` refuses."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from zsnapdb.base.domain_types import Flavour
from zsnapdb.planning.server_copy.source_facts import Place, SourceServer

HOME = "tank/zsnapdb/clones"
SOURCE = "tank/mysql"


@dataclass
class Thing:
    """A dataset or a snapshot: its local properties, and its origin snapshot."""

    properties: dict[str, str] = field(default_factory=dict)
    origin: str = "-"
    txg: int = 0


class ClonePool:
    """The datasets and snapshots of one pool, by name."""

    def __init__(self) -> None:
        self.things: dict[str, Thing] = {}
        self.commands: list[list[str]] = []
        self.txg = 0
        for name in ("tank", "tank/zsnapdb", HOME, SOURCE):
            self.things[name] = Thing()

    def snapshot(self, name: str, **properties: str) -> str:
        """Create a snapshot with `zsnapdb:` properties, and return its name."""
        self.txg += 1
        self.things[name] = Thing({f"zsnapdb:{key}": value for key, value in properties.items()}, txg=self.txg)
        return name

    def commit(self, dataset: str, commit_id: str) -> str:
        """Create a commit of a clone's volume."""
        return self.snapshot(f"{dataset}@zsnapdb-{commit_id}", commit=commit_id, backup=commit_id, message="")

    def clone(self, name: str, base: str, *, revision: int = 1, **facts: str) -> str:
        """Create a ready clone with one volume from the snapshot; return the volume's dataset."""
        backup_id = base.partition("@zsnapdb-")[2]
        values = {
            "clone": name,
            "phase": "ready",
            "instance": "main",
            "backup": backup_id,
            "source": "backup",
            "requested": "latest",
            "original": f"{backup_id} latest",
            "origin": origin().encode(),
            "port": "33070",
            "bind": "127.0.0.1",
            "server-id": "7",
            "created": "2026-11-22T00:00:00Z",
            "expires": "2099-01-01T00:00:00Z",
            "flavour": "mariadb",
            "root": f"/nowhere/{name}",
            "revision": str(revision),
            "owner": "ada",
            "profile": "normal",
            "rights": "schemas",
            "used": "2026-11-22T00:00:00Z",
            "position": "-",
            **{key.replace("_", "-"): value for key, value in facts.items()},
        }
        self.things[f"{HOME}/{name}"] = Thing({f"zsnapdb:{key}": value for key, value in values.items()})
        return self.volume(name, revision, base)

    def volume(self, name: str, revision: int, base: str) -> str:
        """Create the volume of one revision of a clone."""
        dataset = f"{HOME}/{name}/r{revision}"
        self.things[dataset] = Thing({"zsnapdb:clone": name, "zsnapdb:role": "data"}, base)
        return dataset

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Run the package's `zfs` and `zpool` commands here."""
        monkeypatch.setattr("zsnapdb.base.program_start.run", self.run)

    def run(self, argv: list[str], **_: Any) -> subprocess.CompletedProcess[bytes]:
        if argv[1] not in ("get", "list", "holds"):
            self.commands.append(argv[1:])
        try:
            output, error = getattr(self, f"_{argv[1]}")(argv[2:]), ""
        except KeyError as missing:
            output, error = "", f"cannot open {missing}: dataset does not exist"
        except ValueError as refused:
            output, error = "", str(refused)
        return subprocess.CompletedProcess(argv, 1 if error else 0, output.encode(), error.encode())

    def value(self, name: str, key: str) -> tuple[str, str]:
        """Return the value and the source of a property, as `zfs get` prints them."""
        thing = self.things[name]
        if key == "clones":
            return ",".join(sorted(n for n, t in self.things.items() if t.origin == name)), "-"
        native = {
            "createtxg": thing.txg,
            "guid": thing.txg,
            "origin": thing.origin,
            "used": thing.properties.get("used", "0"),
            "written": thing.properties.get("written", "0"),
            "mounted": "no",
            "userrefs": 0,
        }
        if key in native:
            return str(native[key]), "-"
        if key == "available":
            return str(1 << 40), "-"
        if key in ("quota", "reservation"):
            # They are not inherited.
            return thing.properties.get(key, "0"), "local" if key in thing.properties else "default"
        if key in thing.properties:
            return thing.properties[key], "local"
        above, separator, _ = name.rpartition("@") if "@" in name else name.rpartition("/")
        if not separator:
            return "-", "-"
        value, source = self.value(above, key)
        return value, source if source in ("-", "none") or source.startswith("inherited") else f"inherited from {above}"

    def _get(self, words: list[str]) -> str:
        fields, keys, *names = words[words.index("-o") + 1 :]
        if "-r" in words or "-d" in words:
            wants_snapshots = "snapshot" in words
            deepest = names[0].count("/") + (int(words[words.index("-d") + 1]) if "-d" in words else len(self.things))
            below = (n for n in self.below(names[0]) if n.count("/") <= deepest)
            names = [n for n in below if ("@" in n) is wants_snapshots]
        lines = []
        for name in names:
            for key in keys.split(","):
                value, source = self.value(name, key)
                row = {"name": name, "property": key, "value": value, "source": source}
                lines.append("\t".join(row[column] for column in fields.split(",")))
        return "\n".join(lines)

    def below(self, top: str) -> Iterator[str]:
        """Yield the name, and the names of everything below it."""
        _ = self.things[top]
        yield from (n for n in self.things if n == top or n.startswith((f"{top}/", f"{top}@", f"{top}#")))

    def _list(self, words: list[str]) -> str:
        name, kind = words[-1], words[words.index("-t") + 1]
        places = [word for word in words if word in self.things] or [name]
        if kind == "bookmark":
            return "\n".join(n for n in self.things if "#" in n and n.startswith(name))
        if "-d" in words:
            names = [n for n in self.things if "@" in n and n.partition("@")[0] in places]
        elif "-r" in words:
            names = [n for n in self.below(name) if "@" in n]
        else:
            names = places
        columns = words[words.index("-o") + 1].split(",")
        rows = [[n if column == "name" else self.value(n, column)[0] for column in columns] for n in names]
        _ = [self.things[n] for n in names]
        return "\n".join("\t".join(row) for row in rows)

    def _holds(self, words: list[str]) -> str:
        return ""

    def _set(self, words: list[str]) -> str:
        name = words[-1]
        self.things[name].properties |= dict(word.split("=", 1) for word in words[:-1])
        return ""

    def _bookmark(self, words: list[str]) -> str:
        source, name = words
        self.things[name] = Thing(txg=self.things[source].txg)
        return ""

    def _unmount(self, words: list[str]) -> str:
        return ""

    def _destroy(self, words: list[str]) -> str:
        (word,) = words
        dataset, separator, short = word.partition("@")
        names = [f"{dataset}{separator}{part}" for part in short.split(",")]
        for name in names:
            if len(list(self.below(name))) > 1:
                raise ValueError(f"cannot destroy '{name}': filesystem has children")
            if self.value(name, "clones")[0]:
                raise ValueError(f"cannot destroy '{name}': snapshot has dependent clones")
        for name in names:
            del self.things[name]
        return ""

    def _promote(self, words: list[str]) -> str:
        (name,) = words
        base = self.things[name].origin
        parent = base.partition("@")[0]
        limit = self.things[base].txg
        renamed = {
            n: f"{name}@{n.partition('@')[2]}"
            for n, thing in self.things.items()
            if n.startswith(f"{parent}@") and thing.txg <= limit
        }
        self.things = {renamed.get(n, n): thing for n, thing in self.things.items()}
        before = self.things[parent].origin
        for thing in self.things.values():
            thing.origin = renamed.get(thing.origin, thing.origin)
        self.things[name].origin, self.things[parent].origin = before, renamed[base]
        return ""


def origin() -> SourceServer:
    return SourceServer(
        flavour=Flavour.MARIADB,
        version="11.8.6-MariaDB",
        server_uuid=None,
        server_id=1,
        variables={"datadir": "/var/lib/mysql"},
        volumes={"data": Place(dataset=SOURCE, mountpoint="/var/lib/mysql")},
    )
