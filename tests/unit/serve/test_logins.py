"""Log-in to the page by a provider of OpenID Connect: the whole way, and what is tried with it."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
from pydantic import ValidationError

from tests.unit.support.command_line import ENVIRONMENT
from tests.unit.support.issuers import OTHER, part
from tests.unit.support.login_provider import (
    AUDIENCE,
    CLIENT,
    SITE,
    SUBJECT,
    LoginProvider,
    configuration,
    providers,
    query_of,
    with_logins,
)
from tests.unit.support.page_browser import Page, PageBrowser
from tests.unit.support.serve_host import ServeHost
from zsnapdb.agent.children import start_detached
from zsnapdb.base.errors import ConfigError, UnreachableError
from zsnapdb.config.serve import ServeSettings
from zsnapdb.serve import helper_logins
from zsnapdb.serve.browser_pages import BrowserPages
from zsnapdb.serve.command_processes import ChildRunner
from zsnapdb.serve.helper_messages import (
    CloseSessionVerb,
    KnownLogin,
    ListLoginsVerb,
    OpenSessionVerb,
    RefusedRequest,
    failure_of,
)
from zsnapdb.serve.id_tokens import IdTokenRefusal
from zsnapdb.serve.issuer_requests import DISCOVERY, CodeGrant, HttpsAnswer, HttpsRequest, exchange_with, fetched
from zsnapdb.serve.page_app import create_pages, create_site
from zsnapdb.serve.page_logins import LoginPages, PreLogins
from zsnapdb.serve.page_requests import RefusedPage, address_of
from zsnapdb.serve.page_visits import BrowserSessions
from zsnapdb.serve.roles import Role
from zsnapdb.serve.tokens import TokenKind
from zsnapdb.verbs.requests import GetSubjectVerb

VERIFIER, NONCE = "v" * 43, "n" * 43


class LoginSite:
    """A site with providers `one` and `two`, somebody's browser before it, and what the log of the helper is told."""

    def __init__(self, host: ServeHost, known: list[LoginProvider], said: list[str]) -> None:
        self.host, self.said = host, said
        self.one, self.two = known
        self.clock = 0.0
        pages = BrowserPages(host.client, lambda: host.now)
        self.browser = PageBrowser(create_pages(pages, PreLogins(lambda: self.clock)), SITE)

    def begin(self, browser: PageBrowser | None = None, provider: str = "one") -> str:
        """Return to which address at the provider the browser is sent."""
        answer = (browser or self.browser).get(f"/login/{provider}")
        assert answer.status_code == 303, answer.text
        return str(answer.headers["Location"])

    def log_in(self, browser: PageBrowser | None = None) -> Any:
        """Go the whole way by the provider `one`, and return the last answer."""
        who = browser or self.browser
        return who.get(self.one.come_back(self.begin(who)))

    def refused(self, path: str, browser: PageBrowser | None = None) -> str:
        """Go to a path, which opens no session, and return what the page says."""
        who = browser or self.browser
        before = self.sessions()
        answer = who.get(path)
        assert answer.status_code in (403, 404, 422), answer.text
        assert "session" not in answer.headers.get("Set-Cookie", "")
        assert who.get("/").headers["Location"] == "/login"
        assert self.sessions() == before
        return Page(answer.text).text

    def sessions(self) -> list[str]:
        """Return the ids of the stored sessions."""
        return [one.id for one in self.host.book.tokens() if one.kind is TokenKind.SESSION]


@pytest.fixture
def site(tmp_path: Path) -> Iterator[LoginSite]:
    host = ServeHost(tmp_path)
    with providers(host, "one", "two") as known:
        said = with_logins(host, known)
        with host.helper():
            yield LoginSite(host, known, said)


def test_somebody_logs_in_and_out(site: LoginSite) -> None:
    page = site.browser.page("/login")
    assert [one["href"] for one in page.all("a") if "button" in one.get("class", "")] == ["/login/one", "/login/two"]
    begun = site.browser.get("/login/one")
    cookie = begun.headers["Set-Cookie"]
    assert re.fullmatch(
        r"__Host-zsnapdb_login=[\w-]{43}; Path=/; Max-Age=600; HttpOnly; SameSite=Lax; Secure", cookie
    ), cookie
    asked = query_of(begun.headers["Location"])
    assert {name: asked[name] for name in ("client_id", "redirect_uri", "scope", "code_challenge_method")} == {
        "client_id": CLIENT,
        "redirect_uri": f"{SITE}/login/one/callback",
        "scope": "openid email profile",
        "code_challenge_method": "S256",
    }
    done = site.browser.get(site.one.come_back(begun.headers["Location"]))
    assert done.status_code == 200, done.text
    assert re.fullmatch(
        r"__Host-zsnapdb_session=[\w-]{43}; Path=/; Max-Age=28\d{3}; HttpOnly; SameSite=Strict; Secure",
        done.headers["Set-Cookie"],
    )
    refreshes = [one["content"] for one in Page(done.text).all("meta") if one.get("http-equiv") == "refresh"]
    assert refreshes == ["0; url=/"], "a browser sends the cookie once a page of this site leads on"
    assert f"{SUBJECT} developer" in " ".join(site.browser.page("/").text.split())
    assert site.browser.get("/login/one").headers["Location"] == "/"
    (stored,) = site.host.book.tokens()
    assert (stored.kind, stored.subject, stored.issuer) == (TokenKind.SESSION, SUBJECT, site.one.https.url)
    assert (stored.expires - stored.created).total_seconds() == 8 * 3600

    assert site.browser.submit("/", "/logout").status_code == 303
    assert site.sessions() == []
    assert site.browser.get("/").headers["Location"] == "/login"
    assert site.said == []


@pytest.mark.parametrize(("asked", "shown"), [("/clones?q=mi", "/clones?q=mi"), ("//evil.example", "/")])
def test_log_in_leads_to_the_requested_page_of_this_site(site: LoginSite, asked: str, shown: str) -> None:
    page = site.browser.page(f"/login?{urlencode({'next': asked})}")
    (begin, _) = [one["href"] for one in page.all("a") if "button" in one.get("class", "")]
    done = site.browser.get(site.one.come_back(site.browser.get(begin).headers["Location"]))
    refreshes = [one["content"] for one in Page(done.text).all("meta") if one.get("http-equiv") == "refresh"]
    assert refreshes == [f"0; url={shown}"]


def test_nothing_of_a_log_in_is_stored_or_told(site: LoginSite, capfd: pytest.CaptureFixture[str]) -> None:
    assert site.log_in().status_code == 200
    site.one.changed = {"nonce": "x" * 43}
    assert site.log_in(site.browser.another()).status_code == 403
    secret = [*site.one.sent, *(form["code"] for form in site.one.exchanges)]
    told = "".join(capfd.readouterr()) + "".join(site.said)
    for file in site.host.folder.rglob("*"):
        told += file.read_text(errors="replace") if file.is_file() else ""
    assert not [one for one in secret if one in told]


def test_a_session_ends_at_its_time_or_when_it_is_revoked(site: LoginSite) -> None:
    other = site.browser.another()
    for who in (site.browser, other):
        assert site.log_in(who).status_code == 200
    site.host.book.revoke(site.sessions()[0], site.host.now)
    assert site.browser.get("/").status_code == 401
    assert other.get("/").status_code == 200
    site.host.pass_time(8 * 3600)
    assert other.get("/").status_code == 401
    assert site.log_in().status_code == 200
    assert len(site.sessions()) == 1, "what has expired is stored no longer"


def test_a_session_ends_with_the_log_in_by_its_issuer(site: LoginSite) -> None:
    assert site.log_in().status_code == 200
    site.host.more = f'url = "{SITE}"' + site.two.section()
    assert site.browser.get("/").status_code == 401
    assert [one["href"] for one in site.browser.page("/login").all("a") if "button" in one.get("class", "")] == [
        "/login/two"
    ]
    assert "no such log-in" in site.refused("/login/one")


def test_somebody_has_ten_sessions(site: LoginSite) -> None:
    browsers = [site.browser.another() for _ in range(11)]
    for who in browsers:
        assert site.log_in(who).status_code == 200
    assert len(site.sessions()) == 10
    assert [who.get("/").status_code for who in browsers] == [401] + [200] * 10


def test_who_logs_in_by_a_token_leaves_no_session_of_before(site: LoginSite) -> None:
    assert site.log_in().status_code == 200
    token = site.host.token(SUBJECT, Role.VIEWER)
    assert site.browser.post("/login", {"token": token}).status_code == 303
    assert f"{SUBJECT} viewer" in " ".join(site.browser.page("/").text.split())
    assert site.sessions() == []


def test_strangers_learn_nothing_of_the_configuration(
    site: LoginSite, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Whoever begins a log-in and makes up a code lets the helper read the secret of the client."""
    assert site.host.logins is not None
    error = ConfigError("/etc/zsnapdb/of-a-client is open to others", hint="chmod 600 /etc/zsnapdb/of-a-client")
    for raised in (error, RefusedRequest(failure_of(error))):

        def exchange(_name: str, _grant: CodeGrant, raised: Exception = raised) -> str:
            raise raised

        monkeypatch.setattr(site.host.logins, "exchange", exchange)
        answer = site.log_in()
        assert (answer.status_code, "cannot be opened now" in answer.text) == (500, True)
        assert "of-a-client" not in answer.text
        assert "/etc/zsnapdb/of-a-client is open to others" in capfd.readouterr().err


def test_log_out_ends_no_token_that_an_administrator_made(site: LoginSite) -> None:
    token = site.host.token(SUBJECT)
    assert site.browser.log_in(token).status_code == 303
    assert site.browser.submit("/", "/logout").status_code == 303
    assert site.host.done(token, GetSubjectVerb()).document["subject"] == SUBJECT
    assert site.host.done(token, CloseSessionVerb()).document == {"closed": False}
    assert site.host.done("", CloseSessionVerb()).document == {"closed": False}


def test_another_browser_cannot_finish_a_log_in(site: LoginSite) -> None:
    """The victim's browser is sent to the answer of the attacker's log-in, so as to act as the attacker."""
    back = site.one.come_back(site.begin())
    victim = site.browser.another()
    assert "did not start this log-in" in site.refused(back, victim)
    site.begin(victim)
    assert "not the answer" in site.refused(back, victim)
    assert site.one.exchanges == []


@pytest.mark.parametrize("state", [None, "", "x", "é" * 43, "earlier"])
def test_a_state_must_be_that_of_the_log_in(site: LoginSite, state: str | None) -> None:
    earlier = query_of(site.begin())["state"]
    query = query_of(site.one.come_back(site.begin()))
    changed = {**query, "state": earlier if state == "earlier" else state}
    sent = {name: one for name, one in changed.items() if one is not None}
    assert "not the answer" in site.refused(f"/login/one/callback?{urlencode(sent)}")
    assert "did not start" in site.refused(f"/login/one/callback?{urlencode(query)}"), "it is tried once"
    assert site.one.exchanges == []


def test_a_log_in_is_finished_once(site: LoginSite) -> None:
    back = site.one.come_back(site.begin())
    who = site.browser.another()
    who.cookies.update(site.browser.cookies)
    assert site.browser.get(back).status_code == 200
    assert "did not start" in site.refused(back, who)
    assert len(site.one.exchanges) == 1


def test_a_log_in_is_finished_in_ten_minutes(site: LoginSite) -> None:
    back = site.one.come_back(site.begin())
    site.clock += 600
    assert "ten minutes" in site.refused(back)
    assert site.one.exchanges == []
    back = site.one.come_back(site.begin())
    site.clock += 599
    assert site.browser.get(back).status_code == 200


def test_a_code_of_another_log_in_is_worth_nothing(site: LoginSite) -> None:
    """The attacker puts a code that he got hold of into his own log-in."""
    for checks, why in ((True, "invalid_grant"), (False, "did not confirm a user")):
        site.one.checks_verifier = checks
        code = query_of(site.one.come_back(site.begin(site.browser.another())))["code"]
        own = query_of(site.one.come_back(site.begin()))
        assert why in site.refused(f"/login/one/callback?{urlencode({**own, 'code': code})}")
    assert site.said[-1].endswith(IdTokenRefusal.NONCE), "also if the provider checks no verifier"


def test_a_code_is_used_once(site: LoginSite) -> None:
    assert site.log_in().status_code == 200
    used = site.one.exchanges[0]
    verb = OpenSessionVerb(
        login="one", issuer=site.one.https.url, code=used["code"], verifier=used["code_verifier"], nonce=NONCE
    )
    assert "invalid_grant" in site.host.refused("", verb).message


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"nonce": "x" * 43}, IdTokenRefusal.NONCE),
        ({"nonce": None}, IdTokenRefusal.NONCE),
        ({"nonce": ["x"]}, IdTokenRefusal.NONCE),
        ({"aud": AUDIENCE}, IdTokenRefusal.AUDIENCE),
        ({"aud": "another client"}, IdTokenRefusal.AUDIENCE),
        ({"aud": [CLIENT, "another client"]}, IdTokenRefusal.PARTY),
        ({"azp": "another client"}, IdTokenRefusal.AUDIENCE),
        ({"iss": "https://issuer.example.org"}, IdTokenRefusal.ISSUER),
        ({"exp": 1}, IdTokenRefusal.EXPIRED),
        ({"iat": 1}, IdTokenRefusal.OLD),
        ({"groups": "others"}, IdTokenRefusal.RULE),
        ({"email_verified": False}, IdTokenRefusal.EMAIL),
    ],
)
def test_an_id_token_must_be_the_answer(site: LoginSite, changed: Mapping[str, object], why: IdTokenRefusal) -> None:
    site.one.changed = dict(changed)
    page = site.refused(site.one.come_back(site.begin()))
    assert "did not confirm a user" in page
    assert site.said == [f"an id token of serve.issuer.one is refused: {why}"]
    site.one.changed = {"aud": [CLIENT, "another client"], "azp": CLIENT}
    assert site.log_in().status_code == 200


def test_an_id_token_is_fresh(site: LoginSite) -> None:
    seconds = site.host.now.timestamp()
    site.one.changed = {"iat": seconds - 700, "exp": seconds + 300}
    assert "did not confirm a user" in site.refused(site.one.come_back(site.begin()))
    assert site.said[-1].endswith(IdTokenRefusal.OLD)


def test_an_id_token_must_be_signed_by_the_issuer(site: LoginSite) -> None:
    site.one.key = OTHER
    assert "did not confirm a user" in site.refused(site.one.come_back(site.begin()))
    whole = site.one.id_token(NONCE).split(".")
    no_algorithm = part({"alg": "none", "kid": "rsa"})
    for raw in (
        f"{no_algorithm}.{whole[1]}.",
        f"{no_algorithm}.{whole[1]}.{whole[2]}",
        "",
        "a.b.c",
        "x" * 9000,
        "zsnapdb_" + "A" * 43,
    ):
        site.one.raw = raw or "nothing"
        assert "did not confirm a user" in site.refused(site.one.come_back(site.begin()))
    reasons = {one.partition("refused: ")[2] for one in site.said}
    assert reasons == {IdTokenRefusal.SIGNATURE, IdTokenRefusal.ALGORITHM, IdTokenRefusal.FORM, IdTokenRefusal.HEADER}


def test_a_provider_speaks_for_itself_alone(site: LoginSite) -> None:
    """Two providers, one of which is hostile or taken over."""
    own = query_of(site.one.come_back(site.begin()))
    assert "not the answer" in site.refused(f"/login/two/callback?{urlencode(own)}")
    own = query_of(site.one.come_back(site.begin()))
    changed = {**own, "iss": site.two.https.url}
    assert "not the answer" in site.refused(f"/login/one/callback?{urlencode(changed)}")
    assert (site.one.exchanges, site.two.exchanges) == ([], []), "no code goes to the other"

    back = site.one.come_back(site.begin())
    site.one.raw = site.two.id_token([*site.one.codes.values()][-1]["nonce"])
    assert "did not confirm a user" in site.refused(back)
    assert site.said[-1].endswith(IdTokenRefusal.ISSUER)


def test_an_id_token_of_a_log_in_is_no_bearer_credential(site: LoginSite) -> None:
    assert site.log_in().status_code == 200
    assert site.host.refused(site.one.sent[0], GetSubjectVerb()).code == "unauthenticated"
    token = site.one.id_token(NONCE, aud=AUDIENCE)
    assert site.host.done(token, GetSubjectVerb()).document["subject"] == SUBJECT
    site.one.raw = token
    assert "did not confirm a user" in site.refused(site.one.come_back(site.begin(who := site.browser.another())), who)


def test_what_a_provider_says_is_shown_as_text_and_only_for_this_log_in(site: LoginSite) -> None:
    mark = "<script>alert(1)</script>\x1b[31m"
    said = {"error": "access_denied", "error_description": mark + "y" * 5000}
    assert "access_denied" not in site.refused(f"/login/one/callback?{urlencode(said)}")
    state = query_of(site.begin())["state"]
    answer = site.browser.get(f"/login/one/callback?{urlencode({**said, 'state': state})}")
    assert answer.status_code == 403
    assert "&lt;script&gt;alert(1)&lt;/script&gt;?[31m" in answer.text
    assert "<script" not in answer.text
    assert "y" * 400 not in answer.text
    assert site.one.exchanges == []
    site.one.https.answers["/token"] = lambda _: (400, b'{"error": "<b>' + b"z" * 5000 + b'"}', {})
    text = site.browser.get(site.one.come_back(site.begin())).text
    assert "&lt;b&gt;zz" in text
    assert ("<b>" in text, "z" * 200 in text) == (False, False)


def test_nobody_is_sent_elsewhere(site: LoginSite) -> None:
    for path in ("/login/one?next=//evil.example", "/login/one?redirect_uri=https://evil.example/"):
        address = site.browser.get(path).headers["Location"]
        assert address.startswith(f"{site.one.https.url}/authorize?")
        assert "evil" not in address
    back = site.one.come_back(site.begin())
    done = site.browser.get(f"{back}&next=https://evil.example/&url=//evil.example")
    assert (done.status_code, "evil" in done.text, "evil" in str(done.headers)) == (200, False, False)
    for path in ("/login//evil.example", "/login/https:%2f%2fevil.example", "/login/three", "/login/One"):
        assert site.browser.another().get(path).status_code == 404


def test_no_header_says_where_a_browser_comes_back_to(site: LoginSite) -> None:
    hostile = {"Host": "evil.example", "X-Forwarded-Host": "evil.example", "Forwarded": "host=evil.example"}
    answer = site.browser.send("GET", "/login/one", hostile)
    assert query_of(answer.headers["Location"])["redirect_uri"] == f"{SITE}/login/one/callback"
    assert answer.headers["Set-Cookie"].startswith("__Host-")
    plain = PageBrowser(site.browser.site, "http://127.0.0.1:9808").get("/login/one")
    assert "; Secure" in plain.headers["Set-Cookie"], "the configuration says https"


def test_another_site_begins_no_log_in(site: LoginSite) -> None:
    for where in ("cross-site", "same-site"):
        answer = site.browser.send("GET", "/login/one", {"Sec-Fetch-Site": where})
        assert (answer.headers["Location"], "Set-Cookie" in answer.headers) == ("/login", False)
    for where in ("same-origin", "none"):
        answer = site.browser.send("GET", "/login/one", {"Sec-Fetch-Site": where})
        assert answer.headers["Location"].startswith(site.one.https.url)
    for method in ("POST", "HEAD"):
        assert site.browser.send(method, "/login/one").status_code == 405
        assert site.browser.send(method, "/login/one/callback").status_code == 405


def test_log_ins_keep_no_more_places_than_theirs(site: LoginSite, monkeypatch: pytest.MonkeyPatch) -> None:
    assert site.host.logins is not None
    waits, came = threading.Event(), threading.Semaphore(0)

    def exchange(_name: str, _grant: CodeGrant) -> str:
        came.release()
        waits.wait(20)
        return "no token"

    monkeypatch.setattr(site.host.logins, "exchange", exchange)
    verb = OpenSessionVerb(login="one", issuer=site.one.https.url, code="code", verifier=VERIFIER, nonce=NONCE)
    site.host.logins.patience = 0.1
    threads = [threading.Thread(target=site.host.ask, args=("", verb)) for _ in range(helper_logins.LOGINS_AT_ONCE)]
    for thread in threads:
        thread.start()
        assert came.acquire(timeout=20)
    assert site.host.refused("", verb).code == "busy"
    waits.set()
    for thread in threads:
        thread.join()
    assert "did not confirm a user" in site.host.refused("", verb).message, "the places are free again"


def test_begun_log_ins_are_bounded() -> None:
    login = KnownLogin(
        name="one",
        issuer="https://one.example.org",
        authorization_endpoint="https://one.example.org/a",
        client_id="x",
        redirect_uri=f"{SITE}/login/one/callback",
        scopes=("openid",),
    )
    clock = [0.0]
    known = PreLogins(lambda: clock[0], most=3)
    begun = [known.begin(login) for _ in range(4)]
    texts = {text for one in begun for text in (one.pre_login.state, one.pre_login.nonce, one.pre_login.verifier)}
    assert len(texts) == 12
    assert [known.take(one.id.get_secret_value()) is not None for one in begun] == [False, True, True, True]
    last = known.begin(login)
    clock[0] += 600
    assert known.take(last.id.get_secret_value()) is None


def test_a_host_without_log_ins_has_none(host: ServeHost) -> None:
    assert host.done("", ListLoginsVerb()).document == {"logins": []}
    verb = OpenSessionVerb(login="one", issuer="https://one.example.org", code="code", verifier=VERIFIER, nonce=NONCE)
    assert host.refused("", verb).message == "there is no log-in one"
    browser = PageBrowser(create_site(host.client))
    assert not [one for one in browser.page("/login").all("a") if "button" in one.get("class", "")]
    assert browser.get("/login/one").status_code == 404


def test_what_an_issuer_does_not_say_lets_nobody_log_in(site: LoginSite) -> None:
    issuer = site.host.settings().serve.issuer["one"]
    said = f'{{"issuer": "{site.one.https.url}", "jwks_uri": "{site.one.https.url}/keys"'.encode()

    def ask(more: bytes) -> None:
        site.one.https.page(DISCOVERY, said + more + b"}")

        def asked(request: HttpsRequest) -> HttpsAnswer:
            status, body, _ = site.one.https.pages[request.url.removeprefix(site.one.https.url)]
            return HttpsAnswer(request.url, status, body)

        fetched(issuer, asked)

    for more in (b"", b', "authorization_endpoint": "javascript:alert(1)"', b', "authorization_endpoint": "http://a/"'):
        with pytest.raises(UnreachableError, match="authorization_endpoint is not an https address"):
            ask(more)
    with pytest.raises(UnreachableError, match="token_endpoint is not an https address"):
        ask(b', "authorization_endpoint": "https://a.example.org/a"')


def test_the_helper_exchanges_a_code_by_a_command(site: LoginSite, tmp_path: Path) -> None:
    """As on a host: by a process that reads the configuration, and one without rights that asks the provider."""
    site.one.secret = "a secret: of 100% of us"
    site.one.https.files.ca.chmod(0o600)
    environment = {**ENVIRONMENT, "ZSNAPDB_CONFIG": str(configuration(tmp_path, site.one))}
    exchange = exchange_with(ChildRunner(start_detached, environment))
    begun = query_of(site.begin())
    site.one.checks_verifier = False
    code = query_of(site.one.come_back(f"{site.one.https.url}/authorize?{urlencode(begun)}"))["code"]
    grant = CodeGrant(
        issuer=site.one.https.url,
        client_id=CLIENT,
        token_endpoint=f"{site.one.https.url}/token",
        redirect_uri=f"{SITE}/login/one/callback",
        code=code,
        verifier=VERIFIER,
    )
    assert exchange("one", grant) == site.one.sent[0]
    with pytest.raises(RefusedRequest, match="answered 400: invalid_grant"):
        exchange("one", grant)
    asked = len(site.one.exchanges)
    for changed in ({"issuer": site.two.https.url}, {"client_id": "another"}):
        with pytest.raises(RefusedRequest, match="was changed meanwhile"):
            exchange("one", grant.model_copy(update=changed))
    assert len(site.one.exchanges) == asked, "neither the code nor the secret of the client goes anywhere"


def test_a_code_goes_to_no_issuer_that_took_the_name_of_the_one_that_gave_it(site: LoginSite) -> None:
    """The configuration is replaced while somebody logs in: the section is another issuer's by now."""
    back = site.one.come_back(site.begin())
    other = site.two.section().replace("[serve.issuer.two", "[serve.issuer.one")
    other = other.replace("[[serve.issuer.two", "[[serve.issuer.one")
    site.host.more = f'url = "{SITE}"' + other
    assert "was changed meanwhile" in site.refused(back)
    assert (site.one.exchanges, site.two.exchanges) == ([], [])
    assert site.sessions() == []


def test_a_log_in_waits_for_its_turn_behind_codes_that_strangers_made_up(
    site: LoginSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert site.host.logins is not None
    exchange, lasts = site.host.logins.exchange, threading.Event()
    came = threading.Semaphore(0)

    def slow(name: str, grant: CodeGrant) -> str:
        if grant.code == "made-up":
            came.release()
            lasts.wait(20)
        return exchange(name, grant)

    monkeypatch.setattr(site.host.logins, "exchange", slow)
    made_up = OpenSessionVerb(login="one", issuer=site.one.https.url, code="made-up", verifier=VERIFIER, nonce=NONCE)
    strangers = [
        threading.Thread(target=site.host.ask, args=("", made_up)) for _ in range(helper_logins.LOGINS_AT_ONCE)
    ]
    for one in strangers:
        one.start()
        assert came.acquire(timeout=20)
    threading.Timer(0.3, lasts.set).start()
    assert site.log_in().status_code == 200
    for one in strangers:
        one.join()


def test_one_address_takes_no_more_than_its_share_of_the_places(site: LoginSite) -> None:
    pages = LoginPages(site.host.client, BrowserSessions())
    with pages._place("192.0.2.1"), pages._place("192.0.2.1"), pages._place("192.0.2.1"):
        with pytest.raises(RefusedPage, match="from your address"), pages._place("192.0.2.1"):
            pass
        with pages._place("192.0.2.2"):
            pass
    with pages._place("192.0.2.1"):
        pass
    assert not pages._finishing


@pytest.mark.parametrize(
    ("peer", "said", "address"),
    [
        ("127.0.0.1", "", "127.0.0.1"),
        ("127.0.0.1", "203.0.113.9", "203.0.113.9"),
        ("::1", "made up, 203.0.113.9", "203.0.113.9"),
        ("203.0.113.7", "192.0.2.1", "203.0.113.7"),
    ],
)
def test_an_address_is_what_a_proxy_of_this_host_has_seen_last(peer: str, said: str, address: str) -> None:
    assert address_of(peer, {"x-forwarded-for": said} if said else {}) == address


def test_a_configuration_that_lets_nobody_come_back_is_refused() -> None:
    section = {
        "issuer": "https://one.example.org",
        "audience": "x",
        "allow": [{"claims": {"groups": "dev"}, "subject": "user:{email}", "role": "viewer"}],
        "login": {"client_id": "zsnapdb", "scopes": ["openid", "groups"]},
    }
    whole: dict[str, Any] = {"url": SITE, "issuer": {"one": section}}
    login = ServeSettings.model_validate(whole).issuer["one"].login
    assert login is not None
    assert login.scopes == ("groups",)
    ServeSettings.model_validate({**whole, "url": "http://127.0.0.1:9808"})
    for url in (
        None,
        "http://zsnapdb.example.net",
        f"{SITE}/",
        f"{SITE}/x",
        "https://a@b",
        "https://a?b",
        "javascript:",
    ):
        with pytest.raises(ValidationError):
            ServeSettings.model_validate({**whole, "url": url})
    with pytest.raises(ValidationError):
        ServeSettings.model_validate({**whole, "session": "9h"})
