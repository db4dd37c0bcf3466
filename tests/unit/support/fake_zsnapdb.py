"""A fake of `zsnapdb clone` that keeps clones in a file and records each command line with its environment.

It runs as its own process: `python fake_zsnapdb.py clone create …`. FAKE_FOLDER is its working folder. A file `slow`
there has the seconds of a command, unless a file `go` ends the wait. A file `fails` has the JSON document to print
instead. On SIGTERM it writes a file `undone` and exits with 130, unless there is a file `deaf`. Commands other than
`clone` print the file with their name, whose first line is the exit code.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

FOLDER = Path(os.environ["FAKE_FOLDER"])


def main() -> int:
    """Run the command line, print its JSON document, and return its exit code."""
    words = sys.argv[1:]
    with (FOLDER / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with (FOLDER / "calls").open("a") as calls:
            calls.write(json.dumps({"words": words, "environment": dict(os.environ)}) + "\n")
    signal.signal(signal.SIGTERM, signal.SIG_IGN if _text("deaf") else _undo)
    if _text("slow"):
        # A child process, which ends with it.
        if _text("helps"):
            subprocess.Popen(["sleep", "600"])
        (FOLDER / "waits").touch()
        until = time.monotonic() + float(_text("slow"))
        while time.monotonic() < until and not (FOLDER / "go").exists():
            time.sleep(0.02)
    if _text("fails"):
        print(_told(json.loads(_text("fails"))))
        return 7
    if words[0] != "clone" or words[1] in ("logs", "branch"):
        name = f"branch-{words[2]}" if words[1] == "branch" else words[1] if words[0] == "clone" else words[0]
        code, _, text = _text(name).partition("\n")
        print(text)
        return int(code or 1)
    with (FOLDER / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        clones = json.loads(_text("clones") or "[]")
        document, left = _done(words[1], words[2:], clones)
        (FOLDER / "clones").write_text(json.dumps(left))
    print(json.dumps(document))
    return 0


def _told(document: dict[str, dict[str, str]]) -> str:
    """Return an error document. It has the audience of its text, unless there is a file `undeclared`."""
    if "ZSNAPDB_AUDIENCE" in os.environ and not _text("undeclared"):
        document["error"]["audience"] = os.environ["ZSNAPDB_AUDIENCE"]
    return json.dumps(document)


def _undo(_number: int, _frame: object) -> None:
    (FOLDER / "undone").touch()
    sys.exit(130)


def _done(verb: str, words: list[str], clones: list[dict[str, object]]) -> tuple[dict[str, object], object]:
    options = dict(word.partition("=")[::2] for word in words if word.startswith("--"))
    names = [word for word in words if not word.startswith("--")]
    if verb == "create":
        owner = options["--owner"].removeprefix("unix:")
        made: dict[str, object] = {
            "name": options["--name"],
            "id": options["--name"],
            "owner": owner,
            "set": None,
            "waits": False,
        }
        made |= {
            "created": "1",
            "guid": f"{time.time_ns()}",
            "instance": names[0],
            "backup_id": "20260101T000000Z-0001",
        }
        made |= {
            "port": 23070,
            "phase": "ready",
            "pid": 7,
            "masked": "--mask" in options,
            "bind_address": _text("address") or "127.0.0.1",
            "local_only": bool(_text("local-only")),
            "expires": _text("expires"),
            "heartbeat": round(float(options["--heartbeat"].rstrip("s"))) if "--heartbeat" in options else None,
        }
        login = {"user": "zsnapdb_clone", "password": "secret of the clone", "of_pool": False}
        return {"kind": "clone", "clone": made, **login}, [*clones, made]
    if verb == "destroy":
        return {"kind": "clone-destroyed"}, [one for one in clones if one["id"] != names[0]]
    if verb == "commit":
        commit = {
            "id": _text("commit-id") or "20260101T000000Z-aaaa",
            "clone": names[0],
            "message": options["--message"],
        }
        return {"kind": "clone-commit", **commit}, clones
    clone = next(one for one in clones if one["id"] == names[0])
    if verb == "login":
        count = FOLDER / f"passwords-{names[0]}"
        number = int(_text(count.name) or "1") + ("--new" in options)
        count.write_text(str(number))
        address = {"host": "127.0.0.1", "port": 23070, "address": "127.0.0.1:23070", "local_only": True}
        login = {"user": "zsnapdb_clone", "password": f"secret {number} of the clone", "dsn": "", "socket": "/srv/x"}
        return {"kind": "clone-login", **address, **login}, clones
    if verb in ("start", "stop"):
        clone["pid"] = 7 if verb == "start" else None
    if "--for" in options:
        clone["protected_until"] = options["--for"] if options["--for"] != "0s" else None
    reason = _text("reason")
    done = {"way": "replace", "undone": None, "reason": reason} if reason else {"way": "undo", "undone": 2}
    return {"kind": f"clone-{verb}", "clone": clone, "reason": None, **done}, clones


def _text(name: str) -> str:
    file = FOLDER / name
    return file.read_text() if file.exists() else ""


if __name__ == "__main__":
    sys.exit(main())
