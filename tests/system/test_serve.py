"""Clones by HTTP: the helper as root, the web process under an account of its own, and the requests of people."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pymysql
import pytest

from tests.unit.support.https_issuer import HttpsIssuer, https_issuer
from tests.unit.support.issuers import AUDIENCE, FakeIssuer, jwk
from tests.unit.support.issuers import RSA as ISSUER_KEY
from tests.unit.support.page_browser import Page, PageBrowser
from zsnapdb.client.clones import CloneCommandError
from zsnapdb.client.http import Client
from zsnapdb.jobs.base.host import THIS_HOST
from zsnapdb.jobs.clone import locks

from .in_guest import CONFIG, Done, Lab, ask, connect, everything, remove_unused_sets, run, zfs
from .serving import (
    ACCOUNT,
    GATE,
    OTHER,
    PORT,
    SHIM,
    SOCKET,
    STOPS,
    SUBJECT,
    WALLS,
    Answer,
    Service,
    descendants,
    gate_closed,
)

pytestmark = [pytest.mark.usefixtures("first"), pytest.mark.any_server]

ASKS = """
import contextlib, json, socket, sys
for line in json.load(sys.stdin):
    with socket.socket(socket.AF_UNIX) as helper:
        helper.settimeout(60)
        helper.connect(sys.argv[1])
        with contextlib.suppress(BrokenPipeError):
            helper.sendall(line.encode())
        print(helper.makefile().readline(), end="")
"""
"""Sends each text of a list to the helper, and prints the first line of each answer."""
ISSUES = """[serve.issuer.ci]
issuer = "{}"
audience = "{}"
tls_ca = "{}"
allow = [{{ claims = {{ repository = "shop/web" }}, subject = "ci:shop/web", role = "developer" }}]

"""
"""The section of an issuer."""


@pytest.fixture(scope="module")
def issuer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HttpsIssuer]:
    """An issuer of id tokens on this host."""
    with https_issuer(tmp_path_factory.mktemp("issuer")) as made:
        made.page(
            "/.well-known/openid-configuration", f'{{"issuer": "{made.url}", "jwks_uri": "{made.url}/keys"}}'.encode()
        )
        made.page("/keys", json.dumps({"keys": [jwk(ISSUER_KEY, "rsa")]}).encode())
        yield made


@pytest.fixture(scope="module")
def service(
    lab: Lab, first: dict[str, Any], issuer: HttpsIssuer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Service]:
    made = run("useradd", "--system", "--user-group", "--no-create-home", "--shell", "/usr/sbin/nologin", ACCOUNT)
    assert made.code == 0, made.stderr
    SHIM.write_text(STOPS)
    SHIM.chmod(0o755)
    limits = '[serve]\nper_subject = 1\nunmasked = ["main"]\n\n[serve.project."ci:shop"]\nbytes = "512MiB"\n\n'
    limits += "[repository.s3]\nevidence = true\n"
    config = lab.changed(("[repository.s3]\n", f"{ISSUES.format(issuer.url, AUDIENCE, issuer.files.ca)}{limits}"))
    serving = Service(lab, config, tmp_path_factory.mktemp("serve") / "said")
    try:
        serving.start("helper", "web")
        yield serving
        for process in serving.running.values():
            process.terminate()
        assert {name: process.wait(60) for name, process in serving.running.items()} == {"helper": 0, "web": 0}
    finally:
        for name in list(serving.running):
            serving.kill(name, with_commands=True)
        SHIM.unlink()
        print(serving.said.read_text())
        assert run("userdel", ACCOUNT).code == 0


def login_is_for_its_owner_alone(service: Service, made: dict[str, Any], mine: str, others: str) -> None:
    """The owner sees the login again, and a new password replaces the former one. `made` has it afterwards."""
    for token, status in ((others, 404), (service.token("user:op@example.org", "operator"), 403)):
        for method in ("GET", "POST"):
            refused = service.request(method, "/clones/mine/login", token)
            assert (refused.status, made["password"] in str(refused.body)) == (status, False)
    shown = service.request("GET", "/clones/mine/login", mine).body
    assert (shown["password"], shown["port"]) == (made["password"], made["clone"]["port"])
    renewed = service.request("POST", "/clones/mine/login", mine, key="build-7").body
    assert renewed["password"] != made["password"]
    with pytest.raises(pymysql.err.OperationalError):
        connect(made)
    records = Path("/var/lib/zsnapdb").rglob("*.json")
    assert not [file for file in records if renewed["password"] in file.read_text(errors="replace")]
    assert renewed["password"] not in service.said.read_text()
    made["password"] = renewed["password"]
    connect(made).close()


def test_a_clone_from_its_making_through_a_kill_of_the_web_process_to_its_end(
    service: Service, issuer: HttpsIssuer, tmp_path: Path
) -> None:
    before, mine, others = everything(), service.token(SUBJECT), service.token(OTHER)
    assert service.request("GET", "/instances").status == 401
    listed = service.request("GET", "/instances", mine).body
    assert listed["instances"] == [{"name": "main", "masked": False, "pool": False, "clones_allowed": True}]
    wanted = {"instance": "main", "name": "mine", "ttl": "1h"}
    with gate_closed():
        begun = service.request("POST", "/clones", mine, wanted, key="build-7")
        assert begun.status == 202, begun
        service.until((GATE / "reached").exists)
        service.kill("web")
        service.start("web")
        operation = f"/operations/{begun.body['operation']}"
        assert service.request("GET", operation, mine) == begun
        assert service.request("GET", operation, others).status == 404
    made = service.to_its_end(begun, mine)
    assert made.status == 200, made
    assert service.request("POST", "/clones", mine, wanted, key="build-7").body == made.body
    with connect(made.body) as here:
        assert ask(here, "SELECT COUNT(*) > 0 FROM ledger.accounts") == [(1,)]
        ask(here, "CREATE TABLE ledger.mine (id INT)")

    login_is_for_its_owner_alone(service, made.body, mine, others)
    clone = made.body["clone"]
    assert (clone["name"], clone["owner"], clone["quota"]) == ("mine", SUBJECT, 512 << 20)
    theirs = service.request("DELETE", "/clones/mine", others)
    assert (theirs.status, theirs.body["detail"]) == (404, "there is no clone mine")
    second = service.request("POST", "/clones", mine, {"instance": "main"})
    assert (second.status, second.body["code"]) == (409, "quota")
    assert "(mine), and serve.per_subject is 1" in second.body["detail"]

    reset = service.to_its_end(service.request("POST", "/clones/mine/reset", mine), mine)
    assert reset.status == 200, reset
    with connect(made.body) as here:
        assert ask(here, "SHOW TABLES FROM ledger LIKE 'mine'") == []
    # The CI of the project vouches for the same subject. The helper has fetched its keys without being root.
    vouched = FakeIssuer(tmp_path / "ci", THIS_HOST.now(), issuer=issuer.url)
    service.until(lambda: "/keys" in issuer.asked)
    service.until(lambda: service.request("GET", "/clones/mine", vouched.token()).status == 200)
    assert service.request("GET", "/clones/mine", vouched.token(repository="evil/web")).status == 401
    extend = service.request("POST", "/clones/mine/extend", vouched.token(), {"ttl": "3h"})
    extended = service.to_its_end(extend, vouched.token())
    assert (extended.status, extended.body["clone"]["expires"] > clone["expires"]) == (200, True), extended
    check_that_a_clone_that_took_the_name_stays(service, mine)
    gone = service.to_its_end(service.request("DELETE", "/clones/mine", mine), mine)
    assert gone.status == 200, gone
    assert service.request("GET", "/clones", mine).body["clones"] == []
    assert everything() == before
    shown = service.lab.zsnapdb("report", "show", "main", "--json", config=service.config).json["records"]
    deeds = [record for record in shown if (record["job"], record["who"]["subject"]) == ("clone", SUBJECT)]
    assert [(record["command"].split()[2], record["who"]["issuer"]) for record in deeds] == [
        ("create", ""),
        ("login", ""),
        ("login", ""),
        ("reset", ""),
        ("extend", issuer.url),
        ("destroy", ""),  # refused: the clone had become another person's
        ("destroy", ""),
    ]


def check_that_a_clone_that_took_the_name_stays(service: Service, token: str) -> None:
    """While the command of a request waits for the lock of the clone, that becomes another person's.

    The helper has looked twice by then. Another owner stands for another clone of that name: it cannot be made as long
    as the lock is held.
    """
    answers: list[Answer] = []
    ends = threading.Thread(target=lambda: answers.append(service.request("DELETE", "/clones/mine", token)))
    with locks.lock_clone("mine"):
        ends.start()
        service.until(
            lambda: any(is_running("clone destroy", pid) for pid in descendants(service.running["helper"].pid))
        )
        zfs("set", f"zsnapdb:owner={OTHER}", "tank/zsnapdb/clones/mine")
    ends.join()
    refused = service.to_its_end(answers[0], token)
    assert (refused.status, refused.body["detail"]) == (404, "there is no clone mine")
    (there,) = service.clones()
    assert (there["name"], there["owner"], there["pid"] is not None) == ("mine", OTHER, True)
    zfs("set", f"zsnapdb:owner={SUBJECT}", "tank/zsnapdb/clones/mine")


def is_running(words: str, pid: int) -> bool:
    """Whether a process runs this command of zsnapdb."""
    try:
        line = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").replace("\0", " ")
    except OSError:
        return False
    return f"zsnapdb {words}" in line


def test_a_program_drives_the_life_of_a_clone(service: Service) -> None:
    before = everything()
    where = f"http://127.0.0.1:{PORT}"
    with Client(where, service.token(SUBJECT)) as client, Client(where, service.token(OTHER, "operator")) as operator:
        points = client.points("main")
        newest = points.sets[-1].id
        assert points.recoverable[-1].backups
        with client.clone("main", "program", source=newest, ttl="1h") as clone:
            # As `tests/system/in_guest.py` connects to what a command prints.
            login = {"clone": {"port": clone.port}, "user": clone.user, "password": clone.password}
            with connect(login) as here:
                ask(here, "CREATE TABLE ledger.mine (id INT)")
            kept = client.commit(clone, "before the reset")
            client.reset(clone)
            with connect(login) as here:
                assert ask(here, "SHOW TABLES FROM ledger LIKE 'mine'") == []
            with pytest.raises(CloneCommandError) as hidden, Client(where, service.token(OTHER)) as other:
                other.create("main", source=kept.id)
            assert (hidden.value.status, hidden.value.code) == (404, "not-there")
            with operator.clone("main", source=kept.id) as theirs:
                again = {"clone": {"port": theirs.port}, "user": theirs.user, "password": theirs.password}
                with connect(again) as here:
                    assert len(ask(here, "SHOW TABLES FROM ledger LIKE 'mine'")) == 1
            assert client.protect(clone, "2h").protected_until is not None
            assert client.unprotect(clone).protected_until is None
            assert client.stop(clone).pid is None
            assert client.start(clone).pid is not None
            with connect(login) as here:
                assert ask(here, "SHOW TABLES FROM ledger LIKE 'mine'") == []
            assert any("ready for connections" in line for line in client.logs(clone))
        assert client.clones() == ()
    assert everything() == before
    auditor = service.token(OTHER, "auditor")
    assert service.request("GET", "/evidence?instance=main", service.token(SUBJECT)).status == 403
    page = service.request("GET", "/evidence?instance=main&limit=2", auditor).body
    later = service.request("GET", f"/evidence?instance=main&after={page['next']}&limit=500", auditor).body
    commands = [" ".join(one["command"].split()[1:3]) for one in (*page["records"], *later["records"])]
    assert {"clone commit", "clone protect"} <= set(commands)
    (state,) = service.request("GET", "/objectives", auditor).body["instances"]
    assert (state["instance"], state["error"]) == ("main", None)
    assert service.request("GET", "/drills?instance=main", auditor).status == 200


def test_a_program_switches_between_branches_and_compares_them(service: Service) -> None:
    before, where = everything(), f"http://127.0.0.1:{PORT}"
    with Client(where, service.token(SUBJECT)) as client, client.clone("main", "branches", ttl="1h") as clone:
        login = {"clone": {"port": clone.port}, "user": clone.user, "password": clone.password}
        with connect(login) as here:
            ask(here, "CREATE TABLE ledger.words (id INT PRIMARY KEY, word VARCHAR(9))")
            ask(here, "INSERT INTO ledger.words VALUES (1, 'one'), (2, 'two')")
        begun = client.create_branch(clone, "feature/words")
        assert (begun.current, {one.name: one.head for one in begun.branches}["feature/words"]) == ("main", begun.made)
        client.switch_branch(clone, "feature/words")
        with connect(login) as here:
            ask(here, "UPDATE ledger.words SET word = 'zwei' WHERE id = 2")
        back = client.switch_branch(clone, "main")
        assert (back.branch, back.left, back.committed, back.clone.port) == ("main", "feature/words", True, clone.port)
        with connect(login) as here:
            assert ask(here, "SELECT word FROM ledger.words ORDER BY id") == [("one",), ("two",)]
        assert [one.id for one in client.commits(clone, "feature/words")] == [back.left_head, begun.made]
        difference = client.diff(clone, "main", "feature/words")
        (words,) = (one for one in difference.tables if not one.same)
        assert (words.table, [(row.before, row.after) for row in words.changes]) == (
            "ledger.words",
            [((2, "two"), (2, "zwei"))],
        )
        assert difference.left_out is False
        assert [one["name"] for one in service.clones()] == ["branches"], "those of the comparison are gone"
        with Client(where, service.token(OTHER)) as other, pytest.raises(CloneCommandError) as hidden:
            other.branches(clone)
        assert (hidden.value.status, hidden.value.message) == (404, "there is no clone branches")
        assert [one.name for one in client.delete_branch(clone, "feature/words").branches] == ["main"]
    assert everything() == before
    page = service.request("GET", "/evidence?instance=main&limit=500", service.token(OTHER, "auditor")).body
    deeds = [one["command"].split()[3] for one in page["records"] if one["command"].startswith("zsnapdb clone branch")]
    assert deeds == ["create", "switch", "switch", "delete"]


THEIRS = """
import pymysql, pytest

@pytest.mark.parametrize("number", range(2))
def test_data_is_clean(zsnapdb_data, number):
    login = {"host": zsnapdb_data.host, "port": zsnapdb_data.port}
    login |= {"user": zsnapdb_data.user, "password": zsnapdb_data.password, "autocommit": True}
    with pymysql.connect(**login) as here, here.cursor() as cursor:
        cursor.execute("SHOW TABLES FROM ledger LIKE 'theirs'")
        assert cursor.fetchall() == ()
        cursor.execute("CREATE TABLE ledger.theirs (id INT)")
"""


def test_tests_of_a_person_without_root_have_a_clone_of_the_service(service: Service) -> None:
    before = everything()
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        Path(folder, "test_theirs.py").write_text(THEIRS)
        argv = (sys.executable, "-m", "pytest", "-q", "-p", "zsnapdb.client.pytest_plugin", "-p", "no:cacheprovider")
        done = subprocess.run(
            ("setpriv", "--reuid=games", "--regid=games", *WALLS, *argv, folder),
            cwd=folder,
            env={
                **{name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")},
                "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
                "PYTHONDONTWRITEBYTECODE": "1",
                "ZSNAPDB_URL": f"http://127.0.0.1:{PORT}",
                "ZSNAPDB_TOKEN": service.token(SUBJECT),
            },
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
    assert (done.returncode, "2 passed" in done.stdout) == (0, True), done
    assert everything() == before


HOLDS = """
import time
from zsnapdb.client.http import Client

with Client() as client, client.clone("main", "held", heartbeat=6):
    print("held", flush=True)
    time.sleep(600)
"""


def test_a_clone_of_a_program_that_is_killed_goes_within_a_minute_and_not_before(service: Service) -> None:
    before, beats = everything(), Path("/run/zsnapdb/heartbeats/held")
    environment = {"ZSNAPDB_URL": f"http://127.0.0.1:{PORT}", "ZSNAPDB_TOKEN": service.token(SUBJECT)}
    holder = subprocess.Popen(
        (sys.executable, "-c", HOLDS), env={**os.environ, **environment}, stdout=subprocess.PIPE, text=True
    )
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        (clone,) = service.clones()
        first = beats.stat().st_mtime
        # It lives for longer than a heartbeat, by those that came by HTTP.
        service.until(lambda: beats.stat().st_mtime > first + clone["heartbeat"])
        assert service.lab.zsnapdb("reap").code == 0
        assert [one["name"] for one in service.clones()] == ["held"]
    finally:
        holder.kill()
        holder.communicate()
    # What begins within a minute takes it, however long that takes.
    ended = looked = time.monotonic()
    while service.clones():
        assert looked < ended + 60
        looked = time.monotonic()
        assert service.lab.zsnapdb("reap").code == 0
    assert everything() == before


def test_a_cancelled_request_leaves_nothing_and_its_key_may_come_again(service: Service) -> None:
    before, token = everything(), service.token(SUBJECT)
    wanted = {"instance": "main", "name": "cancelled"}
    with gate_closed():
        begun = service.request("POST", "/clones", token, wanted, key="cancelled")
        assert begun.status == 202, begun
        service.until((GATE / "reached").exists)
        operation = f"/operations/{begun.body['operation']}"
        assert service.request("DELETE", operation, service.token(OTHER, "operator")).status == 404
        assert everything() != before, "half a clone is there"
        assert service.request("DELETE", operation, token).status in (200, 202)
    ended = service.to_its_end(begun, token)
    assert (ended.status, ended.body["code"]) == (409, "cancelled"), ended
    assert service.request("DELETE", operation, token).body["state"] == "cancelled"
    assert everything() == before
    assert service.clones() == []
    made = service.to_its_end(service.request("POST", "/clones", token, wanted, key="cancelled"), token)
    assert (made.status, made.body["clone"]["name"]) in ((200, "cancelled"), (201, "cancelled")), made
    assert service.to_its_end(service.request("DELETE", "/clones/cancelled", token), token).status == 200
    assert everything() == before


def test_a_person_gets_a_clone_by_the_page_with_its_login_and_destroys_it(service: Service) -> None:
    before, browser = everything(), PageBrowser(base=f"http://127.0.0.1:{PORT}")
    assert browser.get("/").headers["Location"] == "/login"
    assert browser.log_in(service.token(SUBJECT)).headers["Location"] == "/"
    begun = browser.submit("/new?instance=main", "/clones", instance="main", name="paged", ttl="1h")
    made = Page(browser.to_its_end(begun).text).text
    url = next(urlsplit(word) for word in made.split() if word.startswith("mysql://"))
    assert f"MYSQL_PWD={url.password} mysql --host={url.hostname} --port={url.port} --user={url.username}" in made
    with connect({"clone": {"port": url.port}, "user": url.username, "password": url.password}) as here:
        assert ask(here, "SELECT COUNT(*) > 0 FROM ledger.accounts") == [(1,)]
    assert "paged" in browser.page("/clones").text
    destroys = "/clones/paged/destroy"
    assert browser.to_its_end(browser.submit(destroys, destroys)).status_code == 200
    assert "You have no clones" in browser.page("/clones").text
    assert everything() == before


def begun_and_stopped(service: Service, token: str, name: str, *, with_commands: bool) -> Answer:
    """Begin a clone, kill the helper in the middle of it, and return what the request was answered."""
    answers: list[Answer] = []
    wanted = {"instance": "main", "name": name}
    asks = threading.Thread(target=lambda: answers.append(service.request("POST", "/clones", token, wanted, key=name)))
    asks.start()
    service.until((GATE / "reached").exists)
    service.kill("helper", with_commands=with_commands)
    asks.join()
    service.start("helper")
    assert answers[0].status == 202, answers
    interrupted = service.request("GET", f"/operations/{answers[0].body['operation']}", token)
    assert (interrupted.status, interrupted.body["code"]) == (500, "interrupted")
    assert f"clone.create of {name}" in interrupted.body["detail"]
    again = service.request("POST", "/clones", token, wanted, key=name)
    assert again == interrupted, "nobody knows how far it came, so the key begins nothing"
    return interrupted


def test_a_killed_helper_leaves_its_command_which_ends_with_a_clone_of_its_owner(service: Service) -> None:
    before, token = everything(), service.token(SUBJECT)
    with gate_closed():
        begun_and_stopped(service, token, "orphan", with_commands=False)
    service.until(lambda: service.clones()[0]["pid"] is not None)
    (clone,) = service.request("GET", "/clones", token).body["clones"]
    assert (clone["name"], clone["owner"]) == ("orphan", SUBJECT)
    assert service.to_its_end(service.request("DELETE", "/clones/orphan", token), token).status == 200
    assert everything() == before


def test_a_helper_that_is_killed_with_its_commands_leaves_what_reap_clears(service: Service) -> None:
    before, token = everything(), service.token(SUBJECT)
    with gate_closed():
        begun_and_stopped(service, token, "half", with_commands=True)
        assert everything() != before, "half a clone is there"
    there = zfs("list", "-H", "-o", "name", "-d", "1", "tank/zsnapdb/clones")[1:]
    names = [clone["name"] for clone in service.clones()]
    assert names == [name.rpartition("/")[2] for name in there] == ["half"]
    assert service.lab.zsnapdb("reap").code == 0
    assert everything() == before
    assert service.clones() == []


def as_account(*words: str, text: str = "", user: str = ACCOUNT, group: str = ACCOUNT) -> Done:
    """Run a program as the web process's account."""
    ids = ("setpriv", f"--reuid={user}", f"--regid={group}", *WALLS)
    done = subprocess.run((*ids, *words), input=text, capture_output=True, text=True, timeout=300, check=False)
    return Done(done.returncode, done.stdout, done.stderr)


def test_the_account_of_the_web_process_reads_nothing_and_nobody_else_is_answered(service: Service) -> None:
    secret = [CONFIG, Path("/etc/zsnapdb/credentials"), Path("/etc/zsnapdb/main.password"), *THIS_HOST.serve.iterdir()]
    assert {"tokens.json", "operations"} < {path.name for path in secret}
    for path in (*secret, THIS_HOST.run):
        done = as_account("ls", str(path)) if path.is_dir() else as_account("cat", str(path))
        assert (done.code, "Permission denied" in done.stderr) == (1 if path.is_file() else 2, True), (path, done)
    listing = ("/usr/bin/python3", "-I", "-S", "-c", ASKS, str(SOCKET))
    line = json.dumps([json.dumps({"token": service.token(SUBJECT), "verb": {"kind": "instance.list"}}) + "\n"])
    assert json.loads(as_account(*listing, text=line).stdout)["kind"] == "result"
    # Who has the group by mistake may connect, and is another account all the same.
    other = json.loads(as_account(*listing, text=line, user="games").stdout)
    assert (other["code"], "may not use this socket" in other["message"]) == ("not-allowed", True)
    assert "PermissionError" in as_account(*listing, text=line, user="games", group="games").stderr


ASKED, MOST = 20, 10


# Ten masked clones take minutes in a guest. tests/unit/serve/test_limits.py has the same requests with a stand-in for
# the command, and tests/system/test_masking.py shows that no clone is handed out before it is masked.
@pytest.mark.seldom
def test_twenty_requests_at_once_over_a_quota_of_ten_give_ten_of_which_none_is_unmasked(
    service: Service, tmp_path: Path
) -> None:
    before = everything()
    sql = tmp_path / "mask.sql"
    sql.write_text("UPDATE ledger.accounts SET balance = 0;\n")
    plain, limits = service.config.read_text(), f'[serve.project."ci:bulk"]\nclones = {MOST}\n\n[repository.s3]\n'
    masks = f'[instance.main.masking]\nrequired = true\nrun = ["{sql}"]\n\n'
    changed = plain.replace("per_subject = 1", f"per_subject = {ASKED}").replace("[repository.s3]\n", masks + limits)
    # The helper reads it at each request.
    service.config.write_text(changed)
    try:
        tokens = [service.token(f"ci:bulk/{number % 3}") for number in range(ASKED)]
        wanted = [{"instance": "main", "name": f"bulk{n}", "profile": "tiny", "ttl": "1h"} for n in range(ASKED)]
        with ThreadPoolExecutor(ASKED) as pool:
            begun = list(pool.map(lambda n: service.request("POST", "/clones", tokens[n], wanted[n]), range(ASKED)))
        ended = [service.to_its_end(one, tokens[number]) for number, one in enumerate(begun)]
        assert sorted(one.status in (200, 201) for one in ended) == [False] * (ASKED - MOST) + [True] * MOST, ended
        refused = [one.body for one in ended if one.status == 409]
        assert {one["code"] for one in refused} == {"quota"}
        assert f'serve.project."ci:bulk".clones is {MOST}' in refused[0]["detail"]
        there = [one for one in service.clones() if one["owner"].startswith("ci:bulk/")]
        assert (len(there), [one["name"] for one in there if not one["masked"]]) == (MOST, [])
        with connect(next(one.body for one in ended if one.status in (200, 201))) as here:
            assert ask(here, "SELECT COUNT(*) FROM ledger.accounts WHERE balance <> 0") == [(0,)]
    finally:
        service.config.write_text(plain)
        for clone in service.clones():
            assert service.lab.zsnapdb("clone", "destroy", clone["name"]).code == 0
        remove_unused_sets(service.lab)
    assert everything() == before


NOT_NAMES = ("../mine", "/etc/x", "--config=/x", "-x", "a b", "a\nb", "a\u0000", "A", "", "x" * 33, None, 7, ["a"])
"""Nothing can be called so."""


def branch_verbs(name: object, branch: object, state: object) -> list[dict[str, object]]:
    """Return each verb that does something with a branch, where these are its values; the last two have the state."""
    about: dict[str, object] = {"name": name}
    return [
        *({"kind": f"clone.branch.{verb}", **about, "chosen": {"branch": branch}} for verb in ("switch", "delete")),
        {"kind": "clone.branch.create", **about, "wanted": {"branch": branch, "from": state}},
        {"kind": "clone.branch.diff", **about, "states": {"before": branch, "after": state}},
    ]


def hostile_lines(token: str) -> Iterator[str]:
    def request(verb: Mapping[str, object], **more: object) -> str:
        return json.dumps({"token": token, "verb": verb, **more}) + "\n"

    new: dict[str, object] = {"instance": "main", "name": "evil"}
    extra = ("owner", "config", "binary", "bind", "admin", "source", "user", "heartbeat", "subject")
    for name in NOT_NAMES:
        verbs = ("get", "reset", "start", "stop", "extend", "unprotect", "commit", "logs", "destroy")
        for verb in (*verbs, "branch.list", "branch.log"):
            yield request({"kind": f"clone.{verb}", "name": name})
        yield from (request(verb) for verb in branch_verbs(name, "x", "x"))
        yield request({"kind": "evidence.list", "instance": name})
        if name is not None:
            yield request({"kind": "clone.create", "wanted": {**new, "name": name}})
        yield request({"kind": "clone.create", "wanted": {**new, "instance": name}})
        yield request({"kind": "operation.cancel", "id": name})
    for one in ("--config=/x", "-x", "../x", "/etc/x", ".x", "a b", "a\nb", "a\u0000", "", "x" * 61, 7, ["a"]):
        yield from (request(verb) for verb in (*branch_verbs("evil", one, "x"), *branch_verbs("evil", "x", one)[-2:]))
        yield request({"kind": "clone.branch.log", "name": "evil", "state": one})
    for one in ("--size=9GiB", -1, 1000, "1 --admin"):
        states = {"before": "x", "after": "x", "limit": one}
        yield request({"kind": "clone.branch.diff", "name": "evil", "states": states})
    for one in ("--binary=/tmp/x", "-1h", "1h --admin", "1h\n", "$(id)", "forever"):
        yield request({"kind": "clone.create", "wanted": {**new, "ttl": one}})
        yield request({"kind": "clone.extend", "name": "evil", "lease": {"ttl": one}})
        yield request({"kind": "clone.protect", "name": "evil", "protection": {"for": one}})
    for one in ("live", "@daily", "--config=/x", "20260101T000000Z-0123 --admin", "../x"):
        yield request({"kind": "clone.create", "wanted": {**new, "from": one}})
    yield request({"kind": "clone.commit", "name": "evil", "commit": {"message": "a\nb"}})
    yield request({"kind": "clone.logs", "name": "evil", "lines": "1 --config=/x"})
    yield from (
        request({"kind": "clone.create", "wanted": {**new, "at": one}}) for one in ("--from=live", "-1h", "a\n")
    )
    yield from (request({"kind": "clone.create", "wanted": {**new, one: "root"}}) for one in extra)
    yield from (request({"kind": "clone.destroy", "name": "evil", one: "root"}) for one in extra)
    yield from (request({"kind": "clone.branch.list", "name": "evil", one: "root"}) for one in extra)
    yield from (request({"kind": "instance.list"}, **{one: "unix:root"}) for one in ("subject", "role", "uid"))
    yield from (request({"kind": one}) for one in ("restore", "clone.start", "clone", "", "clone.list --json"))
    yield from ("\n", "{}\n", "[]\n", "null\n", "[" * 9000 + "\n", "\u0000" * 100 + "\n", "x" * 70000)
    yield request({"kind": "clone.list"}) * 2


def refusals(service: Service, lines: Sequence[str]) -> list[str]:
    """Return the codes with which the helper answers the web process's account."""
    asked = as_account("/usr/bin/python3", "-I", "-S", "-c", ASKS, str(SOCKET), text=json.dumps(lines))
    assert asked.code == 0, asked.stderr
    return [json.loads(line).get("code", "") for line in asked.stdout.splitlines()]


def test_whatever_the_account_of_the_web_process_sends_only_known_requests_are_answered(service: Service) -> None:
    before, begun = everything(), sorted((THIS_HOST.serve / "operations").iterdir())
    lines = list(hostile_lines(service.token(OTHER, "operator")))
    answers = refusals(service, lines)
    assert [(line, code) for line, code in zip(lines, answers, strict=True) if code != "usage"] == []
    stolen = [json.dumps({"token": one, "verb": {"kind": "clone.list"}}) + "\n" for one in ("", "root", "zsnapdb_x")]
    assert refusals(service, stolen) == ["unauthenticated"] * 3
    assert (everything(), sorted((THIS_HOST.serve / "operations").iterdir())) == (before, begun)
    assert service.running["helper"].poll() is None
