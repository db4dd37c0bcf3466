"""Known damage of backups and archived binlogs, with the time when it was found and the check that found it. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

from zsnapdb.base.errors import DamagedError
from zsnapdb.planning.backup_chain import Lineage, Link


class DamageKind(StrEnum):
    """The kind of damage. STORED: objects in the repository are missing or altered.

    CONTENT: a restore works, but pages in the restored files are damaged.
    """

    STORED = "stored"
    CONTENT = "content"


@dataclass(frozen=True)
class KnownDamage:
    """The damage of one backup or archived binlog. `name` is the backup's id, or `<incarnation>/<file>` of the binlog.

    The damage was first found at `since` (UTC) by the check `by`. The field `files` maps file paths, relative to the
    root of the restored server, to the findings about damaged pages.
    """

    name: str
    kind: DamageKind
    since: datetime
    by: str
    findings: tuple[str, ...]
    files: Mapping[str, str] = field(default_factory=dict, hash=False)

    @property
    def is_of_backup(self) -> bool:
        return "/" not in self.name

    def describe(self) -> str:
        more = f", and {len(self.findings) - 1} more" if len(self.findings) > 1 else ""
        what = f"backup {self.name}" if self.is_of_backup else f"archived binlog {self.name}"
        return f"{what} is damaged, known since {self.since:%Y-%m-%d %H:%M} UTC by {self.by}: {self.findings[0]}{more}"


@dataclass(frozen=True)
class DamageRegister:
    """All known damage in the repository of an instance.

    The field `sound` maps each backup to its sound files. A file is sound if a drill has read every page of it and
    found no damage. The field `read_whole` contains the backups whose files are all sound.
    """

    known: tuple[KnownDamage, ...] = ()
    sound: Mapping[str, frozenset[str]] = field(default_factory=dict)
    read_whole: frozenset[str] = frozenset()
    _by_name: dict[str, list[KnownDamage]] = field(init=False, repr=False, compare=False, default_factory=dict)

    def __post_init__(self) -> None:
        for damage in self.known:
            self._by_name.setdefault(damage.name, []).append(damage)

    @property
    def backups(self) -> tuple[KnownDamage, ...]:
        return tuple(damage for damage in self.known if damage.is_of_backup)

    def of(self, names: Iterable[str]) -> tuple[KnownDamage, ...]:
        return tuple(damage for name in names for damage in self._by_name.get(name, ()))

    def of_chain(self, chain: Sequence[str]) -> tuple[KnownDamage, ...]:
        """Return the damage that affects a restore of the last backup of `chain`, which begins with the full backup.

        Each backup needs the stored objects of all earlier backups in the chain. A damaged page also affects all later
        backups, because they may still contain the page. A drill of a later backup may have read the same file, or all
        files, completely without finding damage. Then the page affects neither that later backup nor the following
        backups.
        """
        met: list[KnownDamage] = []
        sound: set[str] = set()
        is_read_whole = False
        for backup_id in reversed(chain):
            met += [
                damage
                for damage in self._by_name.get(backup_id, ())
                if damage.kind is DamageKind.STORED or not (is_read_whole or set(damage.files) <= sound)
            ]
            sound |= self.sound.get(backup_id, frozenset())
            is_read_whole |= backup_id in self.read_whole
        return tuple(reversed(met))

    def stored(self) -> Mapping[str, KnownDamage]:
        """Return the damage of stored objects by name.

        A backup with such damage cannot be restored, and cannot be a base.
        """
        return {damage.name: damage for damage in self.known if damage.kind is DamageKind.STORED}

    def of_chains(self, links: Sequence[Link]) -> Mapping[str, tuple[KnownDamage, ...]]:
        """Return the damage of each backup's chain, by backup id (see `of_chain`).

        A backup is left out if its chain has no damage, or if a backup of its chain is missing.
        """
        if not self._by_name:
            return {}
        lineage, damaged = Lineage(links, self.stored()), {}
        for link in links:
            try:
                damages = self.of_chain([below.backup_id for below in lineage.chain(link)])
            except DamagedError:
                continue
            if damages:
                damaged[link.backup_id] = damages
        return damaged


_SHOWN = 3


def sentences(damages: Sequence[KnownDamage]) -> tuple[str, ...]:
    """Return one sentence about each of the first three damaged objects, and one about all others together."""
    shown = [damage.describe() for damage in damages[:_SHOWN]]
    more = len(damages) - len(shown)
    return (*shown, f"{more} more backups or archived binlogs are damaged") if more else tuple(shown)
