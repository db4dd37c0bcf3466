"""A browser without scripts: it keeps cookies and sends the forms of pages. Tests in a guest use it too."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html.parser import HTMLParser
from typing import Any

import httpx

_POLL_SECONDS = 0.3
FORM = "application/x-www-form-urlencoded"


@dataclass
class PageForm:
    """A form of a page: its target, and its initial values."""

    action: str
    method: str
    fields: dict[str, str] = field(default_factory=dict)


@dataclass
class Element:
    """An element of a page, from its start tag."""

    tag: str
    attributes: Mapping[str, str]


class Page(HTMLParser):
    """The contents of a page."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[Element] = []
        self.forms: list[PageForm] = []
        self.text = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: Sequence[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.elements.append(Element(tag, given))
        if tag == "form":
            self.forms.append(PageForm(given.get("action", ""), given.get("method", "get")))
        if tag == "input" and self.forms and given.get("type") == "hidden":
            self.forms[-1].fields[given["name"]] = given.get("value", "")

    def handle_data(self, data: str) -> None:
        self.text += data

    def form(self, action: str) -> PageForm:
        """Return the form with this action."""
        return next(one for one in self.forms if one.action == action)

    def all(self, tag: str) -> list[Mapping[str, str]]:
        """Return the attributes of each element with this tag."""
        return [one.attributes for one in self.elements if one.tag == tag]


class PageBrowser:
    """A user's browser for the application `site`, or for the one at the address `base`."""

    def __init__(self, site: Any = None, base: str = "http://127.0.0.1:9808") -> None:
        self.site, self.base = site, base
        self.cookies = httpx.Cookies()

    def another(self) -> PageBrowser:
        """Return another browser for the same site."""
        return PageBrowser(self.site, self.base)

    def send(self, method: str, path: str, headers: Mapping[str, str | bytes] | None = None, **options: Any) -> Any:
        """Send one request unchanged."""

        async def sent() -> Any:
            options_of_client: dict[str, Any] = {"base_url": self.base, "cookies": self.cookies, "timeout": 300}
            async with httpx.AsyncClient(transport=self._transport(), **options_of_client) as client:
                answer = await client.request(method, path, headers=dict[Any, Any](headers or {}), **options)
                self.cookies = client.cookies
                return answer

        return asyncio.run(sent())

    def _transport(self) -> Any:
        # Plain HTTP needs no certificates, and loading them takes longer than a page.
        return (
            httpx.ASGITransport(self.site, raise_app_exceptions=False)
            if self.site
            else httpx.AsyncHTTPTransport(verify=False)
        )

    def get(self, path: str) -> Any:
        return self.send("GET", path)

    def page(self, path: str) -> Page:
        answer = self.get(path)
        assert answer.status_code == 200, (path, answer.status_code, answer.text)
        return Page(answer.text)

    def post(self, path: str, fields: Mapping[str, str]) -> Any:
        """Send a form as a page of the site does."""
        return self.send("POST", path, {"Sec-Fetch-Site": "same-origin", "Content-Type": FORM}, data=dict(fields))

    def submit(self, page: str, action: str, **written: str) -> Any:
        """Send the form of a page with these values."""
        return self.post(action, {**self.page(page).form(action).fields, **written})

    def log_in(self, token: str) -> Any:
        """Send the form that asks for a token."""
        return self.submit("/login", "/login", token=token)

    def to_its_end(self, begun: Any) -> Any:
        """Wait for the end of a started operation and return its page."""
        assert begun.status_code == 303, begun.text
        deadline = time.monotonic() + 300
        while True:
            answer = self.get(begun.headers["Location"])
            # A page of an operation in progress has a link to itself.
            if begun.headers["Location"] not in {one.get("href") for one in Page(answer.text).all("a")}:
                return answer
            assert time.monotonic() < deadline, answer.text
            time.sleep(_POLL_SECONDS)

    @property
    def session(self) -> str:
        """The session cookie's value; "" if there is none."""
        return next((cookie.value or "" for cookie in self.cookies.jar), "")
