"""Damage of a real server's repository: chunks, manifests, binlogs, their descriptions, pins, checks, evidence.

The guest's repository is prepared once and put back after every round, with the host's records of it.
"""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path

from tests.campaigns.histories import Campaign, Point
from tests.campaigns.support import restored
from zsnapdb.config.settings import load
from zsnapdb.jobs.base.instance import Instance
from zsnapdb.store.layers import open_store

HOWS = ("flip", "cut", "empty", "remove", "exchange", "older")
CONFIG = Path("/etc/zsnapdb/zsnapdb.toml")
PLACES = ("files", "chunks", "active", "segments", "incarnations", "data", "parent")
HOST = (Path("/var/lib/zsnapdb"), Path("/var/cache/zsnapdb"))
REFUSED = (3, 4, 6, 7, 11)


class StoredDamage(Campaign):
    """The guest's server with a repository of every kind of object, and its rounds of damage."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.store, self.prefix = open_store(Instance.of(load(CONFIG), "main").repository)
        self.outcomes: Counter[str] = Counter()
        self.bad = 0

    def prepare(self) -> None:
        """Fill the repository: three backups, rotated binlogs and segments, a pin, a check, evidence of a drill."""
        if self.server.is_mysql:
            # A start script for MySQL's innochecksum, like those of the lab's other MySQL programs.
            program = Path("/opt/mysql/bin/innochecksum")
            program.write_text(Path("/opt/mysql/bin/mysqldump").read_text().replace("mysqldump", "innochecksum"))
            program.chmod(0o755)
        for _ in range(3):
            self.backup()
            self.server.write(3)
            self.server.sql("FLUSH BINARY LOGS")
            self.server.write(2)
            self.settle()
        self._done("pin", "main", self.backups[0].backup_id, "--reason", "campaign")
        self._done("verify", "main", "--deep")
        self._done("drill", "main")
        self.server.write(3)
        self.settle()
        self.server.write(2)
        self.settle()
        self.stop_archiver()
        self.saved = {item.key: self.store.get(item.key) for item in self.store.list(self.prefix)}
        for number, folder in enumerate(HOST):
            shutil.copytree(folder, f"/tmp/host{number}", symlinks=True)
        self.usual = {name: self._asked(name) for name in ("verify", "status")}
        assert self.usual["verify"] == 0, self.usual

    def _done(self, *words: str) -> None:
        code, _, said = self.zsnapdb(*words)
        if code != 0:
            raise RuntimeError(f"{words} ended with {code}: {said}")

    def put_back(self) -> None:
        """Restore the repository and the host's records to their state before the round."""
        now = {item.key: item.size for item in self.store.list(self.prefix)}
        for key in now.keys() - self.saved.keys():
            self.store.delete(key)
        for key, body in self.saved.items():
            if len(body) < 100_000 or now.get(key) != len(body) or key in self.harmed:
                self.store.put(key, body)
        for number, folder in enumerate(HOST):
            shutil.rmtree(folder)
            shutil.copytree(f"/tmp/host{number}", folder, symlinks=True)

    def harm(self) -> tuple[str, str]:
        """Damage one object of a kind. Return the kind of damage and the object's key."""
        chance = self.random
        kinds: dict[str, list[str]] = {}
        for key in sorted(self.saved):
            kinds.setdefault(kind_of(key.removeprefix(self.prefix).lstrip("/")), []).append(key)
        alike = kinds[chance.choice(sorted(kinds))]
        key, how = chance.choice(alike), chance.choice(HOWS)
        body, others = self.saved[key], [name for name in alike if name != key]
        self.harmed = {key}
        if how == "remove" or not body:
            self.store.delete(key)
        elif how in ("cut", "empty") or (how in ("exchange", "older") and not others):
            self.store.put(key, body[: chance.randrange(len(body)) if how == "cut" else 0])
        elif how == "flip":
            at = chance.randrange(len(body))
            self.store.put(key, body[:at] + bytes([body[at] ^ 1 << chance.randrange(8)]) + body[at + 1 :])
        elif how == "exchange":
            other = chance.choice(others)
            self.harmed.add(other)
            self.store.put(other, body)
            self.store.put(key, self.saved[other])
        else:
            self.store.put(key, self.saved[others[0]])
        return how, key

    def harm_and_judge(self, number: int) -> None:
        """Play one round: damage, run verify and status, plan two points, maybe restore one, put everything back."""
        how, key = self.harm()
        kind = kind_of(key.removeprefix(self.prefix).lstrip("/"))
        if self.random.random() < 0.5:
            shutil.rmtree(HOST[1])
            HOST[1].mkdir()
        try:
            codes = {name: self._asked(name) for name in ("verify", "status")}
            known = {name: code for name, code in codes.items() if code not in (0, self.usual[name])}
            outcomes, wrong = [], []
            place = self.random.randrange(2, len(self.server.states.entries) - 1)
            latest = Point("latest", "latest", frozenset({self.server.states.last.rows}), True)
            for point in (latest, self._point("inside", place)):
                outcome, what = self._reached(point, restore=self.random.random() < 0.3)
                outcomes.append(outcome)
                wrong += [what] if what else []
                if outcome.startswith("refused") and not known:
                    wrong.append(f"{point.to} is {outcome}, and neither verify nor status knows of damage")
            summary = ", ".join(outcomes)
            self.outcomes[f"{kind}: {summary}{'' if known else ' (not known)'}"] += 1
            self.bad += bool(wrong)
            print(f"{'FAIL' if wrong else 'ok  '} {number} {kind} {how}: {summary}; {known} {wrong} {key}", flush=True)
        finally:
            self.put_back()

    def _asked(self, command: str) -> int:
        words = ("verify", "main", "--deep") if command == "verify" else (command, "main")
        return self.zsnapdb(*words)[0]

    def _reached(self, point: Point, *, restore: bool) -> tuple[str, str]:
        code, plan, said = self._plan(point, None)
        if code != 0:
            return self._refused(code, said)
        wrong = self._compare(self._states_of(plan), point.right)
        if wrong or not restore:
            return "planned", wrong
        words = ("restore", "main", "--to", point.to, "--target", restored.TARGET, "--handover", "run")
        code, made, said = self.zsnapdb(*words)
        try:
            return (
                ("restored", self._compare({self._rows_of(made)}, point.right))
                if code == 0
                else self._refused(code, said)
            )
        finally:
            restored.remove(made.get("pid"))

    @staticmethod
    def _refused(code: int, said: str) -> tuple[str, str]:
        return f"refused {code}", "" if code in REFUSED and "Traceback" not in said else f"{code}: {said}"


def kind_of(key: str) -> str:
    """Return the kind of an object: its folder below the instance, and for a binlog its part."""
    parts = key.split("/")
    if len(parts) < 3:
        return parts[-1]
    return "/".join([parts[1], *(part for part in parts[2:-1] if part in PLACES)])


def run(rounds: int, seed: int) -> int:
    """Prepare, and play the rounds. Return the number of wrong ones."""
    site = StoredDamage(seed)
    site.prepare()
    for number in range(1, rounds + 1):
        site.harm_and_judge(number)
    for outcome, count in sorted(site.outcomes.items()):
        print(f"{count:4d} {outcome}")
    print(f"{rounds} rounds in a real repository of {len(site.saved)} objects, {site.bad} wrong")
    return site.bad
