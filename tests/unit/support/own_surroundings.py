"""Fixed surroundings of the unit tests: the caller's surroundings change no test.

Every process inherits signals that a background script ignores, a umask, a home directory and variables such as
MYSQL_HOST or AWS_PROFILE.
"""

from __future__ import annotations

import atexit
import os
import shutil
import signal
import tempfile

_KEPT = ("PATH", "PYTHONPATH", "VIRTUAL_ENV", "SSL_CERT_FILE")
_KEPT_PREFIXES = ("PYTEST_", "COV_", "COVERAGE_", "HYPOTHESIS_")
_ENDING = (signal.SIGHUP, signal.SIGQUIT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM)
_STOPPING = (signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU, signal.SIGCONT, signal.SIGCHLD, signal.SIGWINCH)


def take() -> None:
    """Set known signals, umask, home directory and environment for this process and its child processes."""
    for number in (*_ENDING, *_STOPPING):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    os.umask(0o022)
    for name in list(os.environ):
        if name not in _KEPT and not name.startswith(_KEPT_PREFIXES):
            del os.environ[name]
    # tempfile remembers its first folder.
    tempfile.tempdir = None
    home = tempfile.mkdtemp(prefix="zsnapdb-home-")
    atexit.register(shutil.rmtree, home, ignore_errors=True)
    os.environ |= {"HOME": home, "LC_ALL": "C.UTF-8"}
