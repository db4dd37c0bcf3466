"""S3 servers differ in what they know and in how they refuse: nothing stays behind, nothing is missed silently."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

import pytest

from tests.unit.support.dialect_server import Answer, DialectRequest, DialectServer, dialect_server, refusal
from zsnapdb.base.errors import ExistsError, RepositoryError, UnreachableError
from zsnapdb.store.layers import RetryingStore
from zsnapdb.store.s3_client import WRONG_KEY, S3Options

CODES = (
    *("InvalidRequest", "InvalidArgument", "AccessDenied", "NotImplemented", "XNotImplemented", "MissingContentMD5"),
    *("MethodNotAllowed", "UnsupportedOperation", "MalformedXML", "NotSupported", "SignatureDoesNotMatch", "Unheard"),
)
STATUSES = (400, 403, 404, 405, 411, 415, 500, 501, 502, 503)
HTML = (
    "<html><body><h1>Not here</h1></body></html>",
    "<!DOCTYPE html><html><br><p>not well formed</html>",
    "nothing of the kind",
    "",
)


@pytest.fixture
def served(tmp_path: Path) -> Iterator[DialectServer]:
    with dialect_server(tmp_path) as running:
        yield running


def fill(served: DialectServer, count: int = 3) -> list[str]:
    keys = [f"p/{number:04d}" for number in range(count)]
    served.objects.update(dict.fromkeys(keys, b"1"))
    return keys


def test_objects_go_whatever_a_server_answers_to_a_request_for_many(served: DialectServer) -> None:
    """The complete space of refusals: each code with each status, and pages that are no S3 answer, 200 included."""
    answers: list[Answer] = [refusal(status, code) for status in STATUSES for code in CODES]
    answers += [(status, page) for status in (200, *STATUSES) for page in HTML]
    store = served.store()
    for answer in answers:
        served.dialect.many = lambda keys, answer=answer: answer
        store._removal.in_batches = True
        store.delete_many(fill(served))
        assert served.objects == {}, answer


@pytest.mark.parametrize("code", ["AccessDenied", "InternalError", "SlowDown", "MalformedXML", ""])
def test_an_object_refused_inside_an_answer_is_removed_alone(served: DialectServer, code: str) -> None:
    def all_but_one(keys: list[str]) -> Answer:
        for key in keys[1:]:
            del served.objects[key]
        rows = "".join(f"<Deleted><Key>{key}</Key></Deleted>" for key in keys[1:])
        return 200, f"<DeleteResult><Error><Key>{keys[0]}</Key><Code>{code}</Code></Error>{rows}</DeleteResult>"

    served.dialect.many = all_but_one
    served.store().delete_many(fill(served))
    assert served.objects == {}
    assert served.count("DELETE") == 1


def test_objects_that_a_quiet_answer_does_not_name_are_removed_alone(served: DialectServer) -> None:
    served.dialect.many = lambda keys: (200, "<DeleteResult/>")
    served.store().delete_many(fill(served))
    assert served.objects == {}


@pytest.mark.parametrize(("status", "asked"), [(400, 1), (403, 1), (405, 1), (501, 1), (500, 3)])
def test_a_refused_request_for_many_is_not_asked_again(served: DialectServer, status: int, asked: int) -> None:
    served.dialect.many = lambda keys: refusal(status, "Whatever")
    store = served.store()
    for _ in range(3):
        store.delete_many(fill(served))
    assert (served.objects, served.count("POST")) == ({}, asked)


def test_a_busy_server_is_left_alone(served: DialectServer) -> None:
    served.dialect.many = lambda keys: refusal(503, "SlowDown")
    with pytest.raises(UnreachableError, match="SlowDown"):
        served.store().delete_many(fill(served))
    assert served.count("DELETE") == 0


@pytest.mark.parametrize("code", ["AccessDenied", "InvalidRequest", "ObjectLocked"])
@pytest.mark.parametrize("many", [None, refusal(403, "AccessDenied"), refusal(501, "NotImplemented")])
def test_a_locked_object_is_named_and_the_others_go(served: DialectServer, code: str, many: Answer | None) -> None:
    locked = "p/0001"

    def keeping(keys: list[str]) -> Answer:
        for key in keys:
            served.objects.pop(key) if key != locked else None
        return 200, "".join(
            ["<DeleteResult>", *(f"<Deleted><Key>{key}</Key></Deleted>" for key in keys if key != locked)]
        ) + f"<Error><Key>{locked}</Key><Code>{code}</Code></Error></DeleteResult>"

    served.dialect.many = (lambda keys: many) if many is not None else keeping
    served.dialect.one = lambda key: refusal(403, code, "Object is locked") if key == locked else None
    with pytest.raises(RepositoryError, match=rf"removing {locked} in .* \({code}\)") as caught:
        served.store().delete_many(fill(served))
    assert list(served.objects) == [locked]
    assert not isinstance(caught.value, UnreachableError)


def test_an_account_that_may_remove_nothing_is_told_soon(served: DialectServer) -> None:
    served.dialect.many = lambda keys: refusal(403, "AccessDenied")
    served.dialect.one = lambda key: refusal(403, "AccessDenied")
    with pytest.raises(RepositoryError, match="removing p/0000 in") as caught:
        served.store().delete_many(fill(served, 500))
    assert "iam-policy-prune" in caught.value.hint
    assert (len(served.objects), served.count("DELETE")) == (500, 10)


def test_a_missing_object_counts_as_removed_where_that_is_an_error(served: DialectServer) -> None:
    served.dialect.missing_is_an_error = True
    served.dialect.many = lambda keys: refusal(501, "NotImplemented")
    keys = fill(served)
    store = served.store()
    store.delete("none")
    store.delete_many([*keys, "p/none"])
    assert served.objects == {}


def test_a_server_that_wants_content_md5_of_a_request_for_many_gets_it(served: DialectServer) -> None:
    def needs_md5(request: DialectRequest) -> Answer | None:
        lacks = request.command == "POST" and "Content-MD5" not in request.headers
        return refusal(400, "MissingContentMD5") if lacks else None

    served.dialect.any = needs_md5
    served.store().delete_many(fill(served))
    assert (served.objects, served.count("DELETE")) == ({}, 0)


def token_of(request: DialectRequest) -> str:
    return request.headers.get("x-amz-security-token", "")


def only_new(answer: Answer, request: DialectRequest) -> Answer | None:
    return None if token_of(request) == "new" else answer


REFUSED_TOKENS = [
    *(refusal(400, "ExpiredToken"), refusal(400, "InvalidToken"), refusal(403, "RequestExpired")),
    *(refusal(403, "InvalidAccessKeyId"), refusal(403, "SignatureDoesNotMatch"), refusal(403, "AccessDenied")),
    *(refusal(400, "TokenRefreshRequired"), refusal(401, "Unauthorized"), (403, "<html>"), (400, "")),
]
CALLS: dict[str, Callable[[RetryingStore], object]] = {
    "check": lambda store: store.check(),
    "put": lambda store: store.put("k", b"2"),
    "put if absent": lambda store: store.put("new", b"2", only_if_absent=True),
    "get": lambda store: store.get("k"),
    "read_into": lambda store: store.read_into("k", memoryview(bytearray(1))),
    "replace": lambda store: store.replace("k", b"2", tag=store.read_version("k").tag),
    "list": lambda store: list(store.list("")),
    "folders": lambda store: list(store.folders("")),
    "hold": lambda store: store.hold("k"),
    "delete": lambda store: store.delete("k"),
    "delete_many": lambda store: store.delete_many(["k", "l"]),
}


@pytest.mark.parametrize("call", CALLS)
def test_renewed_credentials_of_the_file_are_read_when_the_old_ones_are_refused(
    served: DialectServer, call: str
) -> None:
    for answer in REFUSED_TOKENS:
        served.objects = {"k": b"1", "l": b"1"}
        served.dialect.any = lambda request: None
        served.renew("old")
        store = RetryingStore(served.store(), 0)
        CALLS["check"](store)
        served.renew("new")
        served.dialect.any = partial(only_new, answer)
        CALLS[call](store)


def test_credentials_that_were_not_renewed_are_asked_for_by_name(served: DialectServer) -> None:
    served.dialect.any = lambda request: refusal(400, "ExpiredToken", "The token has expired.")
    with pytest.raises(RepositoryError, match="ExpiredToken") as caught:
        served.store().put("k", b"1")
    assert str(served.credentials) in caught.value.hint
    assert not isinstance(caught.value, UnreachableError)
    assert served.count("PUT") == 1


@pytest.mark.parametrize("code", sorted(WRONG_KEY))
@pytest.mark.parametrize("source", ["file", "environment", "shared file"])
def test_wrong_key_is_reported_with_its_source_and_without_it(
    served: DialectServer, monkeypatch: pytest.MonkeyPatch, source: str, code: str
) -> None:
    shared = served.folder / "shared"
    shared.write_text("[default]\naws_access_key_id = KEYID\naws_secret_access_key = hidden\n")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(shared))
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    if source == "environment":
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "KEYID")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hidden")
    served.dialect.any = lambda request: refusal(403, code)
    with pytest.raises(RepositoryError, match=code) as caught:
        served.store(has_file=source == "file").check()
    places = {"file": str(served.credentials), "environment": "AWS_ACCESS_KEY_ID", "shared file": str(shared)}
    assert places[source] in caught.value.hint
    assert not {"KEYID", "hidden"} & set(f"{caught.value} {caught.value.hint}".split())


def test_renewed_credentials_that_are_refused_too_are_tried_once(served: DialectServer) -> None:
    def renewing(request: DialectRequest) -> Answer:
        served.renew(f"token-{len(served.requests)}")
        return refusal(400, "ExpiredToken")

    store = served.store()
    served.dialect.any = renewing
    with pytest.raises(RepositoryError, match="ExpiredToken"):
        store.get("k")
    assert served.count("GET") == 2


def test_a_file_that_is_half_written_hides_no_refusal(served: DialectServer) -> None:
    store = served.store()
    served.credentials.write_text("[default]\naws_acc")
    served.dialect.any = lambda request: refusal(400, "ExpiredToken")
    with pytest.raises(RepositoryError, match="ExpiredToken"):
        store.get("k")


@pytest.mark.parametrize("status", [400, 501])
@pytest.mark.parametrize("code", ["NotImplemented", "XNotImplemented", "InvalidArgument", "InvalidRequest"])
@pytest.mark.parametrize("header", ["If-None-Match", "If-Match"])
def test_a_server_without_conditional_writes_is_refused_at_once(
    served: DialectServer, header: str, code: str, status: int
) -> None:
    served.dialect.put = lambda request: refusal(status, code) if header in request.headers else None
    served.objects["k"] = b"1"
    store = RetryingStore(served.store(), 600)
    with pytest.raises(RepositoryError, match=code) as caught:
        CALLS["replace" if header == "If-Match" else "put if absent"](store)
    assert "conditional writes" in caught.value.hint
    assert not isinstance(caught.value, UnreachableError | ExistsError)


def test_an_object_is_locked_on_a_server_without_checksums(served: DialectServer) -> None:
    def old(request: DialectRequest) -> Answer | None:
        if any("checksum" in name.lower() for name in request.headers):
            return refusal(501, "NotImplemented")
        if "x-amz-object-lock-mode" in request.headers and "Content-MD5" not in request.headers:
            return refusal(400, "InvalidRequest", "Content-MD5 is required for requests with object lock")
        return None

    served.dialect.put = old
    store = served.store(S3Options(lock_mode="COMPLIANCE", lock_period=3600))
    store.put("k", b"1")
    store.put("l", memoryview(b"2"))
    assert served.objects == {"k": b"1", "l": b"2"}


def test_a_lock_that_a_server_does_not_know_is_not_waited_for(served: DialectServer) -> None:
    served.dialect.put = lambda request: refusal(501, "NotImplemented") if "retention" in request.words else None
    store = RetryingStore(served.store(S3Options(lock_mode="COMPLIANCE", lock_period=3600)), 600)
    with pytest.raises(RepositoryError, match="NotImplemented"):
        store.extend_lock("k", datetime.now(UTC) + timedelta(days=1))


@pytest.mark.parametrize("page", HTML)
@pytest.mark.parametrize("call", ["check", "list", "folders"])
def test_a_page_of_a_proxy_is_not_an_empty_bucket(served: DialectServer, call: str, page: str) -> None:
    served.dialect.any = lambda request: (200, page)
    with pytest.raises(RepositoryError):
        CALLS[call](RetryingStore(served.store(), 0))


def test_a_listing_out_of_order_is_refused_rather_than_skipped(served: DialectServer) -> None:
    fill(served)
    served.dialect.listing = lambda keys: [keys[1], keys[0], *keys[2:]]
    with pytest.raises(RepositoryError, match="lists p/0000 after p/0001"):
        list(RetryingStore(served.store(), 0).list("p/"))


def test_a_listing_that_repeats_its_first_page_ends(served: DialectServer) -> None:
    fill(served, 1005)

    def first_page(request: DialectRequest) -> Answer | None:
        request.words.pop("continuation-token", None)
        return None

    served.dialect.any = first_page
    with pytest.raises(RepositoryError, match="lists p/0000 after p/0999"):
        list(RetryingStore(served.store(), 0).list("p/"))


def test_a_server_of_the_old_listing_is_refused_at_its_second_page(served: DialectServer) -> None:
    served.dialect.any = lambda request: (
        200,
        "<ListBucketResult><Name>b</Name><IsTruncated>true</IsTruncated><NextMarker>a</NextMarker></ListBucketResult>",
    )
    with pytest.raises(RepositoryError, match="NextContinuationToken"):
        list(served.store().list(""))
