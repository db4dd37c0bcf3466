"""A schema with one table, sequence, view or routine of every kind, and the server's own dump of it to compare.

The names have spaces, dots, backticks, quotes and other characters. Identifiers have no characters beyond U+FFFF
(refman 8.4, "Schema Object Names"), so rows have the emoji and names have a snowman.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

SCHEMA = "the zoo"
MEMORY = "in memory"
"""The table whose rows no restore brings back."""
BY_TRANSACTION = "by transaction"
"""MariaDB's table whose history no dump holds."""
VERSIONED = {"versioned": 5, "with periods": 3, "with parts": 3, "of MyISAM": 3, "of Aria": 3}
"""MariaDB's system-versioned tables whose history a dump holds, and their rows with the old versions."""
SEQUENCES = ("next animal", "next`cage", "round and round")
VIEWS = ("all.animals", "some of them")
EVENT = (
    f"CREATE EVENT `{SCHEMA}`.`every night` ON SCHEDULE EVERY 1 DAY STARTS '2026-01-01' DISABLE DO DELETE FROM child"
    " WHERE id > 1000"
)

LIBRARY = {
    "mysql": Path("/opt/mysql/usr/lib/mysql/plugin/mysql_no_login.so"),
    "mariadb": Path("/usr/lib/mysql/plugin/ha_archive.so"),
}
"""The library of a plugin that the server of a flavour has installed for the zoo."""
NAMES = ("with space", "with.dot", "back`tick", "quo'te\"s", "snow☃man", "-dash", "percent%_")

_BOTH = (
    "CREATE TABLE parent (id INT PRIMARY KEY AUTO_INCREMENT, name VARCHAR(40) NOT NULL UNIQUE) AUTO_INCREMENT = 1000",
    "INSERT INTO parent (name) VALUES ('🦒 giraffe'), ('🐘'), ('zebra\\n\\t\\0''\"`')",
    (
        "CREATE TABLE child (id INT PRIMARY KEY, parent INT, weight DECIMAL(10, 3), CONSTRAINT `belongs to` FOREIGN KEY"
        " (parent) REFERENCES parent (id) ON DELETE CASCADE, CHECK (weight > 0))"
    ),
    "INSERT INTO child VALUES (1, 1000, 800.125), (2, 1001, 5000), (3, NULL, 0.001)",
    (
        "CREATE TABLE types (b BIT(9), y YEAR, t TIME(6), d DATETIME(3), s TIMESTAMP(6) NULL, e ENUM('a', 'ü'), f"
        " SET('x', 'y'), bin BINARY(5), blo LONGBLOB, txt MEDIUMTEXT, dou DOUBLE,"
        " neg BIGINT, big BIGINT UNSIGNED) CHARSET utf8mb4"
    ),
    (
        "INSERT INTO types VALUES (b'101010101', 2026, '-838:59:58.999999', '2026-11-22 01:02:03.004', '2026-11-22"
        " 01:02:03.000004', 'ü', 'x,y', X'00FF00', X'0001FF27', '🦓\\\\''', 1e-300, -9223372036854775808,"
        " 18446744073709551615), (NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL)"
    ),
    (
        "CREATE TABLE computed (id INT PRIMARY KEY, a INT, twice INT AS (a * 2) VIRTUAL, thrice INT AS (a * 3)"
        " STORED, KEY (twice), hidden INT INVISIBLE DEFAULT 7)"
    ),
    "INSERT INTO computed (id, a, hidden) VALUES (1, 10, 1), (2, 20, 2)",
    "INSERT INTO computed (id, a) VALUES (3, 30)",
    (
        "CREATE TABLE ranges (id INT, day DATE, PRIMARY KEY (id, day)) PARTITION BY RANGE (YEAR(day)) (PARTITION"
        " old VALUES LESS THAN (2020), PARTITION rest VALUES LESS THAN MAXVALUE)"
    ),
    "INSERT INTO ranges VALUES (1, '2019-01-01'), (2, '2026-01-01')",
    "CREATE TABLE hashed (id INT PRIMARY KEY, v INT) PARTITION BY HASH (id) PARTITIONS 3",
    "INSERT INTO hashed VALUES (1, 1), (2, 2), (3, 3), (4, 4)",
    "CREATE TABLE words (id INT PRIMARY KEY, body TEXT, FULLTEXT KEY (body))",
    "INSERT INTO words VALUES (1, 'the quick brown fox'), (2, 'the lazy dog')",
    "CREATE TABLE places (id INT PRIMARY KEY, at POINT NOT NULL, SPATIAL INDEX (at))",
    "INSERT INTO places VALUES (1, ST_GeomFromText('POINT(1 2)')), (2, ST_GeomFromText('POINT(-3 4.5)'))",
    "CREATE TABLE documents (id INT PRIMARY KEY, doc JSON)",
    """INSERT INTO documents VALUES (1, '{"a": [1, 2, {"b": "🐧"}]}'), (2, NULL)""",
    "CREATE TABLE squeezed (id INT PRIMARY KEY, body TEXT) ROW_FORMAT = COMPRESSED KEY_BLOCK_SIZE = 8",
    "INSERT INTO squeezed VALUES (1, REPEAT('squeeze ', 900))",
    "CREATE TABLE myisam (id INT PRIMARY KEY, v VARCHAR(9), KEY (v)) ENGINE = MyISAM",
    "INSERT INTO myisam VALUES (1, 'a'), (2, 'b')",
    "CREATE TABLE myisam2 LIKE myisam",
    "INSERT INTO myisam2 VALUES (3, 'c')",
    (
        "CREATE TABLE merged (id INT NOT NULL, v VARCHAR(9), KEY (id), KEY (v)) ENGINE = MRG_MyISAM UNION = (myisam,"
        " myisam2)"
    ),
    f"CREATE TABLE `{MEMORY}` (id INT PRIMARY KEY) ENGINE = MEMORY",
    f"INSERT INTO `{MEMORY}` VALUES (1), (2)",
    "CREATE TABLE csv (id INT NOT NULL, v VARCHAR(20) NOT NULL) ENGINE = CSV",
    "INSERT INTO csv VALUES (1, 'a,\"b\"'), (2, '')",
    "CREATE TABLE archive (id INT, v VARCHAR(20)) ENGINE = ARCHIVE",
    "INSERT INTO archive VALUES (1, 'old'), (2, 'older')",
    "CREATE TABLE hole (id INT) ENGINE = BLACKHOLE",
    "CREATE VIEW `all.animals` AS SELECT id, name FROM parent",
    "CREATE VIEW `some of them` AS SELECT name FROM `all.animals` WHERE id > 1000",
    "CREATE TRIGGER `before it` BEFORE INSERT ON child FOR EACH ROW SET NEW.weight = COALESCE(NEW.weight, 1)",
    "CREATE PROCEDURE `feed them` (IN who INT) UPDATE child SET weight = weight + 1 WHERE id = who",
    "CREATE FUNCTION `double it` (x INT) RETURNS INT DETERMINISTIC RETURN x * 2",
    EVENT,
)
# No table has compressed pages: where a record of the dataset is a page, MySQL refuses COMPRESSION = 'zlib', as it
# cannot punch holes, and MariaDB's writes of 512 bytes for PAGE_COMPRESSED fail with EINVAL.
# No table is encrypted: the lab's servers have no keyring.
_MYSQL = (
    "CREATE TABLESPACE zoo_space ADD DATAFILE 'zoo_space.ibd' ENGINE = InnoDB",
    "CREATE TABLE `in space` (id INT PRIMARY KEY) TABLESPACE zoo_space",
    "INSERT INTO `in space` VALUES (1), (2)",
    (
        "CREATE TABLE functional (id INT PRIMARY KEY, doc JSON, KEY `by name` ((CAST(doc ->> '$.name' AS"
        " CHAR(20)))), KEY backwards (id DESC))"
    ),
    """INSERT INTO functional VALUES (1, '{"name": "🐍"}')""",
)
_MARIADB = (
    "CREATE TABLE zipped (id INT PRIMARY KEY, body TEXT COMPRESSED)",
    "INSERT INTO zipped VALUES (1, REPEAT('zip ', 2000))",
    "CREATE TABLE aria (id INT PRIMARY KEY, v INT) ENGINE = Aria",
    "INSERT INTO aria VALUES (1, 1), (2, 2)",
    "CREATE TABLE aria2 (id INT PRIMARY KEY) ENGINE = Aria TRANSACTIONAL = 0",
    "INSERT INTO aria2 VALUES (1)",
    "CREATE SEQUENCE `next animal` START WITH 100 INCREMENT BY 10 CACHE 20",
    "CREATE SEQUENCE `next``cage` NOCACHE ENGINE = Aria",
    "CREATE SEQUENCE `round and round` MINVALUE 1 MAXVALUE 3 CYCLE NOCACHE ENGINE = MyISAM",
    "SELECT NEXTVAL(`next animal`), NEXTVAL(`next``cage`), NEXTVAL(`round and round`)",
    "CREATE TABLE numbered (id INT PRIMARY KEY DEFAULT NEXTVAL(`next animal`), v INT)",
    "INSERT INTO numbered (v) VALUES (1), (2)",
    "CREATE TABLE versioned (id INT PRIMARY KEY, v INT) WITH SYSTEM VERSIONING",
    (
        "CREATE TABLE `with periods` (id INT, v INT, start_of TIMESTAMP(6) GENERATED ALWAYS AS ROW START"
        " INVISIBLE, end_of TIMESTAMP(6) GENERATED ALWAYS AS ROW END INVISIBLE, PERIOD FOR SYSTEM_TIME (start_of,"
        " end_of), since DATE, until DATE, PERIOD FOR valid (since, until),"
        " PRIMARY KEY (id, valid WITHOUT OVERLAPS)) WITH SYSTEM VERSIONING"
    ),
    (
        "CREATE TABLE `with parts` (id INT PRIMARY KEY, v INT) WITH SYSTEM VERSIONING PARTITION BY SYSTEM_TIME"
        " (PARTITION was HISTORY, PARTITION now CURRENT)"
    ),
    "CREATE TABLE `of MyISAM` (id INT PRIMARY KEY, v INT) WITH SYSTEM VERSIONING ENGINE = MyISAM",
    "CREATE TABLE `of Aria` (id INT PRIMARY KEY, v INT) WITH SYSTEM VERSIONING ENGINE = Aria",
    (
        f"CREATE TABLE `{BY_TRANSACTION}` (id INT PRIMARY KEY, v INT, s BIGINT UNSIGNED GENERATED ALWAYS AS ROW"
        " START, e BIGINT UNSIGNED GENERATED ALWAYS AS ROW END, PERIOD FOR SYSTEM_TIME (s, e)) WITH SYSTEM VERSIONING"
    ),
    *(
        statement
        for name in ("versioned", "with parts", "of MyISAM", "of Aria", BY_TRANSACTION)
        for statement in (
            f"INSERT INTO `{name}` (id, v) VALUES (1, 1), (2, 2)",
            f"UPDATE `{name}` SET v = 3 WHERE id = 1",
        )
    ),
    "DELETE FROM versioned WHERE id = 2",
    "INSERT INTO versioned VALUES (3, 3), (4, 4)",
    (
        "INSERT INTO `with periods` (id, v, since, until) VALUES (1, 1, '2026-01-01', '2026-06-01'), (2, 2,"
        " '2026-01-01', '2027-01-01')"
    ),
    "UPDATE `with periods` SET v = 3 WHERE id = 1",
    f"CREATE VIEW `of transactions` AS SELECT id, v FROM `{BY_TRANSACTION}`",
)


def _names() -> Iterable[str]:
    for number, name in enumerate(NAMES):
        quoted = "`" + name.replace("`", "``") + "`"
        yield f"CREATE TABLE {quoted} (id INT PRIMARY KEY, {quoted} VARCHAR(50))"
        yield f"INSERT INTO {quoted} VALUES ({number}, 'a 🦁 in the row')"


@dataclass(frozen=True)
class Zoo:
    """The schema on a server: its flavour, and how statements are run there, all in one session."""

    flavour: str
    run: Callable[[Iterable[str]], None]

    def build(self) -> None:
        """Create the schema. Its plugins are installed first."""
        plugins: tuple[str, ...] = ("INSTALL SONAME 'ha_archive'", "INSTALL SONAME 'ha_blackhole'")
        if self.flavour == "mysql":
            plugins = (f"INSTALL PLUGIN mysql_no_login SONAME '{LIBRARY['mysql'].name}'",)
        more = _MYSQL if self.flavour == "mysql" else _MARIADB
        begin = (f"CREATE DATABASE `{SCHEMA}` CHARACTER SET utf8mb4", f"USE `{SCHEMA}`")
        self.run((*plugins, *begin, "SET NAMES utf8mb4", *_names(), *_BOTH, *more))

    def remove(self) -> None:
        """Drop the schema, and what it has outside."""
        plugins = ("UNINSTALL SONAME 'ha_archive'", "UNINSTALL SONAME 'ha_blackhole'")
        if self.flavour == "mysql":
            plugins = ("UNINSTALL PLUGIN mysql_no_login", "DROP TABLESPACE zoo_space")
        self.run((f"DROP DATABASE `{SCHEMA}`", *plugins))


def dump(program: str, login: Iterable[str], schema: str, flavour: str, *, tables_only: bool = False) -> str:
    """Return the server's own dump of the schema: rows, old versions of rows, definitions; code unless `tables_only`.

    Without the table in memory, whose rows do not last. Of MariaDB's table by transaction only the definition is there:
    its rows have the numbers of transactions of their server.
    """
    words = [
        program,
        "--no-defaults",
        *login,
        "--hex-blob",
        "--single-transaction",
        "--skip-comments",
        "--no-tablespaces",
    ]
    words += ["--set-gtid-purged=OFF"] if flavour == "mysql" else []
    code = ["--triggers", "--routines", "--events"]
    ignored = [MEMORY]
    if tables_only:
        code = ["--skip-triggers"]
        ignored += [*VIEWS, "of transactions"]
    text = ""
    if flavour == "mariadb":
        text = _output([*words, "--skip-triggers", "--no-data", "--", schema, BY_TRANSACTION])
        words.append("--dump-history")
        ignored.append(BY_TRANSACTION)
    return text + _output([*words, *code, *(f"--ignore-table={schema}.{name}" for name in ignored), "--", schema])


def _output(words: list[str]) -> str:
    done = subprocess.run(words, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode()


def load(client: list[str], schema: str, path: Path) -> None:
    """Load a dump file into the schema."""
    with path.open("rb") as file:
        done = subprocess.run([*client, "--", schema], stdin=file, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()
