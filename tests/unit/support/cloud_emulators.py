"""Servers of Azure Blob Storage (Azurite) and Google Cloud Storage, with the standard library alone."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import hmac
import http.client
import http.server
import os
import select
import socket
import subprocess
import threading
import urllib.parse
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import IO
from xml.sax.saxutils import escape

ACCOUNT = "devstoreaccount1"
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
"""The public key of the account that every Azurite has."""
BUCKET = "backups"


def start_azurite(program: str) -> tuple[subprocess.Popen[bytes], int]:
    """Start Azurite, whose blobs are in memory. Return its process, and its port on 127.0.0.1."""
    port = _free_port()
    words = ("--blobPort", str(port), "--inMemoryPersistence", "--disableTelemetry", "--skipApiVersionCheck")
    return _start(program, ("--silent", *words), b"successfully listens"), port


def start_fake_gcs_server(program: str) -> tuple[subprocess.Popen[bytes], int]:
    """Start fake-gcs-server, whose objects are in memory. Return its process, and its port on 127.0.0.1."""
    port = _free_port()
    here = f"127.0.0.1:{port}"
    words = ("-scheme", "http", "-backend", "memory", "-host", "127.0.0.1", "-port", str(port), "-log-level", "info")
    return _start(program, (*words, "-public-host", here, "-external-url", f"http://{here}"), b"server started"), port


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])


def _start(program: str, words: tuple[str, ...], ready: bytes) -> subprocess.Popen[bytes]:
    """Start a server, and return when its output contains `ready`."""
    process = subprocess.Popen((program, *words), stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert process.stdout is not None
    said = b""
    while ready not in said:
        readable, _, _ = select.select([process.stdout], [], [], 60)
        more = os.read(process.stdout.fileno(), 4096) if readable else b""
        assert more, said
        said += more
    threading.Thread(target=_drain, args=(process.stdout,), daemon=True).start()
    return process


def _drain(output: IO[bytes]) -> None:
    while output.read(1 << 16):
        pass


def create_container(port: int, name: str) -> None:
    path, date = f"/{ACCOUNT}/{name}", f"{datetime.now(UTC):%a, %d %b %Y %H:%M:%S GMT}"
    text = "PUT" + "\n" * 12 + f"x-ms-date:{date}\nx-ms-version:2023-11-03\n/{ACCOUNT}{path}\nrestype:container"
    signature = base64.b64encode(hmac.digest(base64.b64decode(KEY), text.encode(), hashlib.sha256)).decode()
    headers = {"x-ms-date": date, "x-ms-version": "2023-11-03", "Authorization": f"SharedKey {ACCOUNT}:{signature}"}
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=60)) as connection:
        connection.request("PUT", f"{path}?restype=container", headers=headers)
        assert connection.getresponse().status == 201


def create_bucket(port: int, name: str) -> None:
    """Create a bucket by the JSON API of Google."""
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=60)) as connection:
        body = f'{{"name": "{name}"}}'
        connection.request("POST", "/storage/v1/b?project=p", body, {"Content-Type": "application/json"})
        assert connection.getresponse().status == 200


def shared_access_signature(container: str, until: datetime) -> str:
    """Return a signature that allows all requests of a repository in the container until this time (UTC)."""
    version, expiry, rights = "2020-12-06", f"{until:%Y-%m-%dT%H:%M:%SZ}", "rcwdl"
    fields = (rights, "", expiry, f"/blob/{ACCOUNT}/{container}", "", "", "", version, "c", *[""] * 7)
    signature = base64.b64encode(
        hmac.digest(base64.b64decode(KEY), "\n".join(fields).encode(), hashlib.sha256)
    ).decode()
    return urllib.parse.urlencode({"sv": version, "sp": rights, "se": expiry, "sr": "c", "sig": signature})


@dataclass
class GoogleServer:
    """A server with the requests of Google's XML API that the library sends, as their documentation describes them.

    `refuse` answers a request with an error before the server does it: its HTTP status and a code, or None.
    """

    objects: dict[str, tuple[int, bytes, datetime]] = field(default_factory=dict)
    generation: int = 1764417600000000
    requests: list[str] = field(default_factory=list)
    refuse: Callable[[GoogleRequest], tuple[int, str] | None] = lambda request: None
    ignores_conditions: bool = False
    page: int = 10
    lock: threading.Lock = field(default_factory=threading.Lock)


class GoogleRequest(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    served: GoogleServer

    def log_message(self, *_: object) -> None:
        """Print nothing."""

    def _run(self) -> None:
        self.body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        url = urllib.parse.urlsplit(self.path)
        bucket, _, self.key = urllib.parse.unquote(url.path).removeprefix("/").partition("/")
        self.words = dict(urllib.parse.parse_qsl(url.query, keep_blank_values=True))
        with self.served.lock:
            self.served.requests.append(f"{self.command} {self.path}")
            if bucket != BUCKET:
                self.fail(404, "NoSuchBucket")
            elif (refusal := self.served.refuse(self)) is not None:
                self.fail(*refusal)
            elif self.command == "PUT":
                self._put()
            elif not self.key:
                self._list()
            elif self.key not in self.served.objects:
                self.fail(404, "NoSuchKey")
            elif self.command == "DELETE":
                del self.served.objects[self.key]
                self.send(204, b"")
            else:
                self.send(200, self.served.objects[self.key][1], **self._head())

    do_GET = do_PUT = do_HEAD = do_DELETE = _run  # noqa: N815 - the library names them

    def fail(self, status: int, code: str) -> None:
        self.send(status, f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>no.</Message></Error>".encode())

    def send(self, status: int, body: bytes, **headers: str) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            if status != 204 or name != "Content-Length":
                self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _head(self) -> dict[str, str]:
        generation, body, when = self.served.objects[self.key]
        tag = hashlib.md5(body, usedforsecurity=False).hexdigest()
        modified = f"{when:%a, %d %b %Y %H:%M:%S GMT}"
        return {"ETag": f'"{tag}"', "x_goog_generation": str(generation), "Last_Modified": modified}

    def _put(self) -> None:
        condition = self.headers.get("x-goog-if-generation-match")
        if (
            condition is not None
            and not self.served.ignores_conditions
            and int(condition) != self.served.objects.get(self.key, (0,))[0]
        ):
            self.fail(412, "PreconditionFailed")
            return
        self.served.generation += 1
        self.served.objects[self.key] = (self.served.generation, self.body, datetime.now(UTC))
        self.send(200, b"", **self._head())

    def _list(self) -> None:
        prefix, delimiter = self.words.get("prefix", ""), self.words.get("delimiter", "")
        after = self.words.get("continuation-token", self.words.get("start-after", ""))
        items: dict[str, str] = {}
        for key in sorted(self.served.objects):
            rest = key.removeprefix(prefix)
            if not key.startswith(prefix):
                continue
            if delimiter and delimiter in rest:
                folder = prefix + rest.partition(delimiter)[0] + delimiter
                items[folder] = f"<CommonPrefixes><Prefix>{escape(folder)}</Prefix></CommonPrefixes>"
            else:
                _, body, when = self.served.objects[key]
                items[key] = (
                    f"<Contents><Key>{escape(key)}</Key><LastModified>{when:%FT%T.%fZ}</LastModified>"
                    f'<ETag>"{hashlib.md5(body, usedforsecurity=False).hexdigest()}"</ETag>'
                    f"<Size>{len(body)}</Size></Contents>"
                )
        names = [name for name in items if name > after]
        page, rest_of = names[: self.served.page], names[self.served.page :]
        token = f"<NextContinuationToken>{escape(page[-1])}</NextContinuationToken>" if rest_of else ""
        listed = "".join(items[name] for name in page)
        truncated = "true" if rest_of else "false"
        self.send(
            200,
            f"<?xml version='1.0'?><ListBucketResult><IsTruncated>{truncated}</IsTruncated>{token}{listed}"
            "</ListBucketResult>".encode(),
        )


@contextlib.contextmanager
def running_google_server() -> Iterator[tuple[GoogleServer, int]]:
    """A running server with an empty bucket, and its port on 127.0.0.1."""
    served = GoogleServer()
    handler = type("Request", (GoogleRequest,), {"served": served})
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield served, server.server_port
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
