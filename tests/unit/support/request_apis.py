"""Comments on GitHub and GitLab requests, and clones of `zsnapdb serve`, according to their documentation.

docs.github.com, "REST API endpoints for issue comments"; docs.gitlab.com, "Notes API" and "Users API".
"""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

GITHUB, GITLAB, CLONES, JOB = "ghs_secretsecret", "glpat-secretsecret", "id.token.secret", "job-secretsecret"
SECRETS = (GITHUB, GITLAB, CLONES, JOB)


@dataclass
class RequestApis:
    """The state of the three services: the comments of one request by id, the clones, and the received requests."""

    root: str
    comments: dict[int, dict[str, Any]] = field(default_factory=dict)
    clones: set[str] = field(default_factory=set)
    asked: list[str] = field(default_factory=list)
    answers: dict[str, tuple[int, object]] = field(default_factory=dict)
    """Answers that replace those of a method; None: an error that shows the token."""

    def say(self, author: str, body: str) -> int:
        number = 1000 + len(self.comments)
        self.comments[number] = {"id": number, "body": body, "user": {"login": author}, "author": {"id": author}}
        return number

    def bodies(self, author: str) -> list[str]:
        return [one["body"] for one in self.comments.values() if one["user"]["login"] == author]

    def answer(self, method: str, target: str, headers: Any, body: Any) -> tuple[int, object]:
        address = urlsplit(target)
        self.asked.append(f"{method} {address.path}")
        if method in self.answers:
            status, answer = self.answers[method]
            # A service may echo the request in an error.
            echo = f"no, {headers['Authorization']}{headers['PRIVATE-TOKEN']}\x1b[2J"
            return status, {"message": echo} if answer is None else answer
        path, query = address.path, parse_qs(address.query)
        if path == "/id-token":
            assert query["audience"] == [self.root]
            return (200, {"value": CLONES}) if headers["Authorization"] == f"Bearer {JOB}" else (401, {})
        if path.startswith("/api/v1/clones/"):
            return self._clone(method, path.rpartition("/")[2], headers)
        if path.startswith("/gitlab"):
            return self._gitlab(method, path.removeprefix("/gitlab"), query, headers, body)
        return self._github(method, path, query, headers, body)

    def _clone(self, method: str, name: str, headers: Any) -> tuple[int, object]:
        if method != "DELETE" or headers["Authorization"] != f"Bearer {CLONES}":
            return 401, {"code": "unauthorized", "detail": "no such token"}
        if name not in self.clones:
            return 404, {"code": "unknown-name", "detail": f"there is no clone {name}"}
        self.clones.remove(name)
        return 200, {"name": name}

    def _github(self, method: str, path: str, query: Any, headers: Any, body: Any) -> tuple[int, object]:
        if headers["Authorization"] != f"Bearer {GITHUB}" or headers["Accept"] != "application/vnd.github+json":
            return 401, {"message": "Bad credentials"}
        issues = "/repos/shop/web/issues"
        if path == f"{issues}/7/comments":
            return self._listed_or_made(method, query, body, "github-actions[bot]")
        return self._changed(method, "PATCH", path.removeprefix(f"{issues}/comments/"), body)

    def _gitlab(self, method: str, path: str, query: Any, headers: Any, body: Any) -> tuple[int, object]:
        if headers["PRIVATE-TOKEN"] != GITLAB:
            return 401, {"message": "401 Unauthorized"}
        notes = "/projects/42/merge_requests/7/notes"
        if (method, path) == ("GET", "/user"):
            return 200, {"id": "project_42_bot"}
        if path == notes:
            return self._listed_or_made(method, query, body, "project_42_bot")
        return self._changed(method, "PUT", path.removeprefix(f"{notes}/"), body)

    def _listed_or_made(self, method: str, query: Any, body: Any, author: str) -> tuple[int, object]:
        if method == "POST":
            return 201, self.comments[self.say(author, body["body"])]
        size, page = int(query["per_page"][0]), int(query["page"][0])
        assert size <= 100, "the services give no more at once"
        return 200, list(self.comments.values())[size * (page - 1) : size * page]

    def _changed(self, method: str, verb: str, number: str, body: Any) -> tuple[int, object]:
        if method != verb or int(number) not in self.comments:
            return 404, {"message": "Not Found"}
        self.comments[int(number)]["body"] = body["body"]
        return 200, self.comments[int(number)]


@contextlib.contextmanager
def request_apis() -> Iterator[RequestApis]:
    """Serve them on loopback during the block."""

    class Handler(BaseHTTPRequestHandler):
        def _serve(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            body = json.loads(self.rfile.read(length)) if length else None
            status, answer = apis.answer(self.command, self.path, self.headers, body)
            text = json.dumps(answer).encode()
            self.send_response(status)
            if 300 <= status < 400:
                self.send_header("Location", f"{apis.root}/elsewhere")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        do_GET = do_POST = do_PATCH = do_PUT = do_DELETE = _serve  # noqa: N815 - the base class calls them so

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        apis = RequestApis(f"http://127.0.0.1:{server.server_port}")
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield apis
        finally:
            server.shutdown()
            thread.join()
