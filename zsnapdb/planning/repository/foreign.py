"""What a person is told about backups and binlogs that this host does not know, or that are from the future. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime

from zsnapdb.base.quantities import counted
from zsnapdb.planning.clock_guard import FAR
from zsnapdb.planning.repository import retention
from zsnapdb.planning.repository.host_record import StoredFinding, StoredKind, backups_in, newest_of


def judge_foreign(
    instance: str, foreign: Mapping[str, str], rewritten: Sequence[str], named: Collection[str], *, knows_any: bool
) -> tuple[StoredFinding, ...]:
    """Return the findings about backups that this host does not know, by id, with the reasons.

    `rewritten` are those under ids of this host's own backups. `named` are those that another finding names. Nothing is
    found on a host that knows no backup (`knows_any`).
    """
    if not knows_any:
        return ()
    findings = []
    if rewritten:
        findings.append(
            StoredFinding(
                StoredKind.REWRITTEN,
                f"{backups_in(rewritten)} of this host in the repository was rewritten: the manifest is not the one"
                f" that this host stored ({newest_of(sorted(rewritten))})",
                "look for the objects in older versions or in a copy of the bucket; restore a backup that `zsnapdb list"
                f" {instance}` does not call foreign",
                tuple(sorted(rewritten)),
            )
        )
    others = tuple(sorted(foreign.keys() - set(rewritten) - set(named)))
    if others:
        findings.append(
            StoredFinding(
                StoredKind.FOREIGN,
                f"the repository has {backups_in(others)} that this host does not know ({newest_of(others)}):"
                f" {others[-1]}: {foreign[others[-1]]}; nothing counts or removes foreign"
                " backups, and none is chosen as the latest",
                f"run `zsnapdb adopt {instance} --plan`, which shows what is known of them. If another host stores them"
                " all the time, set signers here to what `zsnapdb key show` prints there",
                others,
            )
        )
    return tuple(findings)


def judge_future(instance: str, future: Mapping[str, datetime], now: datetime) -> tuple[StoredFinding, ...]:
    """Return a finding if there are backups from the future, given by their ids and times."""
    names = tuple(sorted(future))
    if not names:
        return ()
    return (
        StoredFinding(
            StoredKind.FROM_FUTURE,
            f"the repository has {backups_in(names)} from the future that this host did not store ({newest_of(names)}):"
            f" the newest says {future[names[-1]]:%Y-%m-%d %H:%M} UTC, and this host has {now:%Y-%m-%d %H:%M} UTC;"
            " nothing chooses such a backup",
            "check `date -u` here and on the host that stored it. If a clock was wrong, name the id, as in `zsnapdb"
            f" restore {instance} --to {names[-1]}`; otherwise somebody else wrote it",
            names,
        ),
    )


def judge_foreign_binlogs(instance: str, names: Sequence[str]) -> tuple[StoredFinding, ...]:
    """Return the finding about archived binlogs that this host does not know, as far as it does not."""
    if not names:
        return ()
    return (
        StoredFinding(
            StoredKind.FOREIGN,
            f"the archive has {counted(len(names), 'binlog')} of which this host does not know what it says of them"
            f" ({newest_of(names)}); no objective counts that",
            f"run `zsnapdb adopt {instance} --plan`, which shows what is known of them",
        ),
    )


def from_future(backup_ids: Iterable[str], now: datetime, own: Collection[str]) -> Mapping[str, datetime]:
    """Return the times of the backups whose ids are from more than a day after `now`, by backup id.

    Anybody who can write to a repository can put such a backup there, to be taken for the newest one. `own` are the ids
    of the backups that this host stored: for these the clock was wrong, then or now, and they are never returned.
    """
    times = {name: retention.time_of(name) for name in backup_ids}
    return {name: time for name, time in times.items() if time - now > FAR and name not in own}
