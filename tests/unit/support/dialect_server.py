"""A local S3 server that speaks a dialect: it refuses, ignores or spells some requests in its own way."""

from __future__ import annotations

import contextlib
import hashlib
import http.server
import threading
import urllib.parse
import xml.etree.ElementTree as ET
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from xml.sax.saxutils import escape

from zsnapdb.store.s3 import S3Store
from zsnapdb.store.s3_client import S3Options

Answer = tuple[int, str]
"""An HTTP status and a body."""
PAGE = 1000


def refusal(status: int, code: str, message: str = "no") -> Answer:
    return status, f"<Error><Code>{code}</Code><Message>{message}</Message></Error>"


@dataclass
class Dialect:
    """The peculiarities of a server. `many` answers a request to remove several objects (None: supported)."""

    many: Callable[[list[str]], Answer] | None = None
    one: Callable[[str], Answer | None] = lambda key: None
    put: Callable[[DialectRequest], Answer | None] = lambda request: None
    any: Callable[[DialectRequest], Answer | None] = lambda request: None
    listing: Callable[[list[str]], list[str]] = lambda keys: keys
    missing_is_an_error: bool = False
    """Whether the removal of a missing object is an error (Google's storage)."""


@dataclass
class DialectServer:
    """A running server, its objects, and its requests: method and path with query."""

    dialect: Dialect
    folder: Path
    port: int = 0
    objects: dict[str, bytes] = field(default_factory=dict)
    times: dict[str, str] = field(default_factory=lambda: defaultdict(lambda: f"{datetime.now(UTC):%FT%TZ}"))
    requests: list[str] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def credentials(self) -> Path:
        return self.folder / "credentials"

    def renew(self, token: str) -> None:
        """Write credentials with this session token."""
        text = f"[default]\naws_access_key_id = a\naws_secret_access_key = b\naws_session_token = {token}\n"
        self.credentials.write_text(text)
        self.credentials.chmod(0o600)

    def store(self, options: S3Options | None = None, *, has_file: bool = True) -> S3Store:
        return S3Store(
            "backups",
            endpoint=f"http://127.0.0.1:{self.port}",
            region="us-east-1",
            credentials_file=self.credentials if has_file else None,
            addressing="path",
            connections=2,
            options=options,
        )

    def count(self, method: str, word: str = "") -> int:
        return sum(request.startswith(method) and word in request for request in self.requests)


class DialectRequest(http.server.BaseHTTPRequestHandler):
    """One request. A server's subclass has the server."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    served: DialectServer

    def log_message(self, *_: object) -> None:
        """Print nothing."""

    def _run(self) -> None:
        served, dialect = self.served, self.served.dialect
        size = int(self.headers.get("Content-Length") or 0)
        self.body = self.rfile.read(size)
        url = urllib.parse.urlsplit(self.path)
        self.key = urllib.parse.unquote(url.path).removeprefix("/backups").lstrip("/")
        self.words = dict(urllib.parse.parse_qsl(url.query, keep_blank_values=True))
        with served.lock:
            served.requests.append(f"{self.command} {self.path}")
            answer = dialect.any(self) or self._answer()
        if answer is not None:
            self.send(*answer)

    do_GET = do_PUT = do_HEAD = do_POST = do_DELETE = _run  # noqa: N815 - the library names them

    def send(self, status: int, body: str | bytes, **headers: str) -> None:
        data = body.encode() if isinstance(body, str) else body
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        if status != 204:
            self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def _answer(self) -> Answer | None:
        return {"GET": self._get, "HEAD": self._get, "PUT": self._put, "POST": self._post, "DELETE": self._delete}[
            self.command
        ]()

    def _tag(self, key: str) -> str:
        return f'"{hashlib.md5(self.served.objects[key]).hexdigest()}"'

    def _put(self) -> Answer | None:
        objects = self.served.objects
        if (answer := self.served.dialect.put(self)) is not None:
            return answer
        if self.headers.get("If-None-Match") == "*" and self.key in objects:
            return refusal(412, "PreconditionFailed")
        wanted = self.headers.get("If-Match")
        if wanted is not None and (self.key not in objects or wanted != self._tag(self.key)):
            return refusal(412, "PreconditionFailed")
        objects[self.key] = self.body
        self.send(200, "", ETag=self._tag(self.key))
        return None

    def _delete(self) -> Answer | None:
        if (answer := self.served.dialect.one(self.key)) is not None:
            return answer
        if self.served.objects.pop(self.key, None) is None and self.served.dialect.missing_is_an_error:
            return refusal(404, "NoSuchKey")
        return 204, ""

    def _post(self) -> Answer | None:
        keys = [node.text or "" for node in ET.fromstring(self.body).iter() if node.tag.rpartition("}")[2] == "Key"]
        if self.served.dialect.many is not None:
            return self.served.dialect.many(keys)
        for key in keys:
            self.served.objects.pop(key, None)
        rows = "".join(f"<Deleted><Key>{escape(key)}</Key></Deleted>" for key in keys)
        return 200, f"<DeleteResult>{rows}</DeleteResult>"

    def _get(self) -> Answer | None:
        if "versioning" in self.words:
            return 200, "<VersioningConfiguration/>"
        if not self.key:
            return self._list()
        if self.key not in self.served.objects:
            return refusal(404, "NoSuchKey")
        self.send(200, self.served.objects[self.key], ETag=self._tag(self.key))
        return None

    def _list(self) -> Answer:
        prefix, delimiter = self.words.get("prefix", ""), self.words.get("delimiter", "")
        after = self.words.get("continuation-token", "")
        matching = [key for key in sorted(self.served.objects) if key.startswith(prefix)]
        folders = {prefix + key[len(prefix) :].partition("/")[0] + "/" for key in matching if "/" in key[len(prefix) :]}
        if delimiter:
            matching = [key for key in matching if "/" not in key[len(prefix) :]]
        names = self.served.dialect.listing(sorted({*matching, *(folders if delimiter else ())}))
        names = [name for name in names if name > after] if after else names
        page, more = names[:PAGE], len(names) > PAGE
        rows = "".join(
            f"<CommonPrefixes><Prefix>{escape(name)}</Prefix></CommonPrefixes>"
            if delimiter and name.endswith("/")
            else f"<Contents><Key>{escape(name)}</Key><Size>{len(self.served.objects[name])}</Size>"
            f"<ETag>{self._tag(name)}</ETag><LastModified>{self.served.times[name]}</LastModified></Contents>"
            for name in page
        )
        token = f"<NextContinuationToken>{escape(page[-1])}</NextContinuationToken>" if more else ""
        return 200, (
            f"<ListBucketResult><Name>backups</Name><IsTruncated>{str(more).lower()}</IsTruncated>{token}{rows}"
            "</ListBucketResult>"
        )


@contextlib.contextmanager
def dialect_server(folder: Path, dialect: Dialect | None = None) -> Iterator[DialectServer]:
    """Run a server for the block, with one empty bucket `backups` and a credentials file in the folder."""
    served = DialectServer(dialect or Dialect(), folder)
    handler = type("Handler", (DialectRequest,), {"served": served})
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    served.port = server.server_port
    served.renew("first")
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield served
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
