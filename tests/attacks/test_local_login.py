"""An ordinary login of the host tries to stop backups: it locks every file that it can open."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tests.system.in_guest import Lab

pytestmark = [pytest.mark.usefixtures("first"), pytest.mark.any_server]

NOBODY = 65534
HOLD = """
import fcntl, os, sys
held = []
for top in sys.argv[1:]:
    for folder, _, names in os.walk(top):
        for name in names:
            try:
                file = open(os.path.join(folder, name), "rb")
                fcntl.flock(file, fcntl.LOCK_EX)
            except OSError:
                continue
            held.append(file)
print(*sorted(file.name for file in held), flush=True)
sys.stdin.read()
"""


def test_a_login_that_locks_every_file_it_can_open_stops_no_backup(lab: Lab) -> None:
    folder = Path("/mnt/repository")
    folder.mkdir(mode=0o755)
    config = lab.changed(('url = "s3://backups/lab"', f'url = "file://{folder}"\nevidence = true'))
    assert lab.zsnapdb("init", "--new", config=config).code == 0
    # The lock of releases that let everybody open it.
    (folder / ".replacing").touch(mode=0o644)
    assert lab.zsnapdb("backup", config=config).code == 0
    argv = [sys.executable, "-c", HOLD, str(folder), "/run/zsnapdb", "/var/lib/zsnapdb"]
    with subprocess.Popen(
        argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, user=NOBODY, group=NOBODY, extra_groups=()
    ) as login:
        assert login.stdin is not None
        assert login.stdout is not None
        held = login.stdout.readline().split()
        blocked = threading.Timer(500.0, login.kill)
        blocked.start()
        done = lab.zsnapdb("backup", config=config)
        was_blocked = not blocked.is_alive()
        blocked.cancel()
        login.stdin.close()
    assert not was_blocked, f"the backup waited for the locks of {held}"
    assert done.code == 0, done.stderr
    assert held == [f"{folder}/.replacing"]
    assert "not in the evidence log" not in done.stderr
