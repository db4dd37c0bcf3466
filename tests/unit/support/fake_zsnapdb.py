"""Stands for `zsnapdb clone`: keeps clones in a file and writes down each command line with its environment.

It runs as a process of its own: `python fake_zsnapdb.py clone create …`. FAKE_FOLDER is where it works. A file `slow`
there holds a number of seconds that a change takes, a file `fails` the document that a change prints instead.
"""

from __future__ import annotations

import fcntl
import json
import os
import sys
import time
from pathlib import Path

FOLDER = Path(os.environ["FAKE_FOLDER"])


def main() -> int:
    """Run the command line, print its document, and return its exit code."""
    words = sys.argv[1:]
    with (FOLDER / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with (FOLDER / "calls").open("a") as calls:
            calls.write(json.dumps({"words": words, "environment": dict(os.environ)}) + "\n")
    time.sleep(float(_text("slow") or 0))
    if _text("fails"):
        print(_text("fails"))
        return 7
    with (FOLDER / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        clones = json.loads(_text("clones") or "[]")
        document, left = _done(words[1], words[2:], clones)
        (FOLDER / "clones").write_text(json.dumps(left))
    print(json.dumps(document))
    return 0


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
        made |= {"created": f"{time.time_ns()}", "port": 23070, "bind_address": "127.0.0.1"}
        document: dict[str, object] = {
            "kind": "clone",
            "clone": made,
            "user": "clone",
            "password": "secret of the clone",
        }
        return document, [*clones, made]
    if verb == "destroy":
        return {"kind": "clone-destroyed"}, [one for one in clones if one["id"] != names[0]]
    return {"kind": f"clone-{verb}", "clone": names[0]}, clones


def _text(name: str) -> str:
    file = FOLDER / name
    return file.read_text() if file.exists() else ""


if __name__ == "__main__":
    sys.exit(main())
