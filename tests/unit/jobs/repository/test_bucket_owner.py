"""The owner of the bucket makes no host without a signing key remove, or call met, what is real."""

from __future__ import annotations

import json

from tests.unit.support.pruning import manifests, prune
from tests.unit.support.stored_backups import Site
from zsnapdb.jobs.repository import status
from zsnapdb.repository import layout


def forge(site: Site, original: str, suffix: str, **changes: object) -> str:
    """Put a copy of a manifest under a new id of a later time, without data. Return the id."""
    repository = site.instance().open_repository()
    fields = json.loads(repository.get(layout.manifest("main", original)))
    at = f"{original[:9]}235959Z-{suffix}"
    fields |= {"backup_id": at, **changes}
    repository.put(layout.manifest("main", at), json.dumps(fields, separators=(",", ":")).encode() + b"\n")
    return at


def test_made_up_backups_let_no_real_one_go(site: Site) -> None:
    site.keep = "last = 3"
    names = site.fill([None] * 3)
    made_up = [forge(site, names[-1], suffix) for suffix in ("aaaa", "bbbb", "cccc")]
    assert prune(site).removed == ()
    assert manifests(site) == sorted((*names, *made_up))


def test_made_up_backups_in_place_of_deleted_ones_are_no_reason_for_silence(site: Site) -> None:
    names = site.fill([None] * 6)
    repository = site.instance().open_repository()
    for name in names[3:]:
        repository.delete(layout.manifest("main", name))
    for name, suffix in zip(names[3:], ("aaaa", "bbbb", "cccc"), strict=True):
        body = repository.get(layout.manifest("main", names[2])).replace(names[2].encode(), name.encode())
        repository.put(
            layout.manifest("main", f"{name[:-4]}{suffix}"),
            body.replace(name.encode(), f"{name[:-4]}{suffix}".encode()),
        )
    found = status.status(site.instance())
    assert status.alarm(found) is not None
