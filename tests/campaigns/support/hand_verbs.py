"""The verbs that the campaign `hands` interrupts: their preparation and the meaning of their end."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tests.campaigns.support.hand_site import CONFIG, REAPING, SERVER, Site

UNASKED = ("--yes", "--no-backup")
SERVER_ID = "4711"


@dataclass(frozen=True)
class StartedBackup:
    """A prepared verb: its arguments, those that resume it, and its configuration.

    `moves`: when finished, another server has replaced the live one, and ends at the point.
    """

    words: tuple[str, ...]
    again: tuple[str, ...]
    moves: bool
    config: str = CONFIG


def _nothing(_site: Site) -> list[str]:
    return []


@dataclass(frozen=True)
class Verb:
    """The preparation of a verb after the point is known, and its interruptions.

    `phases` are the phases of an interruption with their lengths in events. `writes_stop`: the live server is stopped
    before the verb. `check` returns further problems at the end of the round, when the server runs.
    """

    prepare: Callable[[Site, str], StartedBackup]
    phases: tuple[tuple[str, int], ...]
    writes_stop: bool = False
    check: Callable[[Site], list[str]] = _nothing


def _rewind(origin: str) -> Callable[[Site, str], StartedBackup]:
    def prepare(site: Site, point: str) -> StartedBackup:
        if origin == "repository":
            site.zsnapdb("binlog", "archive", "main", "--once")
        again = ("rewind", "main", "--resume", *UNASKED)
        return StartedBackup(("rewind", "main", "--to", point, "--from", origin, *UNASKED), again, moves=True)

    return prepare


def _promote(origin: str) -> Callable[[Site, str], StartedBackup]:
    def prepare(site: Site, point: str) -> StartedBackup:
        """Prepare the restore next to the server, and stop the server, as the documentation says."""
        site.zsnapdb("binlog", "archive", "main", "--once")
        words = ["restore", "main", "--to", point, "--from", origin, "--handover", "promote"]
        if site.flavour == "mariadb":
            words += ["--server-id", SERVER_ID]
        prepared = site.zsnapdb(*words)
        assert prepared.code == 4, prepared.text
        if site.flavour == "mariadb":
            site.sh(f"printf '[mariadbd]\\nserver_id = {SERVER_ID}\\n' > /etc/lab.d/site.cnf")
        site.sh(f"{SERVER} stop")
        again = ("restore", "main", "--resume")
        return StartedBackup(again, again, moves=True)

    return prepare


def _reap(site: Site, point: str) -> StartedBackup:
    """Rewind to the end, so that the replaced server may be reaped."""
    done = site.zsnapdb("rewind", "main", "--to", point, "--from", "local", *UNASKED)
    assert done.code == 0, done.text
    return StartedBackup(("reap",), ("reap",), moves=False, config=REAPING)


def _undo(site: Site, _point: str) -> StartedBackup:
    site.python(
        "sql", "CREATE TABLE hands.undone (id INT PRIMARY KEY, a INT)", "INSERT INTO hands.undone VALUES (1, 1), (2, 2)"
    )
    site.python("sql", "UPDATE hands.undone SET a = a + 10")
    gtid = site.newest_change("hands.undone")
    account = ("--user", "hands", "--password-file", "/etc/zsnapdb/hands.password")
    words = ("undo", "main", "--gtid", gtid, "--apply", *account, "--yes")
    return StartedBackup(words, words, moves=False)


def _whole_or_not(site: Site) -> list[str]:
    """An undo has undone all rows or none."""
    rows = site.python("sql", "SELECT id, a FROM hands.undone ORDER BY id")
    return [] if rows in ([[1, 1], [2, 2]], [[1, 11], [2, 12]]) else [f"an undo left {rows}"]


def _restorable(site: Site) -> list[str]:
    """Every listed backup is complete."""
    verified = site.zsnapdb("verify", "main", "--deep")
    return [] if verified.code == 0 else [f"verify --deep ended with {verified.code}: {verified.text[-600:]}"]


def _stored(*words: str, backups: int, options: tuple[str, ...] = ()) -> Callable[[Site, str], StartedBackup]:
    def prepare(site: Site, _point: str) -> StartedBackup:
        for _ in range(backups):
            done = site.zsnapdb("backup", *options)
            assert done.code == 0, done.text
        site.python("sql", "FLUSH BINARY LOGS")
        site.zsnapdb("binlog", "archive", "main", "--once")
        return StartedBackup(words, words, moves=False)

    return prepare


_MOVES = (("start", 275), ("stop", 70), ("exchange", 24), ("rename", 4))
VERBS = {
    "rewind-local": Verb(_rewind("local"), _MOVES),
    "rewind-stored": Verb(_rewind("repository"), _MOVES),
    "promote-local": Verb(_promote("local"), (("start", 57), ("exchange", 24), ("rename", 4)), writes_stop=True),
    "promote-stored": Verb(_promote("repository"), (("start", 57), ("exchange", 24), ("rename", 4)), writes_stop=True),
    "reap": Verb(_reap, (("start", 7), ("destroy", 4))),
    "undo": Verb(_undo, (("start", 170), ("apply", 36)), check=_whole_or_not),
    "prune": Verb(_stored("prune", "main", backups=3, options=("--full",)), (("start", 40),), check=_restorable),
    "purge": Verb(_stored("binlog", "purge", "main", backups=1), (("start", 5),), check=_restorable),
    "consolidate": Verb(_stored("consolidate", "main", backups=2), (("start", 39),), check=_restorable),
}
