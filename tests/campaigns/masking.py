"""Campaign: clones are masked after a history of updates, deletes and rollbacks, and every file is searched.

It runs inside a guest (`python3 tests/lab campaign masking`). Each round creates tables of every kind on the source,
with values that masking must remove. Rows are changed, deleted and rolled back, and statistics are gathered. A view of
old rows and a transaction without end may be open. Then a clone of the running server is masked. Every file of its
datasets is searched for the values: as text, in the character sets of the columns, as fulltext words, and in base64.
Its tables are read too, with their history. Each masked table counts as one masking.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pymysql

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.campaigns.support.private_tables import SCHEMA, SECRET, History, Kind, kinds_of, masking_sql
from zsnapdb.base.domain_types import Flavour
from zsnapdb.planning.clone.masking import forms

SOCKET = "/run/mysqld/mysqld.sock"
CONFIG = Path("/etc/zsnapdb/zsnapdb.toml")
OWN_CONFIG = Path("/tmp/masking.toml")
SQL_FILE = Path("/tmp/mask.sql")
NAME = "masked"
_PAGE = 16384


@dataclass(frozen=True)
class Found:
    """An occurrence of a value: the file, the offset, and the bytes around the value."""

    file: str
    position: int
    around: bytes

    def __str__(self) -> str:
        return f"{self.file} page {self.position // _PAGE} byte {self.position % _PAGE}: {self.around!r}"


def zsnapdb(*words: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "ZSNAPDB_CONFIG": str(OWN_CONFIG)}
    return subprocess.run(("zsnapdb", *words), capture_output=True, text=True, timeout=900, check=False, env=env)


def search(top: Path) -> list[Found]:
    """Return the first occurrence of each form of the value in each file below a folder."""
    places = []
    for folder, _, names in os.walk(top):
        for name in sorted(names):
            file = Path(folder) / name
            if not file.is_file() or file.is_symlink():
                continue
            content = file.read_bytes()
            for form in forms(SECRET):
                at = content.find(form)
                if at >= 0:
                    around = content[max(0, at - 40) : at + 60]
                    places.append(Found(str(file.relative_to(top)), at, around))
    return places


def configure(rebuild: str, *, doublewrite: bool) -> None:
    """Write a configuration that masks every clone."""
    section = f'[instance.main.masking]\nrequired = true\nrun = ["{SQL_FILE}"]\nrebuild = "{rebuild}"\n\n'
    text = CONFIG.read_text().replace("[repository.s3]\n", f"{section}[repository.s3]\n", 1)
    if doublewrite:
        text = text.replace('options = ["', 'options = ["innodb_doublewrite=ON", "', 1)
    OWN_CONFIG.write_text(text)


def in_tables(clone: dict[str, Any], kinds: list[Kind]) -> list[str]:
    """Return the tables of a running clone that contain the value or are damaged."""
    wrong, port = [], clone["clone"]["port"]
    with (
        pymysql.connect(host="127.0.0.1", port=port, user=clone["user"], password=clone["password"]) as connection,
        connection.cursor() as cursor,
    ):
        for kind in kinds:
            every = " FOR SYSTEM_TIME ALL" if kind.is_versioned else ""
            cursor.execute(f"SELECT * FROM {kind.quoted}{every}")
            if SECRET in str(cursor.fetchall()):
                wrong.append(f"rows of {kind.name}")
            cursor.execute(f"CHECK TABLE {kind.quoted}")
            if cursor.fetchall()[-1][-1] != "OK":
                wrong.append(f"{kind.name} is damaged")
    return wrong


class Campaign:
    """Masks clones, and counts the values left in their files."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.flavour = Flavour(Path("/etc/lab-flavour").read_text().strip())
        self.kinds = kinds_of(self.flavour)
        self.tables = self.rebuilt = self.wrong = 0

    def round(self, number: int) -> None:
        chance = random.Random(f"{self.seed}/{number}")
        history = History(SOCKET, self.flavour, chance)
        history.write()
        SQL_FILE.write_text(masking_sql(self.flavour, chance))
        rebuild = chance.choice(("changed", "changed", "all"))
        configure(rebuild, doublewrite=chance.random() < 0.5)
        with history.open_transactions():
            began = time.monotonic()
            made = zsnapdb("clone", "create", "main", "--from", "live", "--name", NAME, "--json")
            seconds = time.monotonic() - began
        if made.returncode != 0:
            raise AssertionError(made.stderr)
        result = json.loads(made.stdout)
        places = search(Path(result["clone"]["mount"]))
        wrong = [str(place) for place in places] + in_tables(result, self.kinds)
        rebuilt = len(result["masking"]["rebuilt"])
        missing = {f"{SCHEMA}.{kind.name}" for kind in self.kinds} - set(result["masking"]["rebuilt"])
        wrong += [f"not rebuilt: {sorted(missing)}"] if missing else []
        self.tables, self.rebuilt = self.tables + len(self.kinds), self.rebuilt + rebuilt
        self.wrong += bool(wrong)
        print(
            f"{number:>3} {rebuild:<7} {len(self.kinds)} tables, {rebuilt} rebuilt, {seconds:.0f} s:"
            f" {'; '.join(wrong) or 'ok'}",
            flush=True,
        )
        destroyed = zsnapdb("clone", "destroy", NAME)
        assert destroyed.returncode == 0, destroyed.stderr


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--first", type=int, default=1, help="the number of the first round")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    campaign = Campaign(options.seed)
    for number in range(options.first, options.first + options.rounds):
        campaign.round(number)
    print(f"{options.rounds} clones, {campaign.tables} masked tables, {campaign.wrong} clones with old values")
    return 1 if campaign.wrong or not campaign.tables else 0


if __name__ == "__main__":
    sys.exit(main())
