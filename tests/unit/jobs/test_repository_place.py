"""The doctor warns only if no copy of the backups is on another host."""

from __future__ import annotations

import pytest

from zsnapdb.config.settings import parse
from zsnapdb.jobs.base.instance import Instance
from zsnapdb.jobs.doctor import rule_facts
from zsnapdb.planning.advice.facts import LocalRepository
from zsnapdb.zfs.mounts import MountEntry

FILESYSTEMS = {
    "ext4": "",
    "overlay": "",
    "fuseblk": "",
    "zfs": "tank",
    "nfs4": None,
    "cifs": None,
    "virtiofs": None,
    "fuse.sshfs": None,
}
"""The type of the repository's file system; its pool, or None if it is on another host."""
COPIES = {
    "no copy": ("", True),
    "copy in a bucket": ('[instance.main.objectives.copies]\nbucket = "1d"\n', False),
    "copy on this host": ('[instance.main.objectives.copies]\nbeside = "1d"\n', True),
    "both": ('[instance.main.objectives.copies]\nbeside = "1d"\nbucket = "1d"\n', False),
    "copy of the agent": ('[instance.main.agent]\ncopy_to = { to = "bucket", every = "1d" }\n', False),
}
"""The copies; whether all of them are on this host."""
CONFIGURATION = """
[instance.main]
socket = "/nonexistent"
repository = "{repository}"
{copies}
[repository.here]
url = "file:///srv/backups/main"
[repository.beside]
url = "file:///home/copies"
[repository.bucket]
url = "s3://backups/main"
"""


@pytest.mark.parametrize("filesystem", FILESYSTEMS)
@pytest.mark.parametrize("copies", COPIES)
@pytest.mark.parametrize("repository", ["here", "other"])
def test_repository_is_local_if_all_copies_are(
    monkeypatch: pytest.MonkeyPatch, repository: str, copies: str, filesystem: str
) -> None:
    (lines, is_here), pool = COPIES[copies], FILESYSTEMS[filesystem]
    mounts = [MountEntry("/", "ext4", "/dev/vda1"), MountEntry("/srv/backups", filesystem, "tank/backups")]
    monkeypatch.setattr(rule_facts, "mounted", lambda: mounts)
    text = CONFIGURATION.format(repository=repository, copies=lines) + '[repository.other]\nurl = "s3://other/main"\n'
    place = rule_facts.local_repository(Instance.of(parse(text, "test"), "main"))
    is_local = repository == "here" and is_here and pool is not None
    assert place == (LocalRepository("/srv/backups/main", pool or "") if is_local else None)
