"""What the pages of the documentation say is what happens: their marked commands print what is printed there."""

from __future__ import annotations

import difflib
import os
import shlex
from pathlib import Path

import pytest

from tests.lab import guides

from .in_guest import Lab, run

CHECKOUT = Path(__file__).parents[2]
OUT = Path("/out")
WHERE = "guest"
PAGES = (
    "README.md",
    "docs/quick-start.md",
    "docs/restore.md",
    "docs/backup.md",
    "docs/drills.md",
    "docs/points-in-time.md",
    "docs/clones.md",
    "docs/keys.md",
    "docs/tuning.md",
)
"""In this order, in one guest: each page goes on with what the pages before it have made."""

KEY = Path("/etc/zsnapdb/guides-signing-key")
SECTIONS = f"""[repository.s3.encryption]
signing_key_file = "{KEY}"

[instance.main.keep]
last = 2

[instance.main.objectives]
rpo = "31h"

[instance.main.control]
stop = ["/usr/local/sbin/stop-db", "main"]
start = ["/usr/local/sbin/start-db", "main"]

"""


@pytest.fixture(scope="module")
def guide_host(lab: Lab) -> Path:
    """A configuration as setup writes one, with all that the pages ask for; a first backup lies in its repository."""
    lab.sql("GRANT TRIGGER ON *.* TO zsnapdb@localhost")
    config = lab.changed(
        ('url = "s3://backups/lab"', 'url = "s3://backups/production"'),
        ("[repository.s3]", f"{SECTIONS}[repository.s3]"),
    )
    assert lab.zsnapdb("key", "generate", "--signing-key", str(KEY)).code == 0
    lab.zsnapdb("backup", "--json", config=config).json  # noqa: B018 - asserts success
    return config


def answer_of(lab: Lab, config: Path, command: str) -> str:
    """Return what a command of a page prints."""
    words = shlex.split(command)
    done = lab.zsnapdb(*words[1:], config=config) if words[0] == "zsnapdb" else run("sh", "-ec", command)
    return done.stdout.rstrip("\n") + (f"\n{done.stderr}" if done.code else "")


@pytest.mark.skipif(
    os.environ.get("LAB_FLAVOUR") == "mariadb", reason="the guides show MySQL: MariaDB has GTIDs of another form"
)
def test_the_guides_print_what_they_say(lab: Lab, guide_host: Path) -> None:
    """If one does not, the page as it should be lies in /out of the guest: `python3 tests/lab exec --out` keeps it."""
    wrong: list[str] = []
    for name in PAGES:
        page = (CHECKOUT / name).read_text(encoding="utf-8")
        assert guides.blocks(page, WHERE)
        anew = guides.written_anew(page, WHERE, lambda command: answer_of(lab, guide_host, command))
        if OUT.is_dir():
            (OUT / Path(name).name).write_text(anew, encoding="utf-8")
        said, happened = ([guides.general(line) for line in text.split("\n")] for text in (page, anew))
        wrong += difflib.unified_diff(said, happened, name, "the commands", lineterm="", n=1)
    assert wrong == [], "\n".join(wrong)
