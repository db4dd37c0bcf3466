"""Nobody can connect to a clone before it is masked, and its files contain nothing of the old rows."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from .in_guest import Lab, ask, connect, everything, remove_unused_sets, zfs

pytestmark = pytest.mark.usefixtures("first")

SECRET = b"ZSECRET"
SQL = """-- a comment; with a semicolon
UPDATE private.people SET name = CONCAT('masked; ', id), email = CONCAT('m', id, '@example.invalid'), note = '';
UPDATE private.others SET note = 'masked';
/* the last one */
DELETE FROM private.mails;
ALTER TABLE private.gone DROP COLUMN phone;
UPDATE private.users SET name = 'masked user';
-- and a comment at the end
"""
VERSIONED_SQL = "UPDATE private.versioned SET note = 'masked';\n"
TABLES = ("people", "others", "mails", "keys_of", "gone", "users", "orders")


def holding(folder: Path) -> dict[str, int]:
    """Return the files below a folder that contain the secret, and how often."""
    files = (Path(top) / name for top, _, names in os.walk(folder) for name in names)
    counts = {str(file.relative_to(folder)): file.read_bytes().count(SECRET) for file in files if file.is_file()}
    return {name: count for name, count in counts.items() if count}


@pytest.fixture(scope="module")
def private(lab: Lab) -> Iterator[None]:
    """A schema with a secret in rows, deleted rows, two engines, histograms and a log file, backed up."""
    log = Path("/var/lib/mysql/data/slow.log")
    lab.sql("CREATE DATABASE private")
    lab.sql(
        "CREATE TABLE private.people (id INT PRIMARY KEY, name VARCHAR(200), email VARCHAR(200), note TEXT, KEY"
        " (email))"
    )
    lab.sql("CREATE TABLE private.others (id INT PRIMARY KEY, note VARCHAR(200)) ENGINE = MyISAM")
    lab.sql("CREATE TABLE private.keys_of (id INT PRIMARY KEY, api_key VARCHAR(100))")
    lab.sql("INSERT INTO private.keys_of VALUES (1, 'ZSECRET')")
    # Dropped at once, a column leaves its values in the file, and the server shows no change of the table.
    lab.sql("CREATE TABLE private.gone (id INT PRIMARY KEY, phone VARCHAR(100), word VARCHAR(9))")
    lab.sql("INSERT INTO private.gone VALUES (1, 'ZSECRET phone', 'kept')")
    if lab.flavour == "mariadb":
        lab.sql("CREATE TABLE private.versioned (id INT PRIMARY KEY, note VARCHAR(100)) WITH SYSTEM VERSIONING")
        lab.sql("INSERT INTO private.versioned VALUES (1, 'ZSECRET 1'), (2, 'ZSECRET 2')")
        lab.sql("UPDATE private.versioned SET note = 'ZSECRET 3' WHERE id = 1")
        lab.sql("DELETE FROM private.versioned WHERE id = 2")
        lab.sql("CREATE SEQUENCE private.numbers NOCACHE")
        lab.sql("SELECT NEXTVAL(private.numbers)")
    lab.sql("CREATE TABLE private.users (name VARCHAR(100) PRIMARY KEY)")
    lab.sql(
        "CREATE TABLE private.orders (id INT PRIMARY KEY, name VARCHAR(100), FOREIGN KEY (name) REFERENCES"
        " private.users (name) ON UPDATE CASCADE)"
    )
    lab.sql("INSERT INTO private.users VALUES ('ZSECRET user')")
    lab.sql("INSERT INTO private.orders VALUES (1, 'ZSECRET user')")
    lab.sql("CREATE TABLE private.mails (id INT PRIMARY KEY, body TEXT)")
    lab.sql("CREATE TABLE private.untouched (id INT PRIMARY KEY, word VARCHAR(20))")
    lab.sql("INSERT INTO private.untouched VALUES (1, 'kept')")
    numbers = "WITH RECURSIVE n AS (SELECT 1 AS i UNION ALL SELECT i + 1 FROM n WHERE i < 900) SELECT"
    lab.sql(
        f"INSERT INTO private.people {numbers} i, CONCAT('ZSECRET ', i), CONCAT('ZSECRET', i, '@x'), REPEAT('ZSECRET"
        " note ', 20) FROM n"
    )
    lab.sql(f"INSERT INTO private.mails {numbers} i, REPEAT('ZSECRET mail ', 20) FROM n")
    lab.sql(f"INSERT INTO private.others {numbers} i, 'ZSECRET other' FROM n")
    lab.sql("DELETE FROM private.people WHERE id > 800")
    histogram = "UPDATE HISTOGRAM ON name WITH 16 BUCKETS" if lab.flavour == "mysql" else "PERSISTENT FOR ALL"
    lab.sql(f"ANALYZE TABLE private.people {histogram}")
    log.write_text("SELECT 'ZSECRET in a statement'\n")
    shutil.chown(log, "mysql", "mysql")
    lab.sql(f"SET GLOBAL slow_query_log_file = '{log}'")
    try:
        assert lab.zsnapdb("backup").code == 0
        yield
    finally:
        lab.sql("SET GLOBAL slow_query_log_file = DEFAULT")
        log.unlink()
        lab.sql("DROP DATABASE private")


def configured(lab: Lab, *lines: str, options: str = "") -> Path:
    section = "\n".join(("[instance.main.masking]", *lines)) + "\n\n[repository.s3]\n"
    return lab.changed(("[repository.s3]\n", section), ('options = ["', f'options = [{options}"'))


def check_that_masking_by_hand_leaves_old_rows(lab: Lab, config: Path) -> None:
    """The danger: the files of an ordinary clone that was masked by hand still contain the old rows.

    With `config`, which requires masking, that clone is not handed out.
    """
    naive = lab.zsnapdb("clone", "create", "main", "--name", "naive", "--json").json
    try:
        with connect(naive) as here, here.cursor() as cursor:
            for statement in SQL.split(";\n")[:-1]:
                cursor.execute(statement)
        places = {
            name.rpartition("/")[2].split(".")[0].rstrip("0123456789")
            for name in holding(Path(naive["clone"]["mount"]))
        }
        assert {"binlog", "slow"} <= places, places
        # Where masking is required, zsnapdb does not hand out a clone that was started before that.
        refused = lab.zsnapdb("clone", "connect", "naive", "--dsn", config=config)
        assert (refused.code, "is not masked" in refused.stderr) == (4, True), refused.stderr
    finally:
        assert lab.zsnapdb("clone", "destroy", "naive").code == 0


def test_of_masked_rows_nothing_is_left_in_the_files_of_a_clone(lab: Lab, private: None, tmp_path: Path) -> None:
    sql, script = tmp_path / "mask.sql", tmp_path / "more"
    sql.write_text(SQL + (VERSIONED_SQL if lab.flavour == "mariadb" else ""))
    script.write_text("#!/bin/sh\nPATH=/opt/mysql/bin:/usr/bin:/bin exec /checkout/hooks/mask-with-client\n")
    script.chmod(0o700)
    canaries = 'canaries = ["ZSECRET"]'
    run = f'run = ["{sql}", "{script}"]'
    config = configured(lab, "required = true", run, canaries, options='"innodb_doublewrite=ON", ')

    check_that_masking_by_hand_leaves_old_rows(lab, config)
    live = lab.zsnapdb("clone", "create", "main", "--from", "live", "--plan", "--json", config=config).json
    assert (live["masked_how"]["way"], "no other clone" in live["masked_how"]["reason"]) == ("alone", True)
    made = lab.zsnapdb("clone", "create", "main", "--name", "masked", "--admin", "--json", config=config).json
    try:
        mount = Path(made["clone"]["mount"])
        assert holding(mount) == {}
        with connect(made) as here:
            assert ask(here, "SELECT COUNT(*), MIN(name), MAX(note) FROM private.people") == [(800, "masked; 1", "")]
            assert ask(here, "SELECT COUNT(*) FROM private.mails") == [(0,)]
            assert ask(here, "SELECT * FROM private.keys_of") == [(1, "")]
            assert ask(here, "SELECT * FROM private.untouched") == [(1, "kept")]
            assert ask(here, "SELECT COUNT(*) FROM mysql.user WHERE user = 'zsnapdb_mask'") == [(0,)]
            assert all(row[-1] == "OK" for table in TABLES for row in ask(here, f"CHECK TABLE private.{table}"))
            assert ask(here, "SELECT * FROM private.gone") == [(1, "kept")]
            if lab.flavour == "mariadb":
                assert ask(here, "SELECT id, note FROM private.versioned FOR SYSTEM_TIME ALL") == [(1, "masked")]
                assert ask(here, "SELECT NEXTVAL(private.numbers)") == [(2,)]
        assert not list((mount / ".zsnapdb").glob("mask*"))
        report = made["masking"]
        assert [(s["name"], s["statements"], s["rows"]) for s in report["steps"]] == [
            (str(sql), *((6, 800 + 900 + 900 + 2) if lab.flavour == "mariadb" else (5, 800 + 900 + 900 + 1))),
            (str(script), None, None),
        ]
        rebuilt = (*TABLES, "versioned") if lab.flavour == "mariadb" else TABLES
        assert set(report["rebuilt"]) == {f"private.{table}" for table in rebuilt}
        for dataset in made["clone"]["datasets"][1:]:
            assert zfs("get", "-H", "-o", "source", "zsnapdb:masked", dataset) == ["local"]
        assert holding(Path("/var/lib/mysql")), "the source still has what the clone must not"
        # Nobody prepared the set: the first clone had it masked for all.
        assert made["masked_how"]["way"] == "prepares"
        second = lab.zsnapdb("clone", "create", "main", "--plan", "--json", config=config).json
        assert (second["masked_how"]["way"], second["masked_source"], second["prepared"]) == ("prepared", True, True)
        kept = [one["name"] for one in lab.zsnapdb("reap", "--plan", "--json").json["swept"]]
        assert any(name.startswith(f"{second['backup_id']}-") for name in kept), kept
        if lab.flavour == "mysql":
            source = lab.zsnapdb("show", "main", made["clone"]["backup_id"], "--json").json["backup"]
            assert source["position"]["gtids"] in made["clone"]["position"]

        # What was masked can be committed and cloned, and is not masked again.
        commit = lab.zsnapdb("clone", "commit", "masked", "--json").json["id"]
        again = lab.zsnapdb(
            "clone", "create", "main", "--from", commit, "--name", "again", "--json", config=config
        ).json
        assert again["masking"] is None
        assert holding(Path(again["clone"]["mount"])) == {}
        assert zfs("get", "-H", "-o", "source", "zsnapdb:masked", again["clone"]["datasets"][1]) == ["local"]
        assert lab.zsnapdb("clone", "destroy", "again").code == 0
        # By other rules it would have to be masked twice.
        sql.write_text("UPDATE private.people SET name = 'x';\n")
        refused = lab.zsnapdb("clone", "create", "main", "--from", commit, "--name", "again", config=config)
        assert (refused.code, "masked with earlier rules" in refused.stderr) == (4, True), refused.stderr
    finally:
        assert lab.zsnapdb("clone", "destroy", "masked").code == 0
        remove_unused_sets(lab)


# When a set is masked again is decided by files and properties. That the rows of each server are masked, and that a
# commit of masked rows is cloned without masking, the test before shows on both.
@pytest.mark.any_server
def test_a_set_is_masked_once_and_its_clones_and_their_resets_never_again(
    lab: Lab, private: None, tmp_path: Path
) -> None:
    before, sql, count = everything(), tmp_path / "mask.sql", tmp_path / "count"
    sql.write_text("UPDATE private.people SET name = CONCAT('m', name), email = '', note = '';\n")
    count.write_text(f"#!/bin/sh\necho masked >> {tmp_path}/runs\n")
    count.chmod(0o700)
    config = configured(lab, "required = true", f'run = ["{sql}", "{count}"]')

    def clone(*words: str) -> dict[str, Any]:
        done: dict[str, Any] = lab.zsnapdb("clone", *words, "--json", config=config).json
        return done

    def runs() -> int:
        return len((tmp_path / "runs").read_text().splitlines())

    def check(login: dict[str, Any]) -> None:
        with connect(login) as here:
            assert ask(here, "SELECT LEFT(name, 8), note FROM private.people WHERE id = 1") == [("mZSECRET", "")]
            ask(here, "DELETE FROM private.people")

    assert any(step.startswith("mask it") for step in clone("prepare", "main", "--plan")["steps"])
    prepared = clone("prepare", "main")
    assert (prepared["masked"], len(prepared["masking"]["steps"]), runs()) == (True, 2, 1)
    assert (clone("prepare", "main", "--plan")["steps"], clone("prepare", "main")["masking"]) == ([], None)
    planned = clone("create", "main", "--plan")
    assert (planned["masks"], planned["masked_source"], planned["prepared"]) == (True, True, True)
    # The first start of a clone of the form masks nothing, and its plan says so.
    clone("create", "main", "--name", "later", "--no-start")
    assert not [step for step in clone("start", "later", "--plan")["steps"] if "mask" in step]
    assert lab.zsnapdb("clone", "destroy", "later").code == 0
    made = clone("create", "main", "--name", "golden")
    source = lab.zsnapdb("show", "main", prepared["backup_id"], "--json", config=config).json["backup"]
    try:
        assert (made["masking"], runs(), made["clone"]["masked"]) == (None, 1, True)
        if lab.flavour == "mysql":
            assert source["position"]["gtids"] in made["clone"]["position"]
        check(made)
        # What was written is gone, and nothing is masked again.
        assert clone("reset", "golden")["clone"]["masked"]
        check(made)
        assert runs() == 1
        # The form was masked with earlier rules: not even the reset of its own clone uses it.
        sql.write_text("UPDATE private.people SET name = CONCAT('mZSECRET', id), email = '', note = '';\n")
        assert not clone("create", "main", "--plan")["masked_source"]
        assert clone("reset", "golden")["clone"]["masked"]
        assert runs() == 2
        check(made)
        again = clone("prepare", "main")
        assert (again["masked"], again["snapshots"] != prepared["snapshots"], runs()) == (True, True, 3)
        # Replaced, its data is of the new form, which stays as long as it does.
        assert clone("reset", "golden", "--replace")["clone"]["masked"]
        assert runs() == 3
        check(made)
        assert lab.zsnapdb("clone", "prepare", "main", "--remove", config=config).code == 4, "it has a clone"
    finally:
        assert lab.zsnapdb("clone", "destroy", "golden").code == 0
    goes = clone("prepare", "main", "--from", prepared["backup_id"], "--remove", "--plan")
    assert (len(goes["removed"]), goes["done"]) == (2, False)
    assert clone("prepare", "main", "--remove") == {**goes, "done": True}
    assert lab.zsnapdb("clone", "prepare", "main", "--remove", config=config).code == 2
    assert everything() == before


@pytest.mark.parametrize(
    ("text", "code", "said"),
    [
        pytest.param(
            "UPDATE private.people SET name = 'x';\nUPDATE private.nowhere SET name = 'x';\n",
            12,
            "statement 2",
            marks=pytest.mark.any_server,
        ),
        ("UPDATE private.people SET name = 'x';\n/* never closed\n", 12, "1064"),
        # What is searched is files, and that nothing is left in those of each server the test before shows on both.
        pytest.param(
            "UPDATE private.people SET name = 'x';\n",
            11,
            "canary 1 in data/private/keys_of.ibd",
            marks=pytest.mark.any_server,
        ),
    ],
    ids=["fails", "open comment", "leaves a canary"],
)
def test_a_clone_whose_masking_fails_is_never_there(
    lab: Lab, private: None, tmp_path: Path, text: str, code: int, said: str
) -> None:
    sql, before = tmp_path / "mask.sql", everything()
    sql.write_text(text)
    config = configured(lab, "required = true", f'run = ["{sql}"]', 'canaries = ["ZSECRET"]')
    done = lab.zsnapdb("clone", "create", "main", "--name", "half", config=config)
    assert done.code == code, done.stderr
    assert said in done.stderr
    assert "ZSECRET" not in done.stderr
    assert everything() == before
    assert not Path("/var/lib/zsnapdb/clones/half").exists()


@pytest.mark.any_server
def test_a_clone_made_without_a_start_is_masked_at_its_first(lab: Lab, private: None, tmp_path: Path) -> None:
    sql = tmp_path / "mask.sql"
    sql.write_text("UPDATE private.nowhere SET name = 'x';\n")
    config = configured(lab, f'run = ["{sql}"]')
    made = lab.zsnapdb(
        "clone", "create", "main", "--name", "later", "--mask", "--no-start", "--json", config=config
    ).json
    try:
        failed = lab.zsnapdb("clone", "start", "later", config=config)
        assert failed.code == 12, failed.stderr
        assert lab.zsnapdb("clone", "show", "later", "--json", config=config).json["clone"]["pid"] is None
        sql.write_text("DELETE FROM private.mails;\n")
        assert lab.zsnapdb("clone", "start", "later", config=config).code == 0
        assert not [name for name in holding(Path(made["clone"]["mount"])) if "mails" in name]
    finally:
        assert lab.zsnapdb("clone", "destroy", "later").code == 0


@pytest.mark.any_server
def test_a_script_that_fails_leaves_no_clone_and_no_slot_of_a_pool(lab: Lab, private: None) -> None:
    before, fails = everything(), 'run = [["/bin/sh", "-c", "echo no key; exit 3"]]'
    pool = ("required = true", "", "[instance.main.pool]", "size = 1")
    makes = (
        (("clone", "create", "main", "--name", "half", "--mask"), configured(lab, fails)),
        (("clone", "pool", "main"), configured(lab, fails, *pool)),
    )
    for words, config in makes:
        done = lab.zsnapdb(*words, config=config)
        assert (done.code, "no key" in done.stderr) == (12, True), done.stderr
        assert everything() == before
    assert "0 of 1 clones wait in the pool" in lab.zsnapdb("doctor", "main", config=makes[1][1]).stdout


@pytest.mark.any_server
def test_files_that_mask_are_looked_at_before_anything_is_touched(lab: Lab) -> None:
    for lines, code in ((("run = ['/nowhere/mask.sql']",), 3), (("run = ['/nowhere/mask']",), 12), ((), 4)):
        done = lab.zsnapdb("clone", "create", "main", "--mask", "--plan", config=configured(lab, *lines))
        assert done.code == code, done.stderr
    config = configured(lab, "required = true")
    assert lab.zsnapdb("config", "check", config=config).code == 3
