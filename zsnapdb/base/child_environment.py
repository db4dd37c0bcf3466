"""The environments of the programs that zsnapdb starts.

Programs of servers and of the host get one of our own: neither the home directory nor a variable of the person who runs
zsnapdb changes what they do. Programs of the site, such as hooks, get that of zsnapdb without secrets.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from types import MappingProxyType

_SECRET = re.compile(r"PASS|SECRET|TOKEN|CREDENTIAL|_PWD$|KEY$|_KEY_ID$|PRIVATE_?KEY|DATABASE_URL|_DSN$", re.IGNORECASE)
_TERMINAL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,63}")
_FOLDERS = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin")

NO_HOME = "/dev/null"
"""A home directory in which nobody can make a file."""
NO_LOGIN_PATHS: Mapping[str, str] = MappingProxyType({"MYSQL_TEST_LOGIN_FILE": f"{NO_HOME}/mylogin.cnf"})
"""The variable that keeps clients of MySQL from login paths, which override every other option file (refman 8.4,
"Command-Line Options that Affect Option-File Handling"; MYSQL_TEST_LOGIN_FILE in "Environment Variables")."""


def is_secret_name(name: str) -> bool:
    """Whether the name of an environment variable says that its value is a secret, as AWS_SECRET_ACCESS_KEY does."""
    return _SECRET.search(name) is not None


def search_path() -> str:
    """Return where programs are searched: the absolute folders of PATH, then the usual folders of a system."""
    named = os.environ.get("PATH", "").split(os.pathsep)
    return os.pathsep.join(dict.fromkeys((*(folder for folder in named if os.path.isabs(folder)), *_FOLDERS)))


def for_programs() -> dict[str, str]:
    """Return the whole environment of a program of a server or of the host. The locale is C: output is parsed."""
    return {"PATH": search_path(), "HOME": NO_HOME, "LC_ALL": "C", "LANGUAGE": "C", **NO_LOGIN_PATHS}


def for_terminal() -> dict[str, str]:
    """Return the whole environment of an interactive client. It keeps no history of statements."""
    terminal = os.environ.get("TERM", "")
    shown = {"TERM": terminal} if _TERMINAL.fullmatch(terminal) else {}
    histories = dict.fromkeys(("MYSQL_HISTFILE", "MARIADB_HISTFILE"), os.devnull)
    return {**for_programs(), "LC_ALL": "C.UTF-8", **histories, **shown}


def for_site(**more: str) -> dict[str, str]:
    """Return the environment of a program of the site: that of zsnapdb without secrets, with the variables `more`."""
    return {name: value for name, value in os.environ.items() if not is_secret_name(name)} | more
