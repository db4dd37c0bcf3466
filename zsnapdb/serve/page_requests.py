"""A browser's untrusted request to a page: its cookie, its form, and a check that a page of this site sent it."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeVar
from urllib.parse import parse_qsl, urlencode

from pydantic import BaseModel, ValidationError

from zsnapdb.base.errors import NotAllowedError, UsageError, ZsnapdbError
from zsnapdb.serve.helper_messages import MOST_BYTES, FailureAnswer, explain_refusal, failure_of

FORM = "application/x-www-form-urlencoded"
CSRF_FIELD = "csrf"
NEXT_FIELD = "next"
"""The field of a form or query with the page to show after the login."""
_OWN_PAGE = re.compile(r"/[A-Za-z0-9][A-Za-z0-9._~/?&=%+:@,-]{0,499}")
_MOST_FIELDS = 20
COOKIE = "zsnapdb_session"
_ID = re.compile(r"[A-Za-z0-9_-]{20,100}")
_LOOPBACK = ("127.0.0.1", "::1")
_TOO_LARGE, _WRONG_TYPE = 413, 415
Model = TypeVar("Model", bound=BaseModel)


class RefusedPage(Exception):
    """A refusal of a request, with the failure to show. If the failure's code has no HTTP status, `status` is used."""

    def __init__(self, failure: FailureAnswer, status: int | None = None) -> None:
        super().__init__(failure.message)
        self.failure = failure
        self.status = status

    @classmethod
    def because(cls, error: ZsnapdbError, status: int | None = None) -> RefusedPage:
        return cls(failure_of(error), status)


@dataclass(frozen=True)
class PageRequest:
    """The parts of a request that pages use. Header names are in lower case. `address` is the client's address.

    `target` is the path and the query of a GET request; "" for other requests.
    """

    is_https: bool
    headers: Mapping[str, str]
    path: Mapping[str, str] = field(default_factory=dict)
    query: Mapping[str, str] = field(default_factory=dict)
    form: Mapping[str, str] = field(default_factory=dict)
    address: str = ""
    target: str = ""

    @property
    def page_after_login(self) -> str:
        """The page that the person requested before the login."""
        return own_page(self.form.get(NEXT_FIELD) or self.query.get(NEXT_FIELD) or self.target)

    @property
    def session_id(self) -> str:
        """The session id in the browser's cookie; "" if there is none. The id may be invalid."""
        return self.cookie(COOKIE, is_https=self.is_https)

    def cookie(self, base: str, *, is_https: bool) -> str:
        """Return the id in the cookie with this name; "" if the browser sends none."""
        wanted = cookie_name(base, is_https)
        for pair in self.headers.get("cookie", "").split(";"):
            name, _, value = pair.strip().partition("=")
            if name == wanted and _ID.fullmatch(value):
                return value
        return ""


def own_page(text: str) -> str:
    """Return the text if it is the address of a page of this site without the site, and "/" otherwise.

    A link on another site can contain any text. So no text with a host, such as `//example.org`, is accepted.
    """
    return text if _OWN_PAGE.fullmatch(text) and not text.startswith("/login") else "/"


def login_address(page: str) -> str:
    """Return the address of the login that then shows this page."""
    return "/login" if page == "/" else f"/login?{urlencode({NEXT_FIELD: page})}"


def cookie_name(base: str, is_https: bool) -> str:
    """Return the full name of a cookie.

    Over HTTPS, the name has the prefix `__Host-`. A browser accepts such a cookie only over HTTPS and only from this
    host.

    Source: RFC 6265bis, 4.1.3.2.
    """
    return f"__Host-{base}" if is_https else base


def set_cookie(value: str, seconds: int, *, is_https: bool, base: str = COOKIE, same_site: str = "Strict") -> str:
    """Return the header that stores an id in the browser, such as a session id, for `seconds`; 0 deletes it."""
    secure = "; Secure" if is_https else ""
    name = cookie_name(base, is_https)
    return f"{name}={value}; Path=/; Max-Age={seconds}; HttpOnly; SameSite={same_site}{secure}"


def hashed(given: str) -> str:
    """Return the digest that this process stores instead of an id, so that only the browser has the id."""
    return hashlib.sha256(given.encode(errors="replace")).hexdigest()


def came_by_https(scheme: str, headers: Mapping[str, str]) -> bool:
    """Return whether the browser uses TLS, either to this process or to a proxy.

    If a client forges the header, the only effect is that its own cookie is marked `Secure`.
    """
    return scheme == "https" or headers.get("x-forwarded-proto", "").strip().lower() == "https"


def address_of(peer: str, headers: Mapping[str, str]) -> str:
    """Return the client's address: the peer, or the address that a proxy on this host reports.

    A proxy appends the address that it sees to the header. Everything before that address may come from the client.
    """
    said = headers.get("x-forwarded-for", "").rpartition(",")[2].strip()
    return said[:100] if said and peer in _LOOPBACK else peer


def require_same_origin(is_https: bool, headers: Mapping[str, str]) -> None:
    """Raise RefusedPage unless a page of exactly this site sent the form.

    Browsers send Sec-Fetch-Site over https and on localhost (Fetch Metadata, W3C), and Origin over http to other hosts.
    A client that sends neither header is not a current browser.
    """
    site = headers.get("sec-fetch-site")
    if site == "same-origin":
        return
    own = f"{'https' if is_https else 'http'}://{headers.get('host', '')}"
    if site is None and headers.get("origin") == own:
        return
    raise RefusedPage.because(
        NotAllowedError(
            "the form was not sent by a page of this site",
            hint="open the page again and send its form; the address must be https, or 127.0.0.1",
        )
    )


def form_of(content_type: str, body: bytes) -> dict[str, str]:
    """Return the fields of a form. Raises RefusedPage if the form is too long, invalid, or has another content type."""
    if len(body) > MOST_BYTES:
        raise _refusal(f"the form is longer than {MOST_BYTES} bytes", "send less", _TOO_LARGE)
    if content_type.partition(";")[0].strip().lower() != FORM:
        raise _refusal("the request body is not a valid form of this page", f"send it as {FORM}", _WRONG_TYPE)
    try:
        pairs = parse_qsl(
            body.decode("ascii"),
            keep_blank_values=True,
            strict_parsing=bool(body),
            errors="strict",
            max_num_fields=_MOST_FIELDS,
        )
    except ValueError:
        raise _refusal("the request body is not a form", "send the form of the page as it is") from None
    if len(dict(pairs)) != len(pairs):
        raise _refusal("a field of the form occurs twice", "send the form of the page as it is")
    return dict(pairs)


def parsed(model: type[Model], fields: Mapping[str, object]) -> Model:
    """Return the fields as an instance of the model. Invalid fields raise RefusedPage without their values."""
    try:
        return model.model_validate(dict(fields))
    except ValidationError as error:
        raise _refusal(f"the form is not valid: {explain_refusal(error)}", "correct it and send it again") from None


def filled(form: Mapping[str, str]) -> dict[str, str]:
    """Return the non-empty fields of a form, without surrounding spaces and without `csrf`."""
    return {name: text.strip() for name, text in form.items() if name != CSRF_FIELD and text.strip()}


def _refusal(message: str, hint: str, status: int | None = None) -> RefusedPage:
    return RefusedPage.because(UsageError(message, hint=hint), status)
