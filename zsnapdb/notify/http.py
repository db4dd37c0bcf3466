"""Posts to a service. Its address may be a secret, so no error names more of it than the host."""

from __future__ import annotations

import http.client
import urllib.error
import urllib.request
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from zsnapdb.base.deadline import within
from zsnapdb.base.timed_http import TimedHttpConnection, TimedHttpsConnection
from zsnapdb.notify.failure import DeliveryFailure

_AGAIN = (408, 425, 429)
"""Answers after which the same request may succeed later, beside those from 500 on."""


class _Http(urllib.request.HTTPHandler):
    def http_open(self, request: urllib.request.Request) -> http.client.HTTPResponse:
        """Open a timed connection."""
        return self.do_open(TimedHttpConnection, request)


class _Https(urllib.request.HTTPSHandler):
    def https_open(self, request: urllib.request.Request) -> http.client.HTTPResponse:
        """Open a timed connection."""
        return self.do_open(TimedHttpsConnection, request)


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        """Follow no redirect: a signed message goes to nobody else."""


def post(url: str, body: bytes, headers: Mapping[str, str], seconds: float) -> None:
    """Post the body, and return after an answer of success (2xx). DeliveryFailure otherwise.

    It takes `seconds` at most, from the connection to the headers of the answer. The answer's body is not read.
    """
    host = urlsplit(url).hostname
    if not url.startswith(("http://", "https://")):
        raise DeliveryFailure("the address is none of http or https", may_work_later=False)
    request = urllib.request.Request(url, data=body, headers=dict(headers), method="POST")  # noqa: S310 - see above
    opener = urllib.request.build_opener(_Http, _Https, _NoRedirects)
    try:
        with within(seconds), opener.open(request, timeout=seconds):
            return
    except urllib.error.HTTPError as error:
        error.close()
        may_work = error.code >= 500 or error.code in _AGAIN
        raise DeliveryFailure(f"{host} answered {error.code}", may_work_later=may_work) from None
    except urllib.error.URLError as error:
        raise DeliveryFailure(f"{host}: {error.reason}", may_work_later=True) from None
    except (OSError, http.client.HTTPException) as error:
        raise DeliveryFailure(f"{host}: {error or type(error).__name__}", may_work_later=True) from None
    except ValueError:
        raise DeliveryFailure(f"{host}: the address cannot be used", may_work_later=False) from None
