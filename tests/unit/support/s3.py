"""A bucket in a mocked S3: create, fill and open it."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, cast

import boto3
import pytest
from botocore.awsrequest import AWSRequest
from botocore.session import Session
from moto import mock_aws
from moto.core.botocore_stubber import BotocoreStubber
from moto.core.models import DEFAULT_ACCOUNT_ID
from moto.s3.models import s3_backends

from zsnapdb.store import s3_client
from zsnapdb.store.s3 import S3Store

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

P = ParamSpec("P")
T = TypeVar("T")


def s3(bucket: str = "backups", credentials: Path | None = None) -> S3Store:
    return S3Store(
        bucket, endpoint=None, region="us-east-1", credentials_file=credentials, addressing="auto", connections=2
    )


def s3_that_ignores(header: str) -> S3Store:
    """Return the bucket's store behind a gateway that loses a header of writes, such as If-Match."""
    store = s3()

    def lose(request: AWSRequest, **_: object) -> None:
        del request.headers[header]

    store._client.meta.events.register("before-sign.s3.PutObject", lose)
    return store


def watch_clients(monkeypatch: pytest.MonkeyPatch, change: Callable[[S3Client], None]) -> None:
    """Pass each new client of a store to `change` before the store gets it."""
    core_of = s3_client.client_core

    def changing() -> Session:
        core = core_of()
        create = core.create_client

        def created(*words: Any, **named: Any) -> Any:
            client = create(*words, **named)
            change(cast("S3Client", client))
            return client

        monkeypatch.setattr(core, "create_client", created)
        return core

    monkeypatch.setattr("zsnapdb.store.s3.client_core", changing)


def answer_with(monkeypatch: pytest.MonkeyPatch, call: str, answer: Callable[..., Any]) -> None:
    """Let each new client of a store answer this call with `answer`."""
    watch_clients(monkeypatch, lambda client: monkeypatch.setattr(client, call, answer))


@functools.cache
def _client() -> S3Client:
    """Return a cached client of the mocked S3, because creating a client takes longer than most tests."""
    return boto3.client("s3", region_name="us-east-1", aws_access_key_id="key", aws_secret_access_key="secret")


def _one_at_a_time(answer: Callable[P, T]) -> Callable[P, T]:
    """Return a thread-safe function: moto closes an object that one thread reads while another replaces it."""
    lock = threading.Lock()

    def answer_alone(*words: P.args, **named: P.kwargs) -> T:
        with lock:
            return answer(*words, **named)

    return answer_alone


@contextmanager
def bucket(*, locked: bool = False) -> Iterator[S3Client]:
    """Run the block with a mocked S3 that has one empty bucket, "backups", and with its credentials."""
    with pytest.MonkeyPatch.context() as environment, mock_aws():
        environment.setattr(BotocoreStubber, "process_request", _one_at_a_time(BotocoreStubber.process_request))
        environment.setenv("AWS_ACCESS_KEY_ID", "key")
        environment.setenv("AWS_SECRET_ACCESS_KEY", "secret")
        _client().create_bucket(Bucket="backups", ObjectLockEnabledForBucket=locked)
        yield _client()


def fill(keys: Iterable[str]) -> None:
    """Store an empty object under each key, without the protocol, which would take milliseconds per object."""
    for key in keys:
        s3_backends[DEFAULT_ACCOUNT_ID]["aws"].put_object("backups", key, b"")
