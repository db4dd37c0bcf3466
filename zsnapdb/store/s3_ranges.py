"""Reading of a large object over several parallel connections, if one connection is slow.

A provider gives each connection a share of the bandwidth. If one connection is fast, the object is read in one request.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import closing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from botocore.exceptions import ClientError, IncompleteReadError

from zsnapdb.base.connection_rate import is_slow, rate_of
from zsnapdb.store.s3_client import error_code, http_status, transfer_limit

if TYPE_CHECKING:
    from mypy_boto3_s3.type_defs import GetObjectOutputTypeDef

PARTS = 4
"""Maximum number of connections for one object."""
LEAST = 4 << 20
"""Minimum size of a part in bytes. The request for a shorter part costs more than it gains."""
MOST = 32
"""Maximum number of connections for all objects together."""
_BLOCK = 1 << 20
_NOT_IN_PARTS = {"PreconditionFailed", "InvalidRange", "NotImplemented"}
_TOTAL = re.compile(r"bytes [0-9]+-[0-9]+/([0-9]+)")


class Pace:
    """The recent rate of one connection, in bytes per second. Threads share it."""

    def __init__(self) -> None:
        self._rate = 0.0
        self._lock = threading.Lock()

    def note(self, size: int, seconds: float) -> None:
        """Record the size in bytes and the duration of one request. Short answers are ignored."""
        rate = rate_of(size, seconds)
        if rate is None:
            return
        with self._lock:
            self._rate = rate if not self._rate else 0.7 * self._rate + 0.3 * rate

    @property
    def is_fast(self) -> bool:
        """Whether one connection was fast. False if nothing was recorded yet."""
        return self._rate > 0 and not is_slow(self._rate)


Get = Callable[[str, Mapping[str, str]], "GetObjectOutputTypeDef"]
"""Requests an object by its key, with further parameters of GetObject. ClientError as from botocore."""


@dataclass(frozen=True)
class RangedReader:
    """Reads objects into memory with `get`. Threads may share it."""

    get: Get
    pace: Pace = field(default_factory=Pace)
    _pools: list[ThreadPoolExecutor] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def read_into(self, key: str, target: memoryview) -> int:
        """Write as much of the object as fits to `target`. Return the object's full size in bytes.

        After an error nothing writes to `target` any more. An object that is replaced during the read is read again.
        """
        if len(target) < 2 * LEAST or self.pace.is_fast:
            return self._whole(key, target)
        part = max(LEAST, -(-len(target) // PARTS))
        began = time.monotonic()
        try:
            answer = self.get(key, {"Range": f"bytes=0-{part - 1}"})
        except ClientError as error:
            if error_code(error) != "InvalidRange":
                raise
            return self._whole(key, target)
        total = _TOTAL.fullmatch(answer.get("ContentRange", ""))
        if total is None:
            # The server does not support ranges and sends the whole object.
            return self._received(answer, target, began)
        if self._in_parts(key, target[: min(int(total[1]), len(target))], part, answer, began):
            return int(total[1])
        return self._whole(key, target)

    def _in_parts(self, key: str, target: memoryview, part: int, first: GetObjectOutputTypeDef, began: float) -> bool:
        """Fill the target, its first part from the answer. No thread writes to the target after the return.

        Return whether the server confirms that all parts are of one object. If not, the caller reads it in one request.
        """
        running: list[Future[bool]] = []
        tag = first.get("ETag", "")
        try:
            for begin in range(part, len(target), part):
                one = self._pool().submit(self._part, key, target[begin : begin + part], begin, tag)
                running.append(one)
            self._exactly(first, target[:part], began)
        except BaseException:
            for one in running:
                one.cancel()
            raise
        finally:
            wait(running)
        return False not in {one.result() for one in running}

    def _whole(self, key: str, target: memoryview) -> int:
        began = time.monotonic()
        return self._received(self.get(key, {}), target, began)

    def _part(self, key: str, target: memoryview, begin: int, tag: str) -> bool:
        """Fill the target with this part. Return whether the server confirms that the object still has the tag."""
        with transfer_limit(len(target)):
            return self._limited_part(key, target, begin, tag)

    def _limited_part(self, key: str, target: memoryview, begin: int, tag: str) -> bool:
        began = time.monotonic()
        # A proxy that changes an answer makes its tag weak (RFC 9110), and no weak tag matches.
        same = {"IfMatch": tag} if tag and not tag.startswith("W/") else {}
        try:
            answer = self.get(key, {"Range": f"bytes={begin}-{begin + len(target) - 1}", **same})
        except ClientError as error:
            if error_code(error) in _NOT_IN_PARTS or http_status(error) in (412, 416, 501):
                return False
            raise
        self._exactly(answer, target, began)
        return True

    def _exactly(self, answer: GetObjectOutputTypeDef, target: memoryview, began: float) -> None:
        """Fill the target from the answer. IncompleteReadError unless the answer has exactly that size."""
        size = self._received(answer, target, began)
        if size != len(target):
            raise IncompleteReadError(actual_bytes=size, expected_bytes=len(target))

    def _received(self, answer: GetObjectOutputTypeDef, target: memoryview, began: float) -> int:
        """Write as much of the answer as fits to the target, in blocks. Return the answer's full size.

        Reading a large object in one call would need new memory every time.
        """
        with closing(answer["Body"]) as body:
            done = 0
            # Only the last read detects a truncated answer.
            while block := body.read(_BLOCK):
                taken = min(len(block), max(0, len(target) - done))
                target[done : done + taken] = memoryview(block)[:taken]
                done += len(block)
                if done > len(target):
                    return max(done, answer.get("ContentLength", 0))
        self.pace.note(done, time.monotonic() - began)
        return done

    def _pool(self) -> ThreadPoolExecutor:
        with self._lock:
            if not self._pools:
                self._pools.append(ThreadPoolExecutor(MOST - MOST // PARTS, thread_name_prefix="range"))
            return self._pools[0]
