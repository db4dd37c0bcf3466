"""Documents of a repository that its owner wrote to reach the host."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.support.manifests import manifest
from zsnapdb.base.errors import DamagedError
from zsnapdb.repository.manifest import decode
from zsnapdb.repository.marker import Marker

LEADS_OUT = ["/etc/cron.d", "../etc", "a/../../b", "..", ".", "", "a\nb", "-r", "a@b", "a;b", "$(a)", "\x1b[2J"]


def _with(path: str, value: object) -> bytes:
    """The manifest with another value at the path, a dotted list of keys and numbers."""
    document: Any = json.loads(manifest().encode())
    *inner, last = [int(part) if part.isdigit() else part for part in path.split(".")]
    node = document
    for part in inner:
        node = node[part]
    node[last] = value
    return json.dumps(document).encode()


@pytest.mark.parametrize("name", LEADS_OUT)
@pytest.mark.parametrize(
    "path", ["backup_id", "instance", "repository_id", "volumes.0.role", "volumes.0.dataset", "volumes.0.snapshot"]
)
def test_a_name_in_a_manifest_that_could_become_another_path_or_an_option_is_damage(path: str, name: str) -> None:
    with pytest.raises(DamagedError, match=path.replace(".", r"\.")):
        decode(_with(path, name), "m")


@pytest.mark.parametrize("point", ["data", "", "/a/../etc", "/a/..", "//etc", "/a\n/b", "/a/"])
def test_a_mount_point_in_a_manifest_is_a_plain_absolute_path(point: str) -> None:
    with pytest.raises(DamagedError, match="mountpoint"):
        decode(_with("volumes.0.type.mountpoint", point), "m")


@pytest.mark.parametrize("name", ["../x", "a/b", "-r", "a=b", "A B"])
def test_a_name_of_a_property_or_variable_in_a_manifest_is_only_a_name(name: str) -> None:
    with pytest.raises(DamagedError):
        decode(_with("volumes.0.type.properties", {name: "on"}), "m")
    with pytest.raises(DamagedError):
        decode(_with("source.server.variables", {name: "on"}), "m")


@pytest.mark.parametrize("value", ["a\nplugin_load=x", "a\r", "a\0b"])
def test_a_value_of_a_variable_in_a_manifest_is_one_line(value: str) -> None:
    with pytest.raises(DamagedError):
        decode(_with("source.server.variables", {"sql_mode": value}), "m")


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("volumes.0.guid", 2**64),
        ("volumes.0.guid", -1),
        ("volumes.0.plain_size", -1),
        ("volumes.0.sha256", "zz" * 32),
        ("volumes.0.chunks.0.0", 1 << 40),
        ("volumes.0.chunks.0.1", "no hash"),
        ("volumes.0.chunks.0.2", -1),
        ("volumes.0.send_flags", ["-R", "--exec sh"]),
    ],
)
def test_a_number_or_hash_in_a_manifest_that_cannot_be_one_is_damage(path: str, value: object) -> None:
    with pytest.raises(DamagedError):
        decode(_with(path, value), "m")


def test_words_for_people_in_a_manifest_cannot_steer_a_terminal() -> None:
    read = decode(_with("source.lock.reason", "fine\x1b[2J\nbackup stored"), "m")
    assert read.source.lock.reason == "fine?[2J?backup stored"  # type: ignore[union-attr]


@pytest.mark.parametrize("name", [*LEADS_OUT, "../etc/docker", "a" * 65])
def test_the_id_in_a_marker_never_becomes_a_path(name: str) -> None:
    with pytest.raises(DamagedError, match=r"zsnapdb\.json cannot be read: id"):
        Marker.parse(json.dumps({"format": 1, "id": name, "recipients": []}).encode(), "zsnapdb.json")


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(st.sampled_from(sorted(json.loads(manifest().encode()))), _JSON)
def test_a_manifest_with_any_other_value_is_read_or_is_damage(key: str, value: object) -> None:
    with contextlib.suppress(DamagedError):
        decode(_with(key, value), "m")


@given(st.binary() | _JSON.map(lambda value: json.dumps(value).encode()))
def test_any_bytes_are_a_marker_or_damage(body: bytes) -> None:
    with contextlib.suppress(DamagedError):
        Marker.parse(body, "zsnapdb.json")


@pytest.mark.parametrize(
    ("path", "value"),
    [("source.server.variables", {"x" * 200_000 + "/": "on"}), ("source.position.gtids", "x" * 200_000)],
)
def test_the_error_about_a_damaged_manifest_stays_short_whatever_it_has(path: str, value: object) -> None:
    with pytest.raises(DamagedError) as caught:
        decode(_with(path, value), "m")
    assert len(str(caught.value)) < 1000
