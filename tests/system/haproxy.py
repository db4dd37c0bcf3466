"""A HAProxy for the ports that clones keep, started as the unit of the examples does."""

from __future__ import annotations

import signal
import subprocess
import time
from pathlib import Path

from .in_guest import Lab

FOLDER = Path("/run/lab-haproxy")
FILE = FOLDER / "haproxy.cfg"


KEPT = f'[clones.address]\nsocket = "{FOLDER}/admin.sock"\nlast_port = 23175\n\n'
"""A section of the configuration."""


class HAProxy:
    """An instance of its own, beside that of the distribution."""

    def __init__(self, lab: Lab, config: Path) -> None:
        self.lab, self.config = lab, config
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        FOLDER.mkdir(exist_ok=True, mode=0o755)
        assert self.lab.zsnapdb("clone", "addresses", "--haproxy", str(FILE), config=self.config).code == 0
        self.process = subprocess.Popen(["haproxy", "-db", "-f", str(FILE)])
        until = time.monotonic() + 120
        while self.lab.zsnapdb("clone", "addresses", "--json", config=self.config).json["error"] is not None:
            assert self.process.poll() is None
            assert time.monotonic() < until

    def end(self) -> None:
        if self.process is not None:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait()
            self.process = None
