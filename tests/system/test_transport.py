"""Transport to the repository and back: compressed sends, and what an S3 server proves and refuses."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from zsnapdb.base.errors import ChangedError, ExistsError, RepositoryError
from zsnapdb.config.settings import load
from zsnapdb.jobs.base.instance import Instance
from zsnapdb.store.layers import open_store

from .in_guest import CONFIG, Lab

pytestmark = [pytest.mark.any_server, pytest.mark.usefixtures("first")]

STREAM = '[repository.s3.stream]\nsend = "compressed"\nchunk_size = "2MiB"\n'


@pytest.fixture(scope="module")
def compressed(lab: Lab) -> Path:
    """A configuration of compressed sends in small chunks, at a limited rate."""
    path = lab.changed(('addressing = "path" }', 'addressing = "path" }\nbandwidth = "12MiB"\npatience = "2m"'))
    path.write_text(path.read_text() + STREAM)
    return path


def test_a_chain_keeps_its_flags_and_plain_sends_do_not_follow_compressed_ones(lab: Lab, compressed: Path) -> None:
    base = lab.zsnapdb("backup", "--json", config=compressed).json["backup"]
    following = lab.zsnapdb("backup", "--json", config=compressed).json["backup"]
    assert [v["from_guid"] for v in following["volumes"]] == [v["guid"] for v in base["volumes"]]
    plan = lab.zsnapdb("backup", "--plan").stdout
    assert "was sent with flags -L -c, which must not change within a chain" in plan


def test_a_new_chain_gets_the_form_that_the_only_processor_wants_and_goes_on_in_it(lab: Lab, compressed: Path) -> None:
    automatic = compressed.with_name("automatic.toml")
    automatic.write_text(compressed.read_text().replace('send = "compressed"', 'send = "auto"'))
    plan = lab.zsnapdb("backup", "--full", "--plan", "--json", config=automatic).json
    assert (plan["base"], plan["send"]) == (None, "compressed")
    assert "the server needs the only processor" in plan["send_reason"]
    full = lab.zsnapdb("backup", "--full", "--json", config=automatic).json["backup"]
    assert all(v["stored_bytes"] >= v["plain_bytes"] for v in full["volumes"])
    plan = lab.zsnapdb("backup", "--plan", "--json", config=automatic).json
    assert (plan["base"], plan["send"]) == (full["backup_id"], "compressed")
    assert plan["send_reason"] == "as the rest of the chain"


def test_the_s3_server_proves_what_it_receives_and_keeps_conditions(lab: Lab) -> None:
    settings = Instance.of(load(CONFIG), "main").repository.model_copy(update={"patience": 0.0})
    store, prefix = open_store(settings)
    key, body = f"{prefix}transport/k", b"body" * 50_000
    with pytest.raises(RepositoryError):
        store.put(key, body, sha256=hashlib.sha256(b"other").hexdigest())
    assert list(store.list(key)) == []
    store.put(key, memoryview(body), only_if_absent=True, sha256=hashlib.sha256(body).hexdigest())
    with pytest.raises(ExistsError):
        store.put(key, b"", only_if_absent=True)
    tag = store.read_version(key).tag
    store.replace(key, b"second", tag=tag)
    with pytest.raises(ChangedError):
        store.replace(key, b"third", tag=tag)
    assert store.get(key) == b"second"
    store.delete(key)
    with pytest.raises(ChangedError):
        store.replace(key, b"fourth", tag=tag)
