"""Answers which backups and archived binlogs are known to be damaged, since when, and by which check.

Everybody who shows, chooses or builds on a backup asks here. The sources are the findings of verify, to which drills
and `binlog purge` add what they read, and the checks of pages in the newest drills. A drill's finding about pages holds
until a later drill reads every page of those files: one of the same backup for that backup, one of a later backup of
its chain for the backups from there on. A later backup of which a drill has read every file whole lacks the files that
the drill does not name: their tables were dropped. A finding is forgotten when it is no longer among the newest.
"""

from __future__ import annotations

from collections.abc import Sequence

from zsnapdb.planning.damage import DamageKind, DamageRegister, KnownDamage
from zsnapdb.repository import drills, verifications
from zsnapdb.repository.drills import ALL_PAGES, Evidence, Outcome
from zsnapdb.repository.repository import Repository
from zsnapdb.repository.verifications import Checks

_DRILLS = 10
"""How many of the newest drills are read: each is an object of its own."""


def known_damage(repository: Repository, instance: str) -> DamageRegister:
    """Return what is known to be damaged now, also of backups that were removed.

    RepositoryError if the store cannot be reached.
    """
    return register(verifications.read(repository, instance), drills.newest(repository, instance, _DRILLS))


def register(checks: Checks, evidence: Sequence[Evidence]) -> DamageRegister:
    """Return the damage in these findings and drills, the drills oldest first."""
    of_backups = [
        KnownDamage(name, DamageKind.STORED, record.since or record.when, record.by, record.damage)
        for name, record in sorted(checks.damaging().items())
    ]
    content: dict[str, KnownDamage] = {}
    sound: dict[str, frozenset[str]] = {}
    for drill in evidence:
        pages = [check for check in drill.checks if check.kind == "pages"]
        damaged = frozenset(check.what for check in pages if check.outcome is Outcome.DAMAGED)
        whole = frozenset(check.what for check in pages if check.finding == ALL_PAGES) - damaged
        sound[drill.backup_id] = sound.get(drill.backup_id, frozenset()) - damaged | whole
        known = content.pop(drill.backup_id, None)
        files = {} if known is None else {name: text for name, text in known.files.items() if name not in whole}
        files |= {check.what: f"{check.what}: {check.finding}" for check in pages if check.what in damaged}
        if files:
            content[drill.backup_id] = KnownDamage(
                drill.backup_id,
                DamageKind.CONTENT,
                known.since if known is not None else drill.finished,
                f"drill {drill.drill_id}" if damaged or known is None else known.by,
                tuple(files.values()),
                files,
            )
    read_whole = frozenset(drill.backup_id for drill in evidence if drill.has_read_all_pages)
    return DamageRegister((*of_backups, *content.values()), sound, read_whole)
