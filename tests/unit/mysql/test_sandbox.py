"""The sandbox itself, built by the kernel of this machine."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from zsnapdb.base.errors import PreflightError
from zsnapdb.mysql.process import process_managers as sandboxes
from zsnapdb.mysql.process.process_managers import Limits, unit_properties
from zsnapdb.mysql.process.sandbox_launcher import FAILED
from zsnapdb.planning.server_copy.sandbox import MountSeen, Sandbox, breaches, sandbox_of


def _can_build() -> bool:
    if os.geteuid() != 0:
        return False
    return subprocess.run(["unshare", "--mount", "true"], capture_output=True).returncode == 0


needs_root = pytest.mark.skipif(not _can_build(), reason="only root with mount namespaces builds a sandbox")


@pytest.fixture
def made(tmp_path: Path) -> Iterator[Sandbox]:
    copy, source = tmp_path / "copies" / "one", tmp_path / "source"
    tmp_path.chmod(0o755)
    for folder in (copy / "data", copy / ".zsnapdb", source):
        folder.mkdir(parents=True)
        folder.chmod(0o777)
    (source / "binlog.000001").write_text("production")
    (source / "binlog.000001").chmod(0o666)
    yield sandbox_of(f"{copy}/.zsnapdb", (f"{copy}/data",), (str(source),), ("/usr/bin/env",), (), ())
    assert (source / "binlog.000001").read_text() == "production"


def inside(sandbox: Sandbox, *argv: str) -> subprocess.CompletedProcess[str]:
    words = [*sandboxes.sandbox_prefix(sandbox, "nobody"), *argv]
    return subprocess.run(words, capture_output=True, text=True, timeout=120)


@needs_root
def test_a_server_reaches_its_own_folders_alone(made: Sandbox) -> None:
    own, (source,) = made.writable[0], made.hidden
    script = f"echo x > {own}/file; cat {own}/file; echo y > {source}/binlog.000001; cat {source}/binlog.000001; ls /"
    done = inside(made, "/bin/sh", "-c", script)
    assert done.stdout.splitlines()[0] == "x"
    assert "production" not in done.stdout
    assert not {"root", "home", "mnt", "boot"} & set(done.stdout.split())
    assert Path(own, "file").stat().st_uid != 0


@needs_root
def test_a_source_below_a_readable_folder_is_empty(made: Sandbox) -> None:
    (source,) = made.hidden
    opened = replace(made, readable=(*made.readable, str(Path(source).parent)))
    done = inside(opened, "/bin/sh", "-c", f"ls {source}; echo y > {source}/binlog.000001; ls {Path(source).parent}")
    assert done.stdout.split() == ["copies", "source"]


@needs_root
def test_other_processes_are_no_way_out(made: Sandbox) -> None:
    other = subprocess.Popen(["setpriv", "--reuid=nobody", "--clear-groups", "sleep", "600"], cwd=made.hidden[0])
    try:
        script = f"echo y > /proc/{other.pid}/cwd/binlog.000001; ls /proc; echo; ls /proc/self"
        done = inside(made, "/bin/sh", "-c", script)
        assert done.stdout.partition("\n\n")[2].split() == ["exe"]
        assert str(other.pid) not in done.stdout.split()
    finally:
        other.kill()
        other.wait()


@needs_root
def test_a_program_finds_the_libraries_that_lie_beside_it(made: Sandbox) -> None:
    # The loader takes $ORIGIN from there (ld.so(8)); the archives of MySQL name their libraries by it.
    done = inside(made, "/bin/readlink", "/proc/self/exe")
    assert done.stdout.strip() == os.path.realpath("/bin/readlink"), done.stderr


CONNECT = """
import socket, sys
try:
    socket.create_connection(("127.0.0.1", int(sys.argv[1])), timeout=5).close()
    print("connected")
except OSError as error:
    print(error.strerror)
socket.create_server(("127.0.0.1", 0)).close()
print("listened")
"""


@needs_root
@pytest.mark.parametrize(("connects", "result"), [(False, "Permission denied"), (True, "connected")])
def test_a_server_answers_and_calls_nobody(made: Sandbox, connects: bool, result: str) -> None:
    readable = (*made.readable, sys.base_prefix)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        done = inside(
            replace(made, connects=connects, readable=readable),
            os.path.realpath(sys.executable),
            "-I",
            "-c",
            CONNECT,
            str(listener.getsockname()[1]),
        )
    assert done.stdout.split("\n")[:2] == [result, "listened"], done.stderr


@needs_root
def test_the_kernel_says_that_a_server_is_inside(made: Sandbox) -> None:
    words = [*sandboxes.sandbox_prefix(made, "nobody"), "/bin/sh", "-c", "echo ready; read end"]
    server = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert server.stdout is not None
        assert server.stdout.readline() == b"ready\n"
        assert breaches(sandboxes.inspect_process(server.pid), made) == ()
    finally:
        server.kill()
        server.communicate()
    assert "mount namespace of zsnapdb" in breaches(sandboxes.inspect_process(os.getpid()), made)[0]


@needs_root
def test_a_folder_of_the_copy_that_became_a_link_is_not_shown(made: Sandbox) -> None:
    """The server's account owns the folders of a copy, and could lead its next start to production."""
    own, (source,) = made.writable[0], made.hidden
    Path(own).rmdir()
    Path(own).symlink_to(source)
    done = inside(made, "/bin/sh", "-c", f"echo y > {own}/binlog.000001")
    assert done.returncode == 1
    refused = sandboxes.sandbox_refusal(done.stderr.strip())
    assert isinstance(refused, PreflightError)
    assert own in refused.message


@needs_root
def test_a_link_above_a_folder_of_the_copy_is_not_followed(made: Sandbox) -> None:
    own = made.writable[0]
    Path(own).rmdir()
    one = Path(own).parent
    one.rename(one.with_name("moved"))
    Path(made.hidden[0], "data").mkdir()
    one.symlink_to(made.hidden[0])
    done = inside(made, "/bin/true")
    assert "symbolic link" in done.stderr


def test_without_root_there_is_no_sandbox_and_no_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(PreflightError, match="only root"):
        sandboxes.sandbox_prefix(Sandbox("/a", ("/a/b",), (), ()), "nobody")


def test_a_log_says_why_there_is_no_sandbox() -> None:
    assert sandboxes.FAILED == FAILED
    refused = sandboxes.sandbox_refusal(f"older\n{FAILED}Operation not permitted: unshare")
    assert refused is not None
    assert "Operation not permitted" in refused.message
    assert 'sandbox = "off"' in refused.hint
    assert sandboxes.sandbox_refusal(f"{FAILED}an older start\n[ERROR] InnoDB: no") is None


def test_mounts_are_read_as_the_kernel_writes_them() -> None:
    text = (
        "36 35 0:30 / / ro,nosuid - tmpfs zsnapdb rw,size=1024k\n"
        "40 36 0:31 / /srv/a\\040b rw,nosuid master:1 - zfs tank/a rw,xattr\n"
        "41 36 0:32 / /srv/c rw - zfs tank/c ro\n"
    )
    assert sandboxes.mounts_in(text) == (
        MountSeen("/", "tmpfs", is_writable=False),
        MountSeen("/srv/a b", "zfs", is_writable=True),
        MountSeen("/srv/c", "zfs", is_writable=False),
    )


def test_a_unit_has_the_walls_of_systemd_too() -> None:
    made = Sandbox("/clones", ("/clones/one", "/clones/one/da ta"), ("/usr",), ("/var/lib/mysql",))
    words = unit_properties("one", Path("/x/error.log"), Limits(), "mysql", made)
    for property_ in (
        "ProtectSystem=strict",
        'ReadWritePaths="/clones/one" "/clones/one/da ta"',
        "NoNewPrivileges=yes",
        "IPAddressDeny=any",
        "IPAddressAllow=localhost",
    ):
        assert f"--property={property_}" in words
    assert not [word for word in words if "User=" in word], "the launcher gives up root"
    beyond = unit_properties("one", Path("/x/error.log"), Limits(), "mysql", replace(made, answers_beyond=True))
    assert not [word for word in beyond if "IPAddress" in word], "clients of other hosts must reach it"
