"""How objects are put into S3: class, encryption, checksum, and what is done where an endpoint knows less."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError, EndpointConnectionError, SSLError

from tests.unit.support.s3 import bucket, watch_clients
from zsnapdb.base.errors import RepositoryError, UnreachableError
from zsnapdb.config.repository import RepositorySettings
from zsnapdb.store.s3 import S3Store
from zsnapdb.store.s3_client import BlockReader, S3Options

BODY = bytes(200_000)


@pytest.fixture(autouse=True)
def backups() -> Iterator[None]:
    with bucket():
        yield


def s3(options: S3Options | None = None) -> S3Store:
    return S3Store(
        "backups",
        endpoint=None,
        region="us-east-1",
        credentials_file=None,
        addressing="auto",
        connections=2,
        options=options,
    )


class Recorder:
    """Replaces put_object of later stores' clients. Refuses the configured calls and passes the others on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, refuse: Any = None) -> None:
        self.requests: list[dict[str, Any]] = []
        self.refuse = refuse
        watch_clients(monkeypatch, lambda client: self.watch(client, monkeypatch))

    def watch(self, client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        put = client.put_object

        def put_object(**words: Any) -> Any:
            self.requests.append(words)
            error = self.refuse(words) if self.refuse else None
            if error is not None:
                raise error
            return put(**words)

        monkeypatch.setattr(client, "put_object", put_object)


def refused(code: str, status: int = 400) -> ClientError:
    return ClientError({"Error": {"Code": code}, "ResponseMetadata": {"HTTPStatusCode": status}}, "PutObject")  # type: ignore[typeddict-item]


def test_the_hash_that_is_known_travels_with_the_object(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = Recorder(monkeypatch)
    store = s3()
    digest = hashlib.sha256(BODY)
    store.put("k", memoryview(BODY), sha256=digest.hexdigest())
    store.put("k", BODY)
    assert [words["ChecksumSHA256"] for words in seen.requests] == [base64.b64encode(digest.digest()).decode()] * 2
    assert store.get("k") == BODY


def test_an_endpoint_that_refuses_the_checksum_is_used_without_and_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = Recorder(monkeypatch, lambda words: refused("NotImplemented", 501) if "ChecksumSHA256" in words else None)
    store = s3()
    store.put("a", BODY)
    store.put("b", BODY)
    assert ["ChecksumSHA256" in words for words in seen.requests] == [True, False, False]
    assert (store.get("a"), store.get("b")) == (BODY, BODY)


def test_where_it_is_not_the_checksum_the_first_answer_counts_and_checksums_stay(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: Recorder = Recorder(
        monkeypatch, lambda words: refused("InvalidArgument") if len(seen.requests) <= 2 else None
    )
    store = s3()
    with pytest.raises(RepositoryError, match="InvalidArgument"):
        store.put("a", BODY)
    store.put("a", BODY)
    assert ["ChecksumSHA256" in words for words in seen.requests] == [True, False, True]


def test_a_checksum_that_must_be_is_never_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    Recorder(monkeypatch, lambda words: refused("NotImplemented", 501))
    store = s3(S3Options(checksum="sha256"))
    with pytest.raises(RepositoryError):
        store.put("a", BODY)


def test_class_and_encryption_are_asked_for_and_small_objects_stay_in_the_standard_class(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen = Recorder(monkeypatch)
    store = s3(S3Options("STANDARD_IA", "aws:kms", "key-1", "none"))
    store.put("chunk", BODY)
    store.put("manifest", b"{}")
    headers = [
        {name: value for name, value in words.items() if name not in ("Bucket", "Key", "Body")}
        for words in seen.requests
    ]
    sse = {"ServerSideEncryption": "aws:kms", "SSEKMSKeyId": "key-1"}
    assert headers == [{"StorageClass": "STANDARD_IA", **sse}, sse]


@pytest.mark.parametrize(
    ("error", "again"),
    [
        (refused("SlowDown", 503), True),
        (refused("Whatever", 500), True),
        (refused("Whatever", 429), True),
        (refused("RequestTimeout", 400), True),
        (refused("AccessDenied", 403), False),
        (refused("Whatever", 400), False),
        (EndpointConnectionError(endpoint_url="http://x"), True),
        (SSLError(endpoint_url="https://x", error=Exception("certificate verify failed")), False),
        (SSLError(endpoint_url="https://x", error=Exception("EOF occurred in violation of protocol")), True),
    ],
    ids=str,
)
def test_what_may_succeed_later_is_told_from_what_will_not(
    monkeypatch: pytest.MonkeyPatch, error: Exception, again: bool
) -> None:
    Recorder(monkeypatch, lambda words: error)
    store = s3(S3Options(checksum="none"))
    with pytest.raises(RepositoryError) as caught:
        store.put("a", BODY)
    assert isinstance(caught.value, UnreachableError) is again


def test_blocks_are_read_without_a_copy_again_after_going_back() -> None:
    data = bytes(range(256)) * 9000
    blocks = BlockReader(memoryview(data))
    for _ in range(2):
        parts = []
        while part := blocks.read(16384):
            assert isinstance(part, memoryview)
            parts.append(bytes(part))
        assert b"".join(parts) == data
        assert len(parts) < 5
        blocks.seek(0)
    assert (len(blocks), blocks.read(), blocks.tell(), blocks.seek(-5, 2)) == (
        len(data),
        data,
        len(data),
        len(data) - 5,
    )


def test_settings_that_cannot_work_are_refused() -> None:
    for words in (
        {"sse_key": "k"},
        {"storage_class": "DEEP_ARCHIVE"},
        {"patience": "-1s"},
        {"stream": {"level": "most"}},
        {"stream": {"level": 20}},
    ):
        with pytest.raises(ValueError, match=r"sse_key|cannot be read at once|duration|level"):
            RepositorySettings.model_validate({"url": "s3://b", **words})
    assert RepositorySettings.model_validate({"url": "s3://b", "stream": {"level": "auto"}}).stream.level == "auto"


def test_temporary_credentials_of_a_file_sign_with_their_session_token(tmp_path: Path) -> None:
    file = tmp_path / "credentials"
    file.write_text(
        "[default]\naws_access_key_id = AKIA\naws_secret_access_key = s%cret\naws_session_token = to%ken==\n"
    )
    file.chmod(0o600)
    store = S3Store(
        "bucket",
        endpoint="http://localhost:1",
        region="us-east-1",
        credentials_file=file,
        addressing="path",
        connections=1,
    )
    used = store._client._request_signer._credentials  # type: ignore[attr-defined]
    assert (used.access_key, used.secret_key, used.token) == ("AKIA", "s%cret", "to%ken==")
    assert "cret" not in repr(store._credentials)


def without(answer: Any, *names: str) -> Any:
    """Return the call, whose answers lack these fields, also in a listing."""

    def call(**words: Any) -> Any:
        answered = answer(**words)
        for part in (answered, *answered.get("Contents", [])):
            for name in names:
                part.pop(name, None)
        return answered

    return call


def losing(monkeypatch: pytest.MonkeyPatch, call: str, name: str) -> None:
    """Let the answers of later stores' clients to this call lack a field."""
    watch_clients(monkeypatch, lambda client: monkeypatch.setattr(client, call, without(getattr(client, call), name)))


def test_an_object_without_a_version_is_read_and_never_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    losing(monkeypatch, "get_object", "ETag")
    store = s3()
    store.put("a", BODY)
    assert store.get("a") == BODY
    with pytest.raises(RepositoryError, match="named no version"):
        store.replace("a", b"new", tag=store.read_version("a").tag)
    assert store.get("a") == BODY


def test_an_answer_that_lacks_what_every_s3_server_says_is_an_error_of_the_repository(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    losing(monkeypatch, "list_objects_v2", "Size")
    store = s3()
    store.put("a", BODY)
    with pytest.raises(RepositoryError, match="the provider's answer has no Size"):
        list(store.list(""))
