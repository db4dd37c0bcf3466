"""Datasets with a site's settings in memory: own properties, delegated permissions, and space for reservations."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass, field
from typing import Any

import pytest

from zsnapdb.planning.dataset_property_classes import CLASSIFIED, GUARANTEES, SPACE
from zsnapdb.zfs.explicit_settings import Right, permission_commands

NEVER_INHERITED = (*SPACE, "canmount")


@dataclass
class SiteDataset:
    """The properties that were set on a dataset itself, and its delegated permissions."""

    own: dict[str, str] = field(default_factory=dict)
    rights: set[Right] = field(default_factory=set)


class SitePool:
    """The datasets by name. `room`: bytes that can be reserved. `refused`: properties that cannot be set.

    After `dies_after` changes the next changing command is interrupted before it changes anything.
    """

    def __init__(self, room: int = 1 << 60, refused: frozenset[str] = frozenset()) -> None:
        self.datasets: dict[str, SiteDataset] = {}
        self.room, self.refused = room, refused
        self.dies_after: int | None = None
        self.changes = 0

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Run the package's `zfs` commands here."""
        monkeypatch.setattr("zsnapdb.base.program_start.run", self.run)
        monkeypatch.setattr("zsnapdb.zfs.libzfs.load", lambda: None)

    def run(self, argv: list[str], **_: Any) -> subprocess.CompletedProcess[bytes]:
        if argv[1] in ("set", "inherit", "unallow") or (argv[1] == "allow" and len(argv) > 3):
            if self.dies_after is not None and self.changes >= self.dies_after:
                raise KeyboardInterrupt
            self.changes += 1
        try:
            output, error = getattr(self, f"_{argv[1]}")(argv[2:]), ""
        except KeyError as missing:
            output, error = "", f"cannot open {missing}: dataset does not exist"
        except ValueError as refused:
            output, error = "", str(refused)
        encoded = output.encode(errors="surrogateescape")
        return subprocess.CompletedProcess(argv, 1 if error else 0, encoded, error.encode())

    def value(self, name: str, key: str) -> tuple[str, str]:
        """Return the value and the source of a property, as `zfs get -p` prints them."""
        own = self.datasets[name].own
        if key in own:
            return own[key], "local"
        if key in SPACE:
            return "0", "default"
        if key == "canmount":
            return "on", "default"
        above = name.rpartition("/")[0]
        if above in self.datasets:
            value, source = self.value(above, key)
            is_default = source in ("default", "-")
            return value, source if is_default or source.startswith("inherited") else f"inherited from {above}"
        return ("-", "-") if ":" in key else ("default", "default")

    def _get(self, words: list[str]) -> str:
        fields = words[words.index("-o") + 1].split(",")
        rest = words[words.index("-o") + 2 :]
        only_own = rest[0] == "-s"
        keys, *names = rest[2:] if only_own else rest
        lines = []
        for name in names:
            native = [one.name for one in CLASSIFIED]
            listed = keys.split(",") if keys != "all" else [*native, *(k for k in self.datasets[name].own if ":" in k)]
            for key in listed:
                value, source = self.value(name, key)
                row = {"name": name, "property": key, "value": value, "source": source}
                if not only_own or source == "local":
                    lines.append("\t".join(row[column] for column in fields))
        return "\n".join(lines) + "\n" if lines else ""

    def _list(self, words: list[str]) -> str:
        _ = self.datasets[words[-1]]
        return words[-1]

    def _set(self, words: list[str]) -> str:
        name = next(word for word in words if word in self.datasets)
        values = dict(word.split("=", 1) for word in words[: words.index(name)])
        if bad := self.refused & set(values):
            raise ValueError(f"cannot set property for '{name}': {sorted(bad)[0]} is refused")
        for key in GUARANTEES:
            if values.get(key, "none") != "none":
                others = sum(int(d.own.get(key, "0")) for n, d in self.datasets.items() if n != name)
                if others + int(values[key]) > self.room:
                    raise ValueError(f"cannot set property for '{name}': out of space")
        for key, value in values.items():
            if key in SPACE and value == "none":
                self.datasets[name].own.pop(key, None)
            else:
                self.datasets[name].own[key] = value
        return ""

    def _inherit(self, words: list[str]) -> str:
        resets, (key, *names) = words[0] == "-S", words[1:] if words[0] == "-S" else words
        if key in NEVER_INHERITED and not resets:
            raise ValueError(f"'{key}' property cannot be inherited")
        for name in names:
            self.datasets[name].own.pop(key, None)
        return ""

    def _allow(self, words: list[str]) -> str:
        name = words[-1]
        if len(words) == 1:
            return printed_rights(name, self.datasets[name].rights)
        self.datasets[name].rights |= given_by(words[:-1])
        return ""

    def _unallow(self, words: list[str]) -> str:
        self.datasets[words[-1]].rights -= given_by(words[:-1])
        return ""


def given_by(words: list[str]) -> set[Right]:
    """Return the permissions that `zfs allow` with these arguments grants."""
    options = [word for word in words if word in ("-s", "-c", "-l", "-d", "-u", "-g", "-e")]
    names = [word for word in words if word not in options]
    kinds = {"-s": "set", "-c": "create", "-l": "local", "-d": "descendants"}
    scope = next((kinds[word] for word in options if word in kinds), "both")
    who = next(
        ({"-u": "user", "-g": "group", "-e": "everyone"}[word] for word in options if word in ("-u", "-g", "-e")), ""
    )
    *name, permissions = names
    return {Right(scope, who, name[0] if name else "", one) for one in permissions.split(",")}


def printed_rights(dataset: str, rights: set[Right]) -> str:
    """Return the output of `zfs allow DATASET` (print_fs_perms in cmd/zfs/zfs_main.c of OpenZFS)."""
    if not rights:
        return ""
    titles = {
        "set": "Permission sets:",
        "create": "Create time permissions:",
        "local": "Local permissions:",
        "descendants": "Descendent permissions:",
        "both": "Local+Descendent permissions:",
    }
    lines = [f"---- Permissions on {dataset} ".ljust(70, "-")]
    for scope, title in titles.items():
        chosen = [one for one in rights if one.scope == scope]
        lines += [title] if chosen else []
        for who, name in sorted({(one.who, one.name) for one in chosen}):
            listed = ",".join(sorted(o.permission for o in chosen if (o.who, o.name) == (who, name)))
            shown = f"(unknown: {name})" if name.isdigit() else name
            lines.append("\t" + " ".join(word for word in (who, shown, listed) if word))
    return "\n".join(lines) + "\n"


__all__ = ["Right", "SiteDataset", "SitePool", "given_by", "permission_commands", "printed_rights"]
