"""Running servers are found by what the kernel says of their processes, and by nothing that they say themselves."""

from __future__ import annotations

import os
import pwd
from pathlib import Path

import pytest

from zsnapdb.mysql.process.discovery import DiscoveredProcess, server_processes

UNIX = """Num       RefCount Protocol Flags    Type St Inode Path
0000000000000000: 00000002 00000000 00010000 0001 01 4711 /run/mysqld/mysqld.sock
0000000000000000: 00000002 00000000 00010000 0001 01 4712 /run/mysqld/mysqlx.sock
0000000000000000: 00000003 00000000 00000000 0001 03 4713 /run/mysqld/mysqld.sock
0000000000000000: 00000002 00000000 00010000 0001 01 4714 @abstract
0000000000000000: 00000002 00000000 00010000 0001 01 4715
0000000000000000: 00000002 00000000 00010000 0001 01 4716 /run/a b.sock
"""


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    (tmp_path / "net").mkdir()
    (tmp_path / "net" / "unix").write_text(UNIX)
    process(tmp_path, "self", "/bin/x")
    return tmp_path


def process(proc: Path, name: str, program: str, inodes: tuple[int, ...] = (), namespace: str = "mnt:[1]") -> None:
    folder = proc / name
    for part in ("ns", "fd"):
        (folder / part).mkdir(parents=True)
    (folder / "ns" / "mnt").symlink_to(namespace)
    (folder / "exe").symlink_to(program)
    (folder / "cwd").symlink_to("/var/lib/mysql")
    for number, inode in enumerate(inodes):
        (folder / "fd" / str(number)).symlink_to(f"socket:[{inode}]")
    (folder / "fd" / "9").symlink_to("/dev/null")


def test_a_server_is_found_with_its_account_its_sockets_and_its_data_directory(proc: Path) -> None:
    process(proc, "812", "/usr/sbin/mysqld", (4711, 4712, 4713, 4716))
    process(proc, "90", "/usr/sbin/mariadbd (deleted)")
    (mariadb, mysql) = server_processes(proc)
    owner = pwd.getpwuid(os.getuid()).pw_name
    assert mysql == DiscoveredProcess(
        812, owner, "/usr/sbin/mysqld", ("/run/a b.sock", "/run/mysqld/mysqld.sock"), "/var/lib/mysql"
    )
    assert (mariadb.pid, mariadb.program, mariadb.sockets) == (90, "/usr/sbin/mariadbd", ())


def test_other_programs_and_servers_in_containers_are_no_servers_of_this_host(proc: Path) -> None:
    process(proc, "11", "/usr/bin/mysqldump", (4711,))
    process(proc, "12", "/usr/sbin/mysqld", (4711,), "mnt:[2]")
    (proc / "12" / "root").symlink_to(proc)
    assert server_processes(proc) == []


@pytest.mark.parametrize(
    ("root", "datadir", "is_found"), [("/", "/", True), ("/", "/gone", False), ("/usr", "/", False)]
)
def test_a_service_with_mounts_of_its_own_is_a_server_of_this_host_if_it_sees_the_same_folders(
    proc: Path, root: str, datadir: str, is_found: bool
) -> None:
    process(proc, "12", "/usr/sbin/mysqld", (4711,), "mnt:[2]")
    (proc / "12" / "root").symlink_to(root)
    (proc / "12" / "cwd").unlink()
    (proc / "12" / "cwd").symlink_to(datadir)
    assert bool(server_processes(proc)) == is_found


def test_a_server_that_the_dynamic_loader_started_is_found(proc: Path) -> None:
    process(proc, "12", "/opt/lib64/ld-linux-x86-64.so.2", (4711,))
    process(proc, "13", "/opt/lib64/ld-linux-x86-64.so.2", (4711,))
    lines = "5581-5582 r--p 00000000 fe:00 77     /opt/lib/libc.so.6\n5583-5584 rw-p 00000000 00:00 0 \n"
    (proc / "12" / "maps").write_text(f"{lines}5585-5586 r-xp 0000 fe:00 78   /opt/sbin/mysqld\n")
    (proc / "13" / "maps").write_text(lines)
    assert [(server.pid, server.program) for server in server_processes(proc)] == [(12, "/opt/sbin/mysqld")]
