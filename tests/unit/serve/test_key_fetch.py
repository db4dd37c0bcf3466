"""The keys of an issuer by HTTPS: from a real server, with an authority of its own, and by a child without rights."""

from __future__ import annotations

import json
import os
import pwd
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.unit.support import certificates
from tests.unit.support.command_line import ENVIRONMENT
from tests.unit.support.https_issuer import HttpsIssuer, https_issuer
from tests.unit.support.issuers import AUDIENCE, EC, RSA, RULES, jwk
from zsnapdb.agent.children import start_detached
from zsnapdb.base.errors import ConfigError, UnreachableError
from zsnapdb.config.serve import IssuerSettings
from zsnapdb.serve.command_processes import ChildRunner
from zsnapdb.serve.issuer_keys import FetchedKeys, fetch_with
from zsnapdb.serve.issuer_requests import DISCOVERY, HttpsRequest, UnprivilegedHttps, fetched, https_ask, tls_context

KEYS = json.dumps({"keys": [jwk(RSA, "rsa"), jwk(EC, "ec")]}).encode()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[HttpsIssuer]:
    with https_issuer(tmp_path) as made:
        made.page("/keys", KEYS)
        made.page(DISCOVERY, json.dumps({"issuer": made.url, "jwks_uri": f"{made.url}/keys"}).encode())
        yield made


def settings(server: HttpsIssuer, **changed: object) -> IssuerSettings:
    fields = {"issuer": server.url, "audience": AUDIENCE, "allow": RULES, "tls_ca": server.files.ca, **changed}
    return IssuerSettings.model_validate(fields)


def fetch(of: IssuerSettings) -> FetchedKeys:
    """Fetch the keys in this process."""
    context = tls_context(of)
    return fetched(of, lambda request: https_ask(request, context))


def failure(of: IssuerSettings) -> str:
    with pytest.raises(UnreachableError) as caught:
        fetch(of)
    assert caught.value.hint
    return caught.value.message


def test_an_issuer_says_where_its_keys_are(server: HttpsIssuer) -> None:
    found = fetch(settings(server))
    assert (found.jwks_url, [key.kid for key in found.keys]) == (f"{server.url}/keys", ["rsa", "ec"])
    assert server.asked == [DISCOVERY, "/keys"]
    server.asked.clear()
    assert fetch(settings(server, jwks_url=f"{server.url}/keys")).keys == found.keys
    assert server.asked == ["/keys"]


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ({"issuer": "https://other.example.org", "jwks_uri": "URL/keys"}, "to another issuer"),
        ({"issuer": "URL/", "jwks_uri": "URL/keys"}, "to another issuer"),
        ({"issuer": "URL"}, "not an https address"),
        ({"issuer": "URL", "jwks_uri": "http://localhost/keys"}, "not an https address"),
        ({"issuer": "URL", "jwks_uri": "file:///etc/passwd"}, "not an https address"),
        ({"issuer": "URL", "jwks_uri": "URL/nothing"}, "answered 404"),
        ({"issuer": "URL", "jwks_uri": "https://localhost:99999/keys"}, "https://localhost:99999/keys"),
    ],
)
def test_what_an_issuer_says_wrongly_is_not_believed(server: HttpsIssuer, said: Mapping[str, str], why: str) -> None:
    page = {name: value.replace("URL", server.url) for name, value in said.items()}
    server.page(DISCOVERY, json.dumps(page).encode())
    assert why in failure(settings(server))


def test_bodies_that_are_no_keys_are_refused(server: HttpsIssuer) -> None:
    for body in (b"", b"[]", b'{"keys": []}', b'{"keys": [{"kty": "oct", "k": "AA", "kid": "x"}]}'):
        server.page("/keys", body)
        assert "/keys" in failure(settings(server))
    server.page("/keys", b'{"keys": [' + b" " * 300_000)
    assert "more than 262144 bytes" in failure(settings(server))
    server.page("/keys", b"", 302, Location="/elsewhere")
    server.page("/elsewhere", KEYS)
    assert "answered 302" in failure(settings(server))
    assert "/elsewhere" not in server.asked


def test_a_certificate_must_be_of_the_authority_and_name_the_host(server: HttpsIssuer, tmp_path: Path) -> None:
    other = certificates.make(tmp_path / "other", "localhost")
    for wrong in (settings(server, tls_ca=other.ca), settings(server, tls_ca=None)):
        assert "certificate verify failed" in failure(wrong).lower()
    with https_issuer(tmp_path / "named", "issuer.example.org") as named:
        assert "certificate" in failure(settings(named))
        assert named.asked == []
    assert server.asked == []
    with pytest.raises(ConfigError):
        tls_context(settings(server, tls_ca=server.files.key))


def configured(server: HttpsIssuer, folder: Path, account: str = "nobody") -> Path:
    """Write a configuration that only root reads, with this issuer."""
    file = folder / "zsnapdb.toml"
    file.write_text(
        f"""
[repository.here]
url = "file://{folder}/backups"
[instance.main]
volumes = {{ data = "none/data" }}
repository = "here"
[serve]
fetch_account = "{account}"
[serve.issuer.here]
issuer = "{server.url}"
audience = "{AUDIENCE}"
tls_ca = "{server.files.ca}"
allow = [{{ claims = {{ repository = "shop/web" }}, subject = "ci:shop/web", role = "developer" }}]
"""
    )
    file.chmod(0o600)
    server.files.ca.chmod(0o600)
    return file


def test_the_helper_fetches_keys_by_a_command(server: HttpsIssuer, tmp_path: Path) -> None:
    environment = {**ENVIRONMENT, "ZSNAPDB_CONFIG": str(configured(server, tmp_path))}
    run = fetch_with(ChildRunner(start_detached, environment))
    assert run("here") == fetch(settings(server))
    with pytest.raises(UnreachableError, match="there is no issuer"):
        run("nowhere")
    server.page("/keys", b"{}")
    with pytest.raises(UnreachableError, match="no list"):
        run("here")


PROBE = """
import os, sys
from zsnapdb.serve import issuer_requests

def look(request, context):
    kinds = [os.getresuid(), os.getresgid(), os.getgroups()]
    try:
        open(sys.argv[1]).close()
        kinds.append("reads")
    except PermissionError:
        kinds.append("denied")
    try:
        os.setuid(0)
        kinds.append("root")
    except PermissionError:
        kinds.append("never root")
    return issuer_requests.HttpsAnswer(request.url, 200, repr(kinds).encode())

issuer_requests.https_ask = look
os.setgroups([4, 27])
ask = issuer_requests.UnprivilegedHttps(None, sys.argv[2])
print(ask(issuer_requests.HttpsRequest("https://x")).good().decode())
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root has rights to give up")
def test_who_speaks_to_the_issuer_has_given_up_root(server: HttpsIssuer, tmp_path: Path) -> None:
    nobody = pwd.getpwnam("nobody")
    file = configured(server, tmp_path)
    done = subprocess.run(
        [sys.executable, "-c", PROBE, str(file), "nobody"], capture_output=True, text=True, env=ENVIRONMENT, check=True
    )
    uid, gid = (nobody.pw_uid,) * 3, (nobody.pw_gid,) * 3
    assert done.stdout.strip() == repr([uid, gid, [], "denied", "never root"])
    for account in ("root", "no-such-account"):
        with pytest.raises(ConfigError):
            UnprivilegedHttps(tls_context(settings(server)), account)(HttpsRequest(server.url))


SLOW = """
import ssl, sys, time
from zsnapdb.base.errors import UnreachableError
from zsnapdb.serve import issuer_requests
context = ssl.create_default_context(cafile=sys.argv[2])
began = time.monotonic()
try:
    ask = issuer_requests.UnprivilegedHttps(context, "nobody", seconds=1.5)
    ask(issuer_requests.HttpsRequest(sys.argv[1]))
except UnreachableError as error:
    print(error.message)
print(time.monotonic() - began < 10)
"""


def test_an_issuer_that_sends_a_byte_now_and_then_is_given_up(server: HttpsIssuer) -> None:
    server.pause = 0.2
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", SLOW, f"{server.url}/keys", str(server.files.ca)],
        capture_output=True,
        text=True,
        env=ENVIRONMENT,
        check=True,
    )
    assert done.stdout.splitlines() == [f"{server.url}/keys: it took longer than 1.5 s", "True"]
    assert time.monotonic() - began < 30
    server.pause = 0.0
