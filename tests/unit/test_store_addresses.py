"""An address of a repository arrives at its store as it is written, or is refused: nothing of it is cut off."""

from __future__ import annotations

import string

import pytest
from pydantic import ValidationError

from zsnapdb.config.repository import RepositorySettings, S3Settings, parse_address
from zsnapdb.store.layers import RetryingStore, open_store

CHARACTERS = [*map(chr, range(256)), "\u200b", "\u202e", "\u2028", "ü", "猫", "\ud800", "\ufffd"]
TEMPLATES = (
    "file:///a{}b/c",
    "file:///{}b",
    "file:///a/b{}",
    "s3://bucket/a{}b/c",
    "s3://bucket/{}b",
    "s3://bucket/a{}",
    "azure://account/container/a{}b/c",
    "gs://bucket/a{}",
)
KEPT = set(string.ascii_letters + string.digits + "._~!$&'()*+,;=:@ -ü猫\ufffd")


@pytest.mark.parametrize("template", TEMPLATES)
def test_each_character_of_a_path_arrives_or_is_refused(template: str) -> None:
    arrived = set()
    for character in CHARACTERS:
        url = template.format(character)
        try:
            address = parse_address(url)
        except ValueError:
            continue
        if character != "/":
            arrived.add(character)
        assert f"{address.scheme}://{address.bucket}/{address.path}" == url.removesuffix("/")
    assert arrived == {c for c in CHARACTERS if c in KEPT or (c.isprintable() and not c.isascii())}


def test_each_character_of_a_bucket_arrives_or_is_refused() -> None:
    arrived = set()
    for character in CHARACTERS:
        try:
            address = parse_address(f"s3://my{character}bucket")
        except ValueError:
            continue
        if character != "/":
            assert address.bucket == f"my{character}bucket"
            arrived.add(character)
    assert arrived == set(string.ascii_letters + string.digits + "._-")


@pytest.mark.parametrize(
    "url",
    [
        *(
            "s3://bucket/a?versionId=1",
            "s3://bucket/a#b",
            "s3://bucket?x",
            "s3://bucket#x",
            "file:///a#b",
            "file:///a?b",
        ),
        *(
            "s3://bucket//a",
            "s3://bucket/a//b",
            "s3://bucket/a//",
            "s3://bucket/a/../b",
            "s3://bucket/./a",
            "file:///..",
        ),
        *("s3://bucket/a%20b", " s3://bucket", "s3://bucket ", "s3://bucket/a\n", "file:///a\tb"),
        *("s3://host:9000/bucket", "s3://bucket:/a", "s3://[::1]/a", "s3:///a", "s3://", "s3:/bucket", "s3:bucket"),
        *(
            "azure://account",
            "azure://account/",
            "azure://account//a",
            "azure://Account/container",
            "azure://ac/container",
        ),
        *("azure://account/-a1", "azure://account/a--b", "azure://account/ab", "azure://account/container//a"),
        *("gs://", "gs://ab", "gs://Bucket", "gs://bucket-/a", "gs:bucket", f"gs://{'a' * 223}"),
        *("file://host/a", "file:/a", "file:a", "file:///", "file:////a", "/a", "S3://bucket", "http://host/a", ""),
    ],
)
def test_an_address_that_would_lead_elsewhere_is_refused_by_the_configuration(url: str) -> None:
    with pytest.raises(ValidationError, match="url "):
        RepositorySettings(url=url)


@pytest.mark.parametrize(
    "url",
    [
        "s3://me:hunter2@bucket",
        "s3://me@bucket/a",
        "file://me:hunter2@/a",
        "s3://me:hunter2@b?x",
        "azure://me:hunter2@account/c",
        "azure://account/me:hunter2@c/a",
        "gs://me:hunter2@bucket",
    ],
)
def test_an_account_in_an_address_is_refused_without_its_password(url: str) -> None:
    with pytest.raises(ValueError, match="account or a password") as caught:
        parse_address(url)
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    "endpoint",
    [
        *("https://s3.example/?x", "https://s3.example#a", "https://s3.example/a b", "https://", "https:///a"),
        *(
            "https://s3.example:/a",
            "https://s3.example:port",
            "s3.example",
            " https://s3.example",
            "https://s3.example\n",
        ),
        *("https://me:hunter2@s3.example", "me:hunter2@s3.example", "https://s3.example/%2e"),
    ],
)
def test_an_endpoint_of_another_form_is_refused_without_its_password(endpoint: str) -> None:
    with pytest.raises(ValidationError, match="endpoint") as caught:
        S3Settings(endpoint=endpoint)
    assert all("hunter2" not in error["msg"] for error in caught.value.errors())


@pytest.mark.parametrize(
    "endpoint", ["https://s3.example", "https://s3.example:9000/", "https://[::1]:9000", "https://s3.example/v1/s3"]
)
def test_an_endpoint_of_a_host_a_port_and_a_path_is_accepted(endpoint: str) -> None:
    assert S3Settings(endpoint=endpoint).endpoint == endpoint


def test_the_store_has_the_parts_of_the_address() -> None:
    store, prefix = open_store(RepositorySettings(url="s3://bucket/a=1/b+c/", s3=S3Settings(region="us-east-1")))
    assert isinstance(store, RetryingStore)
    assert (vars(store.inner)["bucket"], prefix) == ("bucket", "a=1/b+c/")
