"""The account of the database server plants links and pipes in its folders; then root's commands run."""

from __future__ import annotations

import contextlib
import os
import pwd
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.system.in_guest import Lab, run, zfs
from zsnapdb.mysql.process.server import ServerProcess
from zsnapdb.zfs import mounting

pytestmark = pytest.mark.usefixtures("first")

PARENT = Path("/var/lib/mysql")
ACCOUNT = "mysql"


@pytest.fixture
def victim() -> Iterator[Path]:
    """A folder of root's with a secret file. Whatever a command does, both stay as they are."""
    with tempfile.TemporaryDirectory(prefix="victim-", dir="/srv") as name:
        folder, secret = Path(name), Path(name, "secret")
        folder.chmod(0o755)
        secret.write_text("root's\n")
        secret.chmod(0o600)
        before = state(folder)
        yield folder
        assert state(folder) == before


def state(folder: Path) -> list[object]:
    """What an attacker would change: owners, permissions, content, names."""
    paths = (folder, *sorted(folder.iterdir()))
    seen = [(str(path), path.lstat().st_uid, path.lstat().st_gid, path.lstat().st_mode) for path in paths]
    return [*seen, *(path.read_bytes() for path in paths[1:])]


@contextlib.contextmanager
def planted(link: Path, target: Path) -> Iterator[None]:
    """A link that the server's account made, in the place of whatever is there."""
    account = pwd.getpwnam(ACCOUNT)
    if link.exists():
        link.rename(link.with_name(f"{link.name}.away"))
    link.symlink_to(target)
    os.chown(link, account.pw_uid, account.pw_gid, follow_symlinks=False)
    try:
        yield
    finally:
        if link.is_symlink():
            link.unlink()


@contextlib.contextmanager
def stopped_clone(lab: Lab, name: str) -> Iterator[Path]:
    """The private folder of a clone whose server does not run."""
    made = lab.zsnapdb("clone", "create", "main", "--name", name, "--json").json
    try:
        assert lab.zsnapdb("clone", "stop", name).code == 0
        yield Path(made["clone"]["mount"], ".zsnapdb")
    finally:
        assert lab.zsnapdb("clone", "destroy", name).code == 0


def test_a_private_folder_that_is_a_link_is_not_given_away(lab: Lab, victim: Path) -> None:
    assert PARENT.stat().st_uid == pwd.getpwnam(ACCOUNT).pw_uid, "the account can make links there"
    with planted(PARENT / ".zsnapdb", victim):
        backup = lab.zsnapdb("backup", "--json").json["backup"]["backup_id"]
    made = lab.zsnapdb("clone", "create", "main", "--from", backup, "--name", "linked", "--json").json
    assert not Path(made["clone"]["mount"], ".zsnapdb").is_symlink()
    assert lab.zsnapdb("clone", "destroy", "linked").code == 0
    restored = lab.zsnapdb("restore", "main", "--to", backup, "--target", "tank/linked", "--json").json
    assert not Path(restored["mount"], ".zsnapdb").is_symlink()


@pytest.mark.parametrize(("name", "target"), [("error.log", "secret"), ("tmp", "."), ("client.cnf", "secret")])
def test_a_link_in_a_stopped_clone_gives_nothing_to_its_server(lab: Lab, victim: Path, name: str, target: str) -> None:
    with stopped_clone(lab, f"a-{name.partition('.')[0]}") as folder, planted(folder / name, victim / target):
        done = lab.zsnapdb("clone", "start", f"a-{name.partition('.')[0]}")
        assert done.code == 0, done.stderr
        assert not (folder / name).is_symlink()


def test_a_link_made_in_the_moment_of_a_mount_leads_it_nowhere(
    lab: Lab, victim: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The account puts a link in the place of an inner volume's folder after root looked, before the kernel mounts."""
    outer = Path("/srv/raced")
    options = ("-o", "canmount=noauto", "-o")
    zfs("create", *options, f"mountpoint={outer}", "tank/raced")
    zfs(
        "create", *options, f"mountpoint={outer}/files/data", "-o", "setuid=off", "-o", "devices=off", "tank/raced/data"
    )
    (victim / "data").mkdir()
    mount = mounting.call_kernel

    def late(dataset: str, target: str, flags: int) -> int:
        if dataset == "tank/raced/data":
            (outer / "files").rename(outer / "away")
            (outer / "files").symlink_to(victim)
        return mount(dataset, target, flags)

    monkeypatch.setattr(mounting, "call_kernel", late)
    try:
        mounting.mount_all(["tank/raced", "tank/raced/data"])
        table = Path("/proc/self/mountinfo").read_text()
        assert f" {outer}/away/data rw,nosuid,nodev" in table
        assert str(victim) not in table
    finally:
        zfs("destroy", "-r", "-f", "tank/raced")
    (victim / "data").rmdir()


def test_a_log_with_a_second_name_is_not_given_to_the_server(lab: Lab, victim: Path) -> None:
    """A file of root's may have a second name where the kernel allows others to make one."""
    with stopped_clone(lab, "a-hard") as folder:
        secret = folder.parent / "secret"
        secret.write_text("root's\n")
        secret.chmod(0o600)
        (folder / "error.log").unlink()
        (folder / "error.log").hardlink_to(secret)
        assert lab.zsnapdb("clone", "start", "a-hard").code == 0
        assert (secret.stat().st_uid, secret.read_text()) == (0, "root's\n")


def test_the_client_of_a_clone_reads_no_option_of_the_servers_account(lab: Lab) -> None:
    """An option file can name a plugin, which the client loads into a process of root."""
    made = lab.zsnapdb("clone", "create", "main", "--name", "a-client", "--json").json["clone"]
    try:
        with Path(made["mount"], ".zsnapdb", "client.cnf").open("a") as file:
            file.write("plugin_dir=/srv/evil\nno_such_option=1\n")
        done = run("zsnapdb", "clone", "connect", "a-client", "-N", "-e", "SELECT @@port")
        assert (done.stdout.strip(), done.code) == (str(made["port"]), 0), done.stderr
        a_process_that_poses_as_the_server_is_not_taken_for_it(Path(made["mount"]))
        a_process_of_the_servers_own_account_is_not_taken_for_it(Path(made["mount"]))
    finally:
        assert lab.zsnapdb("clone", "destroy", "a-client").code == 0


def a_process_that_poses_as_the_server_is_not_taken_for_it(mount: Path) -> None:
    """Any account of the host can have mounts of its own, and a folder of theirs with the path of a clone's."""
    ours = ServerProcess(mount / ".zsnapdb")
    python = "import signal; print(flush=True); signal.pause()"
    posing = f'mount -t tmpfs none {mount} && mkdir {mount}/data && cd {mount}/data && exec "$0" -c "$1" "$2"'
    account = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "unshare", "--user", "--map-root-user")
    words = ["--mount", "sh", "-c", posing, sys.executable, python, f"--defaults-file={ours.option_file}"]
    with subprocess.Popen([*account, *words], stdout=subprocess.PIPE) as poser:
        assert poser.stdout is not None
        assert poser.stdout.readline() == b"\n"
        assert os.readlink(f"/proc/{poser.pid}/cwd") == f"{mount}/data"
        real, file = ours.pid(), ours.pid_file.read_text()
        ours.pid_file.write_text(str(poser.pid))
        try:
            assert ours.pid() == real != poser.pid
        finally:
            ours.pid_file.write_text(file)
            poser.kill()


def a_process_of_the_servers_own_account_is_not_taken_for_it(mount: Path) -> None:
    """It may enter the data directory and write the pid file; what it runs is no server."""
    ours = ServerProcess(mount / ".zsnapdb")
    owner = (mount / "data").stat()
    account = ("setpriv", f"--reuid={owner.st_uid}", f"--regid={owner.st_gid}", "--clear-groups")
    words = ["sh", "-c", "echo; read line", f"--defaults-file={ours.option_file}"]
    with subprocess.Popen(
        [*account, *words], cwd=mount / "data", stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as poser:
        assert poser.stdout is not None
        assert poser.stdout.readline() == b"\n"
        real, file = ours.pid(), ours.pid_file.read_text()
        ours.pid_file.write_text(str(poser.pid))
        try:
            assert ours.pid() == real != poser.pid
        finally:
            ours.pid_file.write_text(file)
            poser.kill()


def test_a_linked_list_of_binlogs_is_not_rewritten(lab: Lab, victim: Path) -> None:
    with planted(PARENT / "binlog-other.index", victim / "secret"):
        backup = lab.zsnapdb("backup", "--json").json["backup"]["backup_id"]
    done = lab.zsnapdb("clone", "create", "main", "--from", backup, "--name", "listed")
    assert lab.zsnapdb("backup").code == 0, "the newest backup, of which other tests make clones, has no such link"
    assert done.code == 4, done.stdout
    assert "binlog-other.index is a symbolic link" in done.stderr
    assert "root's" not in done.stdout + done.stderr


def test_a_pipe_among_the_binlogs_does_not_stop_the_archive(lab: Lab) -> None:
    index, pipe = PARENT / "binlog.index", PARENT / "binlog.999999"
    before = index.read_bytes()
    os.mkfifo(pipe)
    try:
        index.write_bytes(before + f"{pipe}\n".encode())
        done = lab.zsnapdb("binlog", "archive", "main", "--once")
        assert "binlog.999999 is not a regular file" in done.stdout + done.stderr
    finally:
        index.write_bytes(before)
        pipe.unlink()
