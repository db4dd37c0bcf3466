"""A key is made and parsed by its kind's form alone: nothing written by others leads out of a repository."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zsnapdb.base.errors import DamagedError, ExistsError
from zsnapdb.repository import layout
from zsnapdb.repository.layout import Key, KeyPrefix, MarkerKey
from zsnapdb.repository.objects import RepositoryObjects
from zsnapdb.store.local import LocalStore

ID = "20261120T101112Z-7f3a"
NAME = "binlog.000007"
KEYS: list[Key] = [
    layout.MARKER,
    layout.manifest("main", ID),
    layout.unfinished_backup("main", ID),
    layout.pin("main", ID),
    layout.chunk("main", ID, "data", 1),
    layout.drill("main", ID),
    layout.verification("main", datetime(2026, 11, 20, tzinfo=UTC), 1),
    layout.lease("main/writer"),
    layout.incarnation("main", ID),
    layout.complete("main", ID),
    layout.rotated_binlog("main", ID, NAME),
    layout.binlog_chunk("main", ID, NAME, "00aa", 1),
    layout.segment("main", ID, NAME, 0, 60),
    layout.segment_body("main", ID, NAME, 0, 60, "00aa"),
]
KINDS = [type(key) for key in KEYS]
HOSTILE = ["", ".", "..", "../..", "/", "/etc", "a/../b", "a/b", "a\n", "a\0", "%2e%2e", "ä", "A b", "٣"]


def test_every_kind_has_a_form_of_its_own() -> None:
    for key in KEYS:
        assert [kind for kind in KINDS if kind.parse(key) is not None] == [type(key)]


@pytest.mark.parametrize("text", HOSTILE)
@pytest.mark.parametrize(
    "make",
    [
        lambda text: layout.manifest(text, ID),
        lambda text: layout.manifest("main", text),
        lambda text: layout.chunk("main", ID, text, 1),
        lambda text: layout.chunk(text, ID, "data", 1),
        lambda text: layout.drill("main", text),
        lambda text: layout.lease(f"main/{text}"),
        lambda text: layout.incarnation("main", text),
        lambda text: layout.complete("main", text),
        lambda text: layout.complete(text, ID),
        lambda text: layout.rotated_binlog("main", ID, text),
        lambda text: layout.rotated_binlog("main", text, NAME),
        lambda text: layout.binlog_chunk("main", ID, NAME, text, 1),
        lambda text: layout.segment("main", ID, text, 0, 60),
        lambda text: layout.segment_body("main", ID, NAME, 0, 60, text),
    ],
)
def test_no_text_of_somebody_else_becomes_a_part_of_a_key_unless_it_has_its_form(
    make: Callable[[str], Key], text: str
) -> None:
    with pytest.raises(DamagedError, match="of a repository"):
        make(text)


@pytest.mark.parametrize("text", ["", "..", "/", "/etc", "a/../b", "a\n", "ä"])
def test_no_listing_is_asked_for_outside_of_a_repository(text: str) -> None:
    for make in (layout.manifests, layout.all_chunks, layout.pins, lambda t: layout.segments("main", ID, t)):
        with pytest.raises(DamagedError, match="is not a valid folder of a repository"):
            make(text)


@given(st.text(alphabet="ab.Z-_0129T/\n", max_size=60), st.sampled_from(KINDS))
def test_what_is_parsed_has_no_empty_or_dotted_part(text: str, kind: type[Key]) -> None:
    key = kind.parse(text)
    assert key is None or all(part and not part.startswith(".") for part in key.split("/"))


@given(st.sampled_from([kind for kind in KINDS if kind is not type(layout.MARKER)]), st.data())
def test_a_key_gives_its_fields_and_is_below_the_prefix_of_them(kind: type[Key], data: st.DataObject) -> None:
    key = kind(data.draw(st.from_regex(kind._REGEX, fullmatch=True)))
    fields = {name: key.field(name) for name in kind._PIECES[1::2]}
    assert key == "".join(fields.get(piece, piece) for piece in kind._PIECES)
    assert kind.parse(key) == key
    instance, *_ = fields.values()
    if len(fields) > 1 and "lease" not in fields:
        assert kind.below(instance).parse(key) == key
        assert kind.below(f"{instance}x").parse(key) is None


def test_a_key_below_another_prefix_is_not_of_this_one() -> None:
    assert layout.manifests("main2").parse(layout.manifest("main", ID)) is None
    assert layout.chunks("main", ID, "data").parse(layout.chunk("main", ID, "parent", 1)) is None


def test_objects_are_written_once_and_listed_by_kind_below_the_prefix(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    objects, other = RepositoryObjects(store, "some/prefix/"), RepositoryObjects(store, "some/prefix-2/")
    key = layout.manifest("main", ID)
    objects.put(key, b"one")
    with pytest.raises(ExistsError):
        objects.put(key, b"two")
    assert (objects.put_same(key, b"one"), objects.put_same(key, b"two")) == (True, False)
    assert (objects.get(key), objects.exists(key), other.exists(key)) == (b"one", True, False)
    store.put("some/prefix/main/manifests/README", b"by hand")
    listed = list(objects.list_all(layout.manifests("main")))
    assert [item.key if item is not None else None for item in listed] == [key, None]
    assert objects.sizes(layout.manifests("main")) == {key: 3}
    assert objects.place(key) == f"some/prefix/main/manifests/{ID}.json"
    assert objects.place(key) in [item.key for item in store.list("")]
    objects.delete(key)
    assert not objects.exists(key)


def test_the_marker_is_no_key_of_another_kind() -> None:
    assert isinstance(layout.MARKER, MarkerKey)
    with pytest.raises(DamagedError):
        Key("zsnapdb.json")
    assert KeyPrefix("main/manifests/", MarkerKey).parse("zsnapdb.json") is None
