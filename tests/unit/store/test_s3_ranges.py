"""A large object is read over several connections where one is slow, and is the same object."""

from __future__ import annotations

import hashlib
import io
import random
import threading
from collections.abc import Mapping
from typing import Any

import pytest
from botocore.exceptions import ClientError, IncompleteReadError
from botocore.response import StreamingBody

from tests.unit.support.s3 import bucket, s3
from zsnapdb.base.errors import NotFound
from zsnapdb.store.s3_bucket import LEAST, PARTS, Pace, RangedReader


class Ending(io.BytesIO):
    """An answer that tells when it was closed."""

    def __init__(self, body: bytes, closed: threading.Event) -> None:
        super().__init__(body)
        self._closed = closed

    def close(self) -> None:
        super().close()
        self._closed.set()


class Objects:
    """One object that is read by ranges. `requests` are the parameters of each request."""

    def __init__(self, body: bytes) -> None:
        self.body = body
        self.requests: list[Mapping[str, str]] = []
        self.knows_ranges = True
        self.cut: set[int] = set()
        """The numbers of the requests whose answer breaks off."""
        self.is_broken = threading.Event()
        """Until then the other parts wait, if one is cut."""
        self._lock = threading.Lock()

    def tag(self) -> str:
        return hashlib.md5(self.body).hexdigest()

    def get(self, key: str, more: Mapping[str, str]) -> Any:
        with self._lock:
            number = len(self.requests)
            self.requests.append(more)
        if number and self.cut and number not in self.cut:
            assert self.is_broken.wait(30)
        if more.get("IfMatch", self.tag()) != self.tag():
            raise ClientError({"Error": {"Code": "PreconditionFailed"}}, "GetObject")
        body, answer = self.body, {"ETag": self.tag()}
        if "Range" in more and self.knows_ranges:
            begin, end = map(int, more["Range"].removeprefix("bytes=").split("-"))
            if begin >= len(self.body):
                raise ClientError({"Error": {"Code": "InvalidRange"}}, "GetObject")
            body = self.body[begin : end + 1]
            answer["ContentRange"] = f"bytes {begin}-{begin + len(body) - 1}/{len(self.body)}"
        sent = body[: len(body) // 2] if number in self.cut else body
        stream = Ending(sent, self.is_broken) if number in self.cut else io.BytesIO(sent)
        return {**answer, "ContentLength": len(body), "Body": StreamingBody(stream, len(body))}


def object_of(size: int) -> Objects:
    return Objects(random.Random(size).randbytes(size))


def fast() -> Pace:
    pace = Pace()
    pace.note(1 << 30, 1.0)
    return pace


@pytest.mark.parametrize("size", [0, 1, LEAST - 1, LEAST, LEAST + 1, 2 * LEAST, 4 * LEAST + 3, 5 * LEAST])
@pytest.mark.parametrize("room", [-1, 0, 1, LEAST, 3 * LEAST])
def test_what_is_read_is_the_object_as_far_as_it_fits_and_its_size(size: int, room: int) -> None:
    there = object_of(size)
    target = bytearray(max(0, size + room))
    assert RangedReader(there.get).read_into("k", memoryview(target)) == size
    fitting = min(size, len(target))
    assert target[:fitting] == there.body[:fitting]
    assert len(there.requests) <= PARTS + (size == 0)


def test_a_slow_line_is_shared_by_several_connections_and_a_fast_one_is_not() -> None:
    there = object_of(4 * LEAST)
    target = memoryview(bytearray(4 * LEAST))
    RangedReader(there.get).read_into("k", target)
    assert len(there.requests) == PARTS
    there.requests.clear()
    RangedReader(there.get, fast()).read_into("k", target)
    assert there.requests == [{}]


def test_a_small_object_is_one_request() -> None:
    there = object_of(LEAST)
    RangedReader(there.get).read_into("k", memoryview(bytearray(LEAST)))
    assert there.requests == [{}]


def test_a_server_that_knows_no_ranges_sends_the_object_once() -> None:
    there = object_of(4 * LEAST)
    there.knows_ranges = False
    target = bytearray(4 * LEAST)
    assert RangedReader(there.get).read_into("k", memoryview(target)) == len(there.body)
    assert bytes(target) == there.body
    assert len(there.requests) == 1


def test_the_pace_follows_what_connections_bring_and_short_answers_say_nothing() -> None:
    pace = Pace()
    pace.note(1000, 1e-9)
    assert not pace.is_fast
    assert fast().is_fast
    pace.note(1 << 30, 1.0)
    for _ in range(20):
        pace.note(10 << 20, 1.0)
    assert not pace.is_fast


@pytest.mark.parametrize("cut", range(PARTS))
def test_after_an_answer_that_breaks_off_nothing_writes_to_the_memory_any_more(cut: int) -> None:
    there = object_of(4 * LEAST)
    there.cut = {cut}
    target, reader = bytearray(4 * LEAST), RangedReader(there.get)
    with pytest.raises(IncompleteReadError):
        reader.read_into("k", memoryview(target))
    target[:] = bytes(len(target))
    for pool in reader._pools:
        pool.shutdown()
    assert not any(target)


def test_an_object_that_is_replaced_meanwhile_is_never_a_mixture() -> None:
    there = object_of(4 * LEAST)
    get, after = there.get, bytes(4 * LEAST)

    def replaced(key: str, more: Mapping[str, str]) -> Any:
        answer = get(key, more)
        there.body = after
        return answer

    target = bytearray(4 * LEAST)
    assert RangedReader(replaced).read_into("k", memoryview(target)) == 4 * LEAST
    assert target == after


@pytest.mark.parametrize("status", [412, 501])
def test_a_server_that_refuses_parts_is_asked_for_the_whole(status: int) -> None:
    there = object_of(4 * LEAST)

    def refusing(key: str, more: Mapping[str, str]) -> Any:
        if not more.get("Range", "bytes=0-").startswith("bytes=0-"):
            answer: Any = {"Error": {}, "ResponseMetadata": {"HTTPStatusCode": status}}
            raise ClientError(answer, "GetObject")
        return there.get(key, more)

    target = bytearray(4 * LEAST)
    assert RangedReader(refusing).read_into("k", memoryview(target)) == 4 * LEAST
    assert target == there.body


def test_a_weak_tag_is_no_condition() -> None:
    there = object_of(4 * LEAST)

    def weak(key: str, more: Mapping[str, str]) -> Any:
        assert "IfMatch" not in more
        return {**there.get(key, more), "ETag": 'W/"x"'}

    target = bytearray(4 * LEAST)
    RangedReader(weak).read_into("k", memoryview(target))
    assert (bytes(target), len(there.requests)) == (there.body, PARTS)


def test_a_bucket_is_read_by_ranges() -> None:
    with bucket() as client:
        body = random.Random(1).randbytes(3 * LEAST + 5)
        client.put_object(Bucket="backups", Key="k", Body=body)
        client.put_object(Bucket="backups", Key="empty", Body=b"")
        store = s3()
        for extra in (0, 7, 5 * LEAST):
            target = bytearray(len(body) + extra)
            assert store.read_into("k", memoryview(target)) == len(body)
            assert target[: len(body)] == body
        short = bytearray(2 * LEAST)
        assert store.read_into("k", memoryview(short)) == len(body)
        assert short == body[: 2 * LEAST]
        assert store.read_into("empty", memoryview(bytearray(3 * LEAST))) == 0
        with pytest.raises(NotFound):
            store.read_into("nothing", memoryview(bytearray(3 * LEAST)))
