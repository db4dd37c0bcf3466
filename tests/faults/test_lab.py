"""The lab itself: it returns results, keeps disks over a power cut, and leaves nothing behind, however it ends."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lab.guest import CHECKOUT, Guest, Lab
from tests.lab.host import LabError


def test_outputs_exit_status_and_files_come_back(lab: Lab, tmp_path: Path) -> None:
    argv = ["sh", "-c", "echo out; echo err >&2; echo kept > /out/file; exit 7"]
    done = subprocess.run(
        [sys.executable, str(CHECKOUT / "tests/lab"), "exec", "--flavour", "none", "--out", str(tmp_path), "--", *argv],
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout, done.stderr) == (7, "out\n", "err\n")
    assert (tmp_path / "file").read_text() == "kept\n"


@pytest.fixture(scope="module")
def bare(lab: Lab) -> Iterator[Guest]:
    """A guest without a server."""
    with Guest.boot(lab, "none") as guest:
        yield guest


def test_much_output_comes_back_whole(bare: Guest) -> None:
    done = bare.run(["sh", "-c", "seq 1 200000"]).check()
    assert done.stdout == "".join(f"{n}\n" for n in range(1, 200001))


def test_input_that_is_not_read_at_once_arrives_whole(bare: Guest) -> None:
    """The kernel of a guest never listens again to a line on which more than 3,968 bytes were unread."""
    data = os.urandom(200_000)
    command = bare.spawn(["sh", "-c", "sleep 1; exec sha256sum"], keep_stdin=True)
    command.write(data)
    bare.send(op="eof", id=command.id)
    assert command.wait(600).check().stdout.split()[0] == hashlib.sha256(data).hexdigest()
    assert bare.run(["true"]).code == 0


def test_a_command_that_takes_too_long_is_ended_and_said_so(bare: Guest) -> None:
    with pytest.raises(LabError, match="no end of the command within 1 s"):
        bare.run(["sleep", "60"], timeout=1)
    assert bare.run(["true"]).code == 0


def test_guests_run_side_by_side(lab: Lab, bare: Guest) -> None:
    with Guest.boot(lab, "none") as other:
        bare.run(["zfs", "create", "tank/one"]).check()
        assert "tank/one" not in other.run(["zfs", "list", "-H", "-o", "name"]).check().stdout


def test_what_was_synced_survives_a_power_cut(bare: Guest) -> None:
    bare.run(["sh", "-c", "zfs create -o mountpoint=/t tank/t && echo kept > /t/file && zpool sync"]).check()
    bare.power_cut()
    bare.start()
    assert bare.run(["cat", "/t/file"]).check().stdout == "kept\n"


def test_a_guest_answers_queries_in_time(lab: Lab) -> None:
    for flavour, seconds in (("mysql", 80), ("mariadb", 48)):
        times: list[float] = []
        # A machine that is busy for a while gets a second chance.
        while len(times) < 2 and (not times or times[0] > seconds):
            with Guest.boot(lab, flavour) as guest:
                times.append(guest.boot_seconds)
        assert min(times) <= seconds, (flavour, times)


def leftovers(lab: Lab) -> tuple[list[str], list[str], list[str]]:
    processes = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and str(lab.kernel).encode() in (entry / "cmdline").read_bytes():
                processes.append(entry.name)
        except OSError:
            continue
    mounts = [line for line in Path("/proc/self/mountinfo").read_text().splitlines() if "/runs/" in line]
    return processes, mounts, os.listdir("/dev/shm")


def owner() -> subprocess.Popen[bytes]:
    """Start a process that owns a guest, and wait until a command runs in the guest."""
    argv = [sys.executable, str(CHECKOUT / "tests/lab"), "exec", "--flavour", "none", "--"]
    # A background job of a shell ignores SIGINT, and its children inherit that.
    process = subprocess.Popen(
        [*argv, "sh", "-c", "echo up; sleep 300"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL) and None,
    )
    assert process.stdout is not None
    return process


def folders(lab: Lab) -> set[Path]:
    return {folder for folder in lab.cache.runs.iterdir() if folder.name.startswith("none-")}


@pytest.mark.alone
def test_nothing_stays_behind_when_the_owner_of_a_guest_is_ended(lab: Lab) -> None:
    before, others = leftovers(lab), folders(lab)
    owners = {number: owner() for number in (signal.SIGINT, signal.SIGKILL)}
    for process in owners.values():
        assert process.stdout is not None
        assert process.stdout.readline() == b"up\n"
    for number, process in owners.items():
        running = leftovers(lab)[0]
        assert running != before[0]
        process.send_signal(number)
        process.wait(120)
        assert process.stdout is not None
        process.stdout.close()
        deadline = time.monotonic() + 120
        while leftovers(lab)[0] == running:
            assert time.monotonic() < deadline, running
            time.sleep(0.1)
    deadline = time.monotonic() + 120
    while leftovers(lab) != before:
        assert time.monotonic() < deadline, leftovers(lab)
        time.sleep(0.1)
    Guest.boot(lab, "none").close()
    assert folders(lab) <= others
