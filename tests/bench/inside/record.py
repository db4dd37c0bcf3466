"""Inside a guest: fills the server with a shop's rows, and leaves its data volume's send streams in /out.

data.zfs is a full stream (`zfs send -L`), data-c.zfs the same compressed as on disk (`-L -c`), change.zfs the increment
after the newest hundredth of the rows of each table was changed. All the randomness is seeded: the same rows every
time.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from pathlib import Path

import pymysql

DATASET = "tank/mysql/data"
FILES = Path("/var/lib/mysql/data/shop")
SOCKET = "/run/mysqld/mysqld.sock"
OUT = Path("/out")

TABLES = {
    "customer": (
        "id INT UNSIGNED AUTO_INCREMENT PRIMARY KEY, email VARCHAR(80), name VARCHAR(60), street VARCHAR(60), city"
        " VARCHAR(40), country CHAR(2), born DATE, joined DATETIME, balance DECIMAL(12,2), password CHAR(60), KEY"
        " (email), KEY (city, name)"
    ),
    "orders": (
        "id INT UNSIGNED AUTO_INCREMENT PRIMARY KEY, customer INT UNSIGNED, placed DATETIME, state VARCHAR(10), total"
        " DECIMAL(12,2), note VARCHAR(200), KEY (customer), KEY (placed)"
    ),
    "line": (
        "id INT UNSIGNED AUTO_INCREMENT PRIMARY KEY, orders INT UNSIGNED, product INT UNSIGNED, pieces SMALLINT, price"
        " DECIMAL(10,2), KEY (orders), KEY (product, pieces)"
    ),
    "event": (
        "id BIGINT UNSIGNED AUTO_INCREMENT PRIMARY KEY, at DATETIME(3), session BINARY(16), path VARCHAR(120), agent"
        " VARCHAR(160), detail JSON, KEY (session)"
    ),
    "article": "id INT UNSIGNED AUTO_INCREMENT PRIMARY KEY, slug VARCHAR(80), body MEDIUMTEXT, picture BLOB",
}
COLUMNS = {
    "customer": "email, name, street, city, country, born, joined, balance, password",
    "orders": "customer, placed, state, total, note",
    "line": "orders, product, pieces, price",
    "event": "at, session, path, agent, detail",
    "article": "slug, body, picture",
}
ROWS = {"customer": 2000, "orders": 4000, "line": 16000, "event": 2500, "article": 120}
"""How many rows of each table a round inserts: of each about as many bytes."""

CHANGES = {
    "customer": "balance = balance + 1",
    "orders": "state = 'closed', total = total + 1",
    "line": "price = price + 1",
    "event": "path = CONCAT(path, '?')",
    "article": "body = REVERSE(body)",
}

AGENTS = [
    f"Mozilla/5.0 ({system}) AppleWebKit/537.36 (KHTML, like Gecko) {browser}"
    for system in (
        "X11; Linux x86_64",
        "Windows NT 10.0; Win64; x64",
        "Macintosh; Intel Mac OS X 10_15_7",
        "iPhone; CPU iPhone OS 17_5 like Mac OS X",
    )
    for browser in (
        "Chrome/126.0.0.0 Safari/537.36",
        "Version/17.5 Safari/605.1.15",
        "Firefox/128.0",
        "Edg/126.0.2592.87",
    )
]


class Shop:
    """Makes rows. Words follow a Zipf-like law, as language does; numbers, hashes and pictures do not."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        syllables = [a + b + c for a in "bdfgklmnprstvw" for b in "aeiou" for c in ("", "n", "r", "s", "l", "t")]
        self.words = [
            "".join(self.random.choices(syllables, k=self.random.choice((1, 2, 2, 3, 3, 4)))) for _ in range(30000)
        ]
        self.weights = [1 / (n + 3) for n in range(len(self.words))]
        self.pool = self.random.choices(self.words, self.weights, k=400_000)
        self.cities = [word.title() for word in self.words[:3000]]

    def text(self, words: int) -> str:
        start = self.random.randrange(len(self.pool) - words)
        return " ".join(self.pool[start : start + words])

    def moment(self) -> str:
        r = self.random
        return (
            f"{r.randint(2019, 2026)}-{self.day()} {r.randint(0, 23):02d}:{r.randint(0, 59):02d}:{r.randint(0, 59):02d}"
        )

    def day(self) -> str:
        return f"{self.random.randint(1, 12):02d}-{self.random.randint(1, 28):02d}"

    def row(self, table: str) -> str:
        r = self.random
        if table == "customer":
            first, last = r.choice(self.words), r.choice(self.words)
            return (
                f"('{first}.{last}{r.randint(1, 999)}@{r.choice(self.words[:200])}.example',"
                f"'{first.title()} {last.title()}',"
                f"'{self.text(2)} {r.randint(1, 200)}','{r.choice(self.cities)}',"
                f"'{r.choice(('DE', 'FR', 'PL', 'IT', 'ES', 'NL'))}',"
                f"'{r.randint(1940, 2006)}-{self.day()}',"
                f"'{self.moment()}',{r.randint(0, 500000) / 100},'$2b$12${r.randbytes(26).hex()}x')"
            )
        if table == "orders":
            state = r.choice(("new", "paid", "packed", "shipped", "shipped", "shipped", "returned"))
            return (
                f"({r.randint(1, 400000)},'{self.moment()}','{state}',{r.randint(100, 90000) / 100},"
                f"'{self.text(r.randint(0, 14))}')"
            )
        if table == "line":
            return (
                f"({r.randint(1, 800000)},{int(r.paretovariate(1.1)) % 50000},"
                f"{r.randint(1, 9)},{r.randint(100, 30000) / 100})"
            )
        if table == "event":
            detail = json.dumps(
                {
                    "kind": r.choice(("view", "view", "click", "search", "buy")),
                    "ms": r.randint(3, 900),
                    "q": self.text(3),
                    "ref": r.randint(1, 10**9),
                }
            )
            moment = f"{self.moment()}.{r.randint(0, 999):03d}"
            path = (
                f"x'{r.randbytes(16).hex()}','/shop/{r.choice(self.words[:500])}/{r.randint(1, 50000)}',"
                f"'{r.choice(AGENTS)}'"
            )
            return f"('{moment}',{path},'{detail}')"
        return (
            f"('{self.text(4).replace(' ', '-')}','{self.text(r.randint(300, 900))}',"
            f"x'{r.randbytes(r.randint(200, 2500)).hex()}')"
        )


def size() -> int:
    return sum(path.stat().st_size for path in FILES.iterdir())


def fill(target: int) -> None:
    """Insert rows until the files of the tables have `target` bytes."""
    shop, began, reported = Shop(1), time.monotonic(), 0
    with pymysql.connect(unix_socket=SOCKET, user="root", autocommit=False) as session, session.cursor() as cursor:
        for statement in (
            "SET sql_log_bin = 0",
            "SET unique_checks = 0",
            "SET GLOBAL innodb_flush_log_at_trx_commit = 2",
            "CREATE DATABASE shop",
            "USE shop",
        ):
            cursor.execute(statement)
        for name, columns in TABLES.items():
            cursor.execute(f"CREATE TABLE {name} ({columns}) ENGINE=InnoDB")
        while (now := size()) < target:
            for name, rows in ROWS.items():
                cursor.execute(
                    f"INSERT INTO {name} ({COLUMNS[name]}) VALUES " + ",".join(shop.row(name) for _ in range(rows))
                )
            session.commit()
            if now - reported > 100 << 20:
                reported = now
                print(f"{now >> 20} MiB of tables after {time.monotonic() - began:.0f} s", flush=True)


def change() -> None:
    """Change the newest hundredth of each table's rows, as a day's work does."""
    with (
        pymysql.connect(unix_socket=SOCKET, user="root", database="shop", autocommit=True) as session,
        session.cursor() as cursor,
    ):
        cursor.execute("SET sql_log_bin = 0")
        for table, what in CHANGES.items():
            cursor.execute(f"SELECT MAX(id) FROM {table}")
            ((newest,),) = cursor.fetchall()
            cursor.execute(f"UPDATE {table} SET {what} WHERE id > %s", (newest - newest // 100,))


def at_rest() -> None:
    """Stop the server cleanly and wait until the pool has written everything."""
    subprocess.run(["/checkout/tests/lab/inside/server", "stop"], check=True)
    subprocess.run(["zpool", "sync"], check=True)


def send(name: str, *argv: str) -> None:
    with (OUT / name).open("wb") as file:
        subprocess.run(["zfs", "send", *argv], stdout=file, check=True)
    print(f"{name}: {(OUT / name).stat().st_size >> 20} MiB", flush=True)


def main() -> int:
    """Write the three streams."""
    fill(int(sys.argv[1]))
    at_rest()
    subprocess.run(["zfs", "snapshot", f"{DATASET}@full"], check=True)
    send("data.zfs", "-L", f"{DATASET}@full")
    send("data-c.zfs", "-L", "-c", f"{DATASET}@full")
    subprocess.run(["/checkout/tests/lab/inside/server", "start"], check=True)
    change()
    at_rest()
    subprocess.run(["zfs", "snapshot", f"{DATASET}@change"], check=True)
    send("change.zfs", "-L", "-i", "@full", f"{DATASET}@change")
    return 0


if __name__ == "__main__":
    sys.exit(main())
