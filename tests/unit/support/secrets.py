"""Secrets to plant, and the search for them."""

from __future__ import annotations

import base64
from collections.abc import Iterable

PASSWORD = "planted-password-of-the-database"
S3_SECRET = "planted-secret-of-s3"
S3_TOKEN = "planted-session-token"
HOOK_SECRET = "planted-secret-of-a-webhook"
PLANTED = (PASSWORD, S3_SECRET, S3_TOKEN, HOOK_SECRET)
VARIABLES = {
    "ZSNAPDB_PASSWORD": PASSWORD,
    "AWS_SECRET_ACCESS_KEY": S3_SECRET,
    "AWS_SESSION_TOKEN": S3_TOKEN,
    "PAGER_TOKEN": HOOK_SECRET,
}


def forms(secret: bytes) -> Iterable[bytes]:
    """Return the encodings in which a secret could be written."""
    yield from (secret, secret.hex().encode(), base64.b64encode(secret).rstrip(b"="))


def check_clean(text: bytes, secrets: Iterable[bytes], where: object) -> None:
    for number, secret in enumerate(secrets):
        for form in forms(secret):
            assert form not in text, f"secret {number} is in {where}"
