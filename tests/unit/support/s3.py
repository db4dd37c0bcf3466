"""The bucket of a mocked S3, as the tests open it."""

from __future__ import annotations

from pathlib import Path

from zsnapdb.store.s3 import S3Store


def s3(bucket: str = "backups", credentials: Path | None = None) -> S3Store:
    return S3Store(
        bucket, endpoint=None, region="us-east-1", credentials_file=credentials, addressing="auto", connections=2
    )
