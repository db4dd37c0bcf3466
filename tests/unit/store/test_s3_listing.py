"""A page of a listing has the objects that botocore reads in it, however the server writes them."""

from __future__ import annotations

from typing import Any
from xml.sax.saxutils import escape

import botocore.session
import pytest
from hypothesis import given
from hypothesis import strategies as st

from zsnapdb.store import s3_listing
from zsnapdb.store.s3_client import client_core

_SHAPE = botocore.session.get_session().get_service_model("s3").operation_model("ListObjectsV2").output_shape
_PARSER = client_core().get_component("response_parser_factory").create_parser("rest-xml")

_ONE = "<Contents><Key>no</Key><Size>1</Size><LastModified>2026-11-27T18:55:01Z</LastModified></Contents>"

Fields = dict[str, str]

objects = st.fixed_dictionaries(
    {
        "Key": st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs"]), min_size=1, max_size=20),
        "Size": st.integers(0, 2**63 - 1).map(str),
        "LastModified": st.datetimes().map(lambda when: f"{when.isoformat(timespec='milliseconds')}Z"),
        "ETag": st.sampled_from(['"0cc175b9c0f1b6a8"', "W/plain", '"a&b"', ""]),
    },
    optional={"StorageClass": st.just("STANDARD"), "Owner": st.just("somebody")},
)


def _element(fields: Fields, quote: str, order: list[str]) -> str:
    named = {name: f"<{name}>{escape(text, {chr(34): quote})}</{name}>" for name, text in fields.items()}
    if "Owner" in named:
        named["Owner"] = "<Owner><ID>1</ID><DisplayName>somebody</DisplayName></Owner>"
    return f"<Contents>{''.join(named[name] for name in sorted(named, key=order.index))}</Contents>"


def _page(elements: list[str], between: str = "") -> bytes:
    head = '<?xml version="1.0" encoding="UTF-8"?>\n<ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">'
    rest = "<CommonPrefixes><Prefix>b/</Prefix></CommonPrefixes><IsTruncated>true</IsTruncated>"
    return f"{head}<Name>backups</Name>{between.join(elements)}{rest}</ListBucketResult>".encode()


def _read(body: bytes, *, ours: bool) -> dict[str, Any]:
    answer: dict[str, Any] = {"status_code": 200, "headers": {}, "body": body}
    apart: dict[str, Any] = {}
    if ours:
        s3_listing.read_objects(answer, apart)
    parsed: dict[str, Any] = _PARSER.parse(answer, _SHAPE)
    parsed.update(apart)
    for item in parsed.get("Contents", []):
        item.setdefault("ETag", "")
        for name in ("StorageClass", "Owner"):
            item.pop(name, None)
    return parsed


@given(
    st.lists(objects, max_size=4),
    st.sampled_from(["&quot;", "&#34;", '"', "&#x22;"]),
    st.permutations(["Key", "Size", "LastModified", "ETag", "StorageClass", "Owner"]),
    st.sampled_from(["", "\n  ", f"<!-- {_ONE} -->"]),
)
def test_a_page_has_the_objects_that_the_library_reads(
    listed: list[Fields], quote: str, order: list[str], between: str
) -> None:
    body = _page([_element(fields, quote, order) for fields in listed], between)
    assert _read(body, ours=True) == _read(body, ours=False)


def test_objects_are_read_without_the_library_as_servers_write_them() -> None:
    written = {"Key": "a/1.json", "Size": "12", "LastModified": "2026-11-27T18:55:01.000Z", "ETag": '"0cc1"'}
    page = s3_listing.page_of(_page([_element(written, quote, list(written)) for quote in ("&quot;", "&#34;")]))
    assert page is not None
    assert [(item["Key"], item["Size"], item["ETag"]) for item in page.objects] == [("a/1.json", 12, '"0cc1"')] * 2
    assert b"Contents" not in page.rest


@pytest.mark.parametrize("cut", [40, 150, 260, 300])
def test_a_page_that_broke_off_stays_malformed(cut: int) -> None:
    written = {"Key": "a/1.json", "Size": "12", "LastModified": "2026-11-27T18:55:01.000Z", "ETag": '"0cc1"'}
    body = _page([_element(written, '"', list(written))] * 3)[:-cut]
    page = s3_listing.page_of(body)
    assert page is None or not page.rest.endswith(b"</ListBucketResult>")
