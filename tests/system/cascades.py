"""Tables with foreign keys, random statements that follow them, and the rows that are there afterwards."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

SCHEMA = """
CREATE TABLE parent (id INT PRIMARY KEY, code INT UNIQUE, v INT) ENGINE=InnoDB;
CREATE TABLE child (id INT PRIMARY KEY, parent INT, v INT,
    FOREIGN KEY (parent) REFERENCES parent (id) ON DELETE CASCADE ON UPDATE CASCADE) ENGINE=InnoDB;
CREATE TABLE grandchild (id INT PRIMARY KEY, child INT, v INT,
    FOREIGN KEY (child) REFERENCES child (id) ON DELETE CASCADE ON UPDATE CASCADE) ENGINE=InnoDB;
CREATE TABLE by_code (id INT PRIMARY KEY, code INT, v INT,
    FOREIGN KEY (code) REFERENCES parent (code) ON DELETE SET NULL ON UPDATE SET NULL) ENGINE=InnoDB;
CREATE TABLE tree (id INT PRIMARY KEY, above INT, v INT,
    FOREIGN KEY (above) REFERENCES tree (id) ON DELETE CASCADE) ENGINE=InnoDB;
CREATE TABLE noted (id INT PRIMARY KEY AUTO_INCREMENT, row_id INT, v INT) ENGINE=InnoDB
"""
TRIGGERS = """
CREATE TRIGGER of_parent AFTER DELETE ON parent FOR EACH ROW INSERT INTO noted (row_id, v) VALUES (OLD.id, 1);
CREATE TRIGGER of_child AFTER DELETE ON child FOR EACH ROW INSERT INTO noted (row_id, v) VALUES (OLD.id, 2)
"""
"""With a trigger for deletions, servers do not turn a REPLACE into an UPDATE."""
TABLES = ("parent", "child", "grandchild", "by_code", "tree", "noted")


def statements(seed: int, count: int) -> Iterator[str]:
    """Yield random statements. Some of them fail, because they violate a key."""
    chosen = random.Random(seed)

    def row() -> str:
        return f"({', '.join(str(chosen.randint(1, 12)) for _ in range(3))})"

    def number() -> int:
        return chosen.randint(1, 12)

    for _ in range(count):
        table = chosen.choice(("parent", *TABLES[:-1]))
        joined = "child JOIN parent ON child.parent = parent.id"
        yield from chosen.choice(
            (
                (f"INSERT IGNORE INTO {table} VALUES {row()}, {row()}",),
                (f"INSERT INTO tree VALUES ({number()}, NULL, 0)",),
                (f"REPLACE INTO {table} VALUES {row()}",),
                (f"REPLACE INTO {table} VALUES {row()}, {row()}, {row()}",),
                (f"REPLACE INTO parent VALUES {row()}, {row()}",),
                (f"INSERT INTO parent VALUES {row()} ON DUPLICATE KEY UPDATE v = v + 1, code = {number()}",),
                (f"DELETE FROM {table} WHERE id = {number()}",),
                (f"UPDATE IGNORE {table} SET id = {number()} WHERE id = {number()}",),
                (f"UPDATE IGNORE parent SET code = {number()} WHERE id = {number()}",),
                (f"DELETE parent, child FROM {joined} WHERE parent.id < {number()}",),
                (
                    "SET SESSION foreign_key_checks = 0",
                    f"DELETE FROM parent WHERE id = {number()}",
                    "SET SESSION foreign_key_checks = 1",
                ),
            )
        )


def rows(cursor: Any) -> dict[str, tuple[Any, ...]]:
    """Return the rows of each table in the cursor's schema."""
    content = {}
    for table in TABLES:
        cursor.execute(f"SELECT * FROM {table} ORDER BY 1, 2, 3")
        content[table] = tuple(cursor.fetchall())
    return content
