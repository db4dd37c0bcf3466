"""Bad input is refused before anything is touched, with an exit code and a hint."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lab.inside import ledger

from .in_guest import SERVER, SOCKET, Done, Lab, everything, run, zfs

pytestmark = pytest.mark.usefixtures("unchanged")


def refused(done: Done, code: int, *texts: str) -> None:
    assert done.code == code, done.stdout + done.stderr
    assert "hint:" in done.stderr
    assert "Traceback" not in done.stderr
    for text in texts:
        assert text in done.stderr


@pytest.mark.any_server
def test_an_unknown_configuration_key(lab: Lab) -> None:
    refused(
        lab.zsnapdb("backup", config=lab.changed(("volumes", "volume"))),
        3,
        "unknown key instance.main.volume",
        "did you mean 'volumes'?",
    )


@pytest.mark.any_server
def test_a_missing_dataset(lab: Lab) -> None:
    config = lab.changed(("tank/mysql/data", "tank/mysql/nowhere"))
    refused(
        lab.zsnapdb("backup", config=config),
        4,
        "dataset tank/mysql/nowhere (volume data of instance main) does not exist",
    )


def test_a_server_that_is_down(lab: Lab) -> None:
    assert run(SERVER, "stop").code == 0
    try:
        refused(lab.zsnapdb("backup"), 5, "connecting on zsnapdb@/run/mysqld/mysqld.sock")
    finally:
        assert run(SERVER, "start").code == 0


def test_a_wrong_password_of_the_server(lab: Lab) -> None:
    wrong = lab.folder / "wrong"
    wrong.write_text("not-it\n")
    wrong.chmod(0o600)
    done = lab.zsnapdb("backup", config=lab.changed(("/etc/zsnapdb/main.password", str(wrong))))
    refused(done, 5, "Access denied", "password_file")
    assert "not-it" not in done.stderr + done.stdout


@pytest.mark.any_server
def test_wrong_credentials_of_the_repository(lab: Lab) -> None:
    wrong = lab.folder / "credentials"
    wrong.write_text("[default]\naws_access_key_id = lab-key\naws_secret_access_key = not-the-secret\n")
    wrong.chmod(0o600)
    done = lab.zsnapdb("backup", config=lab.changed(("/etc/zsnapdb/credentials", str(wrong))))
    refused(done, 6, "s3://backups", "credentials")
    assert "not-the-secret" not in done.stderr + done.stdout


@pytest.mark.any_server
def test_a_missing_bucket(lab: Lab) -> None:
    refused(
        lab.zsnapdb("backup", config=lab.changed(("s3://backups/lab", "s3://nowhere/lab"))),
        6,
        "NoSuchBucket",
        "create the bucket nowhere",
    )


@pytest.mark.any_server
def test_an_s3_server_that_is_down_when_nothing_was_stored_yet(lab: Lab) -> None:
    """The address may be wrong. Once something was stored, a backup makes its snapshots and waits for the store."""
    config = lab.changed(("127.0.0.1:7070", "127.0.0.1:7071"), ("[instance.main", "[instance.other"))
    refused(lab.zsnapdb("backup", config=config), 6, "127.0.0.1:7071")


@pytest.mark.any_server
def test_a_missing_repository_folder(lab: Lab) -> None:
    config = lab.changed(('url = "s3://backups/lab"', 'url = "file:///mnt/not-mounted"'))
    refused(lab.zsnapdb("backup", config=config), 6, "/mnt/not-mounted does not exist")


@pytest.mark.any_server
def test_a_target_dataset_that_exists(lab: Lab) -> None:
    refused(lab.zsnapdb("restore", "main", "--target", "tank/mysql"), 8, "the target dataset tank/mysql exists")


@pytest.mark.any_server
def test_a_target_pool_that_does_not_exist(lab: Lab) -> None:
    refused(lab.zsnapdb("restore", "main", "--target", "nowhere/x"), 4, "pool nowhere does not exist")


@pytest.mark.any_server
def test_a_target_that_is_a_whole_pool(lab: Lab) -> None:
    refused(lab.zsnapdb("restore", "main", "--target", "tank"), 4, "is a whole pool")


@pytest.mark.any_server
def test_a_mount_place_that_is_not_empty(lab: Lab) -> None:
    place = Path("/var/lib/zsnapdb/restored/occupied")
    place.mkdir(parents=True)
    (place / "file").write_text("here")
    refused(lab.zsnapdb("restore", "main", "--target", "tank/occupied"), 8, "is not empty")


@pytest.mark.any_server
def test_a_backup_that_is_not_there(lab: Lab) -> None:
    refused(
        lab.zsnapdb("restore", "main", "--to", "20200101T000000Z-0000", "--target", "tank/x"),
        6,
        "no backup 20200101T000000Z-0000",
    )
    refused(
        lab.zsnapdb("clone", "create", "main", "--from", "20200101T000000Z-0000"),
        6,
        "no snapshot set 20200101T000000Z-0000",
    )


def test_a_server_program_that_is_missing(lab: Lab) -> None:
    binary = 'binary = "' + ("/opt/mysql/bin/mysqld" if lab.flavour == "mysql" else "/usr/sbin/mariadbd")
    config = lab.changed((binary, 'binary = "/usr/sbin/none'))
    refused(lab.zsnapdb("restore", "main", "--target", "tank/x", config=config), 4, "/usr/sbin/none cannot be executed")


def test_server_files_outside_the_datasets(lab: Lab) -> None:
    config = lab.changed(('parent = "tank/mysql", ', ""))
    refused(
        lab.zsnapdb("backup", config=config),
        4,
        "innodb_log_group_home_dir = /var/lib/mysql is on zfs tank/mysql",
        "which is not a volume of the instance",
    )


def test_settings_under_which_a_snapshot_would_lie(lab: Lab) -> None:
    lab.sql("SET GLOBAL innodb_flush_log_at_trx_commit = 0")
    try:
        refused(lab.zsnapdb("backup"), 4, "innodb_flush_log_at_trx_commit = 0", "set it to 2")
    finally:
        lab.sql("SET GLOBAL innodb_flush_log_at_trx_commit = 1")


def test_a_table_file_that_is_a_link_to_elsewhere(lab: Lab, tmp_path: Path) -> None:
    link = Path("/var/lib/mysql/data/ledger/t.MYD")
    link.symlink_to(tmp_path / "t.MYD")
    try:
        refused(lab.zsnapdb("backup"), 4, f"symbolic link {link} = {tmp_path}/t.MYD")
    finally:
        link.unlink()


@pytest.mark.any_server
def test_an_encrypted_dataset_that_the_repository_would_store_in_the_clear(lab: Lab) -> None:
    key = lab.folder / "key"
    key.write_bytes(bytes(32))
    encrypted = ("-o", "encryption=on", "-o", "keyformat=raw", "-o", f"keylocation=file://{key}")
    zfs("create", *encrypted, "tank/mysql/secret")
    config = lab.changed(('"tank/mysql/data" }', '"tank/mysql/data", secret = "tank/mysql/secret" }'))
    try:
        for words in (("backup", "--plan"), ("backup",)):
            refused(
                lab.zsnapdb(*words, config=config),
                4,
                "tank/mysql/secret is encrypted (aes-256-gcm)",
                "the repository has no recipients",
            )
    finally:
        zfs("destroy", "tank/mysql/secret")


def _free(dataset: str, name: str = "available") -> int:
    return int(zfs("get", "-H", "-p", "-o", "value", name, dataset)[0])


@pytest.mark.any_server
def test_a_pool_without_room_for_a_snapshot(lab: Lab) -> None:
    zfs("create", "-o", "mountpoint=none", "tank/hog")
    try:
        zfs("set", f"reservation={_free('tank') - (2 << 20)}", "tank/hog")
        refused(lab.zsnapdb("backup"), 4, "the pool tank has", "`zfs snapshot` would fail", "zfs list -o space")
        assert lab.zsnapdb("doctor").code == 2
    finally:
        zfs("destroy", "tank/hog")


def test_an_account_that_cannot_see_all_tables(lab: Lab) -> None:
    lab.sql("REVOKE SELECT ON *.* FROM zsnapdb@localhost")
    try:
        refused(lab.zsnapdb("backup"), 4, "may not read all tables", "grant SELECT")
    finally:
        lab.sql("GRANT SELECT ON *.* TO zsnapdb@localhost")


@pytest.mark.any_server
def test_a_database_directory_that_is_a_link_to_elsewhere(lab: Lab, tmp_path: Path) -> None:
    link = Path("/var/lib/mysql/data/elsewhere")
    link.symlink_to(tmp_path)
    try:
        refused(lab.zsnapdb("backup"), 4, f"symbolic link {link} = {tmp_path}")
    finally:
        link.unlink()


@pytest.mark.any_server
def test_a_dataset_mounted_inside_the_data_directory(lab: Lab) -> None:
    zfs("create", "-o", "mountpoint=/var/lib/mysql/data/big", "tank/big")
    try:
        refused(lab.zsnapdb("backup"), 4, "zfs tank/big is mounted at /var/lib/mysql/data/big")
    finally:
        zfs("destroy", "tank/big")
        Path("/var/lib/mysql/data/big").rmdir()


@contextlib.contextmanager
def second_pool() -> Iterator[None]:
    file = Path("/tmp/second.img")
    with file.open("wb") as image:
        image.truncate(128 << 20)
    assert run("zpool", "create", "-O", "mountpoint=none", "second", str(file)).code == 0
    try:
        assert run("zfs", "create", "-o", "mountpoint=/mnt/second", "second/data").code == 0
        yield
    finally:
        assert run("zpool", "destroy", "second").code == 0
        file.unlink()


@pytest.mark.any_server
def test_datasets_in_two_pools(lab: Lab) -> None:
    with second_pool():
        before = everything()
        refused(
            lab.zsnapdb("backup", config=lab.changed(("tank/mysql/data", "second/data"))),
            3,
            "volumes has datasets in the pools second and tank",
        )
        assert everything() == before
        # As from a rescue system: what is set as a mount point lies below /mnt/other once more.
        assert run("zpool", "export", "second").code == 0
        assert run("zpool", "import", "-R", "/mnt/other", "-d", "/tmp/second.img", "second").code == 0
        refused(lab.zsnapdb("restore", "main", "--target", "second/x"), 4, "imported with altroot=/mnt/other")


def test_a_lock_that_is_not_to_be_had_before_the_deadline(lab: Lab) -> None:
    config = lab.changed(
        ('repository = "s3"', 'repository = "s3"\nlock = { deadline = "2s", budget = "3s", strategy = "ftwrl" }')
    )
    with ledger.connect(SOCKET) as holder, holder.cursor() as cursor:
        # A transaction that has written a table keeps FLUSH TABLES WITH READ LOCK from blocking its commit; an open
        # table lock keeps it from being had at all.
        cursor.execute("LOCK TABLES ledger.accounts WRITE")
        refused(lab.zsnapdb("backup", config=config), 10, "hint:")
        cursor.execute("UPDATE accounts SET balance = balance WHERE id = 1")
        cursor.execute("UNLOCK TABLES")
    lab.sql("UPDATE ledger.accounts SET balance = balance WHERE id = 1")
