"""Sentences that tell people which values a pattern allows. An error for people shows such a sentence, no pattern."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pydantic_core import ErrorDetails


@dataclass(frozen=True)
class AllowedText:
    """A description of the texts that a pattern allows, and an allowed text."""

    description: str
    example: str

    def __str__(self) -> str:
        return f"must be {self.description}, such as {self.example!r}"


_SMALL_NAME = "small letters, digits, - and _, with a letter or digit first"
_ONE_LINE = "one line without control characters"

ALLOWED: Mapping[str, AllowedText] = {
    # Arguments of users without root rights
    r"[a-z0-9][a-z0-9_-]{0,31}": AllowedText(f"at most 32 of: {_SMALL_NAME}", "shop-test"),
    r"[a-z0-9][a-z0-9_-]{0,47}": AllowedText(f"at most 48 of: {_SMALL_NAME}", "main"),
    r"[0-9A-Za-z][0-9A-Za-z:.,+ -]{0,999}": AllowedText("a time, an age, or GTIDs", "2026-11-25T10:00:00Z"),
    r"latest|[0-9]{8}T[0-9]{6}Z-[0-9a-f]{4}": AllowedText(
        "latest or the id of a snapshot set", "20261125T100000Z-0a1b"
    ),
    r"[0-9]{1,9}(\.[0-9]{1,3})?(ms|s|m|h|d|w)": AllowedText("a number with its unit ms, s, m, h, d or w", "4h"),
    r"[^\x00-\x1f\x7f-\x9f\u2028\u2029]{0,250}": AllowedText("one line of at most 250 characters", "before the change"),
    r"[A-Za-z0-9][A-Za-z0-9._/-]{0,59}": AllowedText(
        "at most 60 of: letters, digits, . _ - and /, with a letter or digit first", "fix/orders"
    ),
    r"[0-9]{1,20}": AllowedText("the number that `guid` of the clone has", "4711"),
    r"[0-9]{8}T[0-9]{6}Z-[0-9a-f]{8}": AllowedText("the id of an operation", "20261125T100000Z-0a1b2c3d"),
    r"[!-~]{1,200}": AllowedText("1 to 200 printable ASCII characters without spaces", "job-4711"),
    r"[A-Za-z0-9_.*?\[\]!-]{1,100}": AllowedText("at most 100 of: letters, digits, - _ . * ? [ ] and !", "db*"),
    r"[1-9][0-9]{0,18}B": AllowedText("a number of bytes with its unit B", "1048576B"),
    r"[1-9][0-9]{0,2}": AllowedText("a number from 1 to 999", "100"),
    r"[0-9]{1,3}": AllowedText("a number from 0 to 999", "20"),
    r"tiny|normal": AllowedText("tiny or normal", "tiny"),
    # Settings
    r"[A-Za-z_][A-Za-z0-9_.-]{0,31}": AllowedText("the name of an account of this host", "zsnapdb-web"),
    r"[A-Za-z0-9][A-Za-z0-9:_.@-]{0,200}": AllowedText("the name of a systemd unit", "mariadb.service"),
    r"age1[0-9a-z]+": AllowedText("a public key of age", "age1ql3z7hjy"),
    r"[A-Za-z0-9+/]{43}=": AllowedText(
        "the 44 characters of a public key in base64", "MCowBQYDK2VwAyEAGb9ECWmEzf6FQbrBZ9w7lshQhqo="
    ),
    r"/[^\x00-\x1f\x7f-\x9f]+": AllowedText("an absolute path", "/boot/vmlinuz"),
    r"/": AllowedText("an absolute path", "/"),
    r"[^\x00-\x1f\x7f-\x9f]*": AllowedText(_ONE_LINE, "console=ttyS0"),
    r"[^\x00-\x1f\x7f-\x9f]+": AllowedText(_ONE_LINE, "mysql"),
    r"[^/\x00-\x1f\x7f-\x9f]+": AllowedText("the name of a libvirt domain", "db1"),
    r"[0-9a-fA-F.:]+": AllowedText("an IP address", "127.0.0.1"),
    r"https://[A-Za-z0-9](?:[A-Za-z0-9.-]{0,250}[A-Za-z0-9])?(?::[0-9]{1,5})?(?:/[A-Za-z0-9._~%/-]{0,500})?": (
        AllowedText("an https URL without a query", "https://gitlab.example.com")
    ),
    r"https?://[^\s/@]+(/\S*)?": AllowedText("a URL without a password", "https://hooks.example.com/T1"),
    r"(?:https://[A-Za-z0-9](?:[A-Za-z0-9.-]{0,250}[A-Za-z0-9])?|http://(?:127\.0\.0\.1|localhost))(?::[0-9]{1,5})?": (
        AllowedText("https:// and a host, or http://localhost, with a port if needed", "https://db1.example.com")
    ),
    r"[!-~]{1,500}": AllowedText("1 to 500 printable ASCII characters without spaces", "zsnapdb"),
    r"[!#-\[\]-~]{1,100}": AllowedText("a scope of OAuth", "email"),
    r"[A-Za-z0-9][A-Za-z0-9._%+=-]*@[A-Za-z0-9.-]+": AllowedText("a mail address", "dba@example.com"),
    r"[a-z][a-z0-9-]{0,31}": AllowedText("at most 32 of: small letters, digits and -, with a letter first", "auto"),
    r"[a-z][a-z0-9-]{0,63}": AllowedText("the name of a rule of `zsnapdb doctor`", "binlog-format"),
    r"[0-9]+\.[0-9]+": AllowedText("a release with its two numbers", "8.4"),
    r"(\[[0-9a-fA-F:.]{2,45}\]|[A-Za-z0-9][A-Za-z0-9.-]{0,252}):[0-9]{1,5}": AllowedText(
        "a host and a port", "engine.example.com:7233"
    ),
    r"([01][0-9]|2[0-3]):[0-5][0-9]": AllowedText("a time of day", "02:30"),
    r"[a-z0-9][a-z0-9._-]{0,99}": AllowedText("small letters, digits, . _ and -", "fleet"),
    r"[A-Za-z0-9][A-Za-z0-9.-]{0,252}": AllowedText("the name of a host", "engine.example.com"),
    r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}": AllowedText("the name of a host", "db1"),
}


def allowed(pattern: str) -> str:
    """Return the sentence that says which values the pattern allows."""
    found = ALLOWED.get(bare(pattern))
    return str(found) if found is not None else "has another form than expected"


def bare(pattern: str) -> str:
    """Return a pattern without the anchors and the group around it."""
    inner = pattern.removeprefix("^").removesuffix("$")
    return inner[3:-1] if inner.startswith("(?:") and inner.endswith(")") else inner


def problem_of_value(error: ErrorDetails) -> str:
    """Return the problem of a value that a model refused."""
    if error["type"] == "string_pattern_mismatch":
        return allowed(error["ctx"]["pattern"])
    return error["msg"]
