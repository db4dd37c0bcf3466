"""The helper on a real socket: who is answered, what is run for whom, and what hostile bytes come to."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

import pytest

from tests.unit.support.issuers import FakeIssuer
from tests.unit.support.serve_host import ServeHost
from zsnapdb.serve.helper import HelperServer
from zsnapdb.serve.helper_messages import BegunAnswer, FailureAnswer, HelperRequest, PendingAnswer, ResultAnswer
from zsnapdb.serve.operations import Operations
from zsnapdb.serve.roles import Role
from zsnapdb.verbs.requests import (
    CreateCloneVerb,
    DestroyCloneVerb,
    ExtendCloneVerb,
    GetCloneVerb,
    GetOperationVerb,
    GetSubjectVerb,
    ListClonesVerb,
    ListInstancesVerb,
    NewClone,
    NewLease,
    ResetCloneVerb,
)

MINE = {"name": "mine", "owner": "ci:shop/web"}
THEIRS = {"name": "theirs", "owner": "ann"}
CHANGES = (ResetCloneVerb(name="x"), ExtendCloneVerb(name="x"), DestroyCloneVerb(name="x"))


def of(
    verb: ResetCloneVerb | ExtendCloneVerb | DestroyCloneVerb | GetCloneVerb, name: str
) -> ResetCloneVerb | ExtendCloneVerb | DestroyCloneVerb:
    return verb.model_copy(update={"name": name})  # type: ignore[return-value]


def new(instance: str = "main", name: str | None = "mine", **more: str | bool) -> CreateCloneVerb:
    return CreateCloneVerb(wanted=NewClone.model_validate({"instance": instance, "name": name, **more}))


def test_a_clone_is_made_for_the_subject_of_the_token(host: ServeHost) -> None:
    made = host.done(host.token("ci:shop/web"), new())
    assert made.document["password"] == "secret of the clone"
    (call,) = host.calls()
    assert call.words == (
        *("clone", "create", "--name=mine", "--owner=ci:shop/web", "--ttl=7200.000s", "--json", "main"),
    )
    assert call.environment["ZSNAPDB_SUBJECT"] == "ci:shop/web"
    own = {"ZSNAPDB_SUBJECT", "ZSNAPDB_RUN_ID", "ZSNAPDB_AUDIENCE"}
    assert set(call.environment) - {"LC_CTYPE"} == {"PATH", "LANG", "FAKE_FOLDER", *own}


def test_a_clone_is_made_for_the_subject_of_an_id_token_and_its_issuer_is_named(tmp_path: Path) -> None:
    host = ServeHost(tmp_path)
    issuer = FakeIssuer(tmp_path / "issuers", host.now)
    issuer.known.fetch_due()
    host.id_tokens = issuer.tokens
    with host.helper():
        host.done(issuer.token(), new())
        host.done(host.token("ci:shop/app"), new(name="other"))
        refused = {host.refused(text, new()).model_dump_json() for text in (issuer.token(ref="x"), "a.b.c", ".", "")}
        assert [json.loads(one)["code"] for one in refused] == ["unauthenticated"]
    assert [
        (call.environment["ZSNAPDB_SUBJECT"], call.environment.get("ZSNAPDB_SUBJECT_ISSUER")) for call in host.calls()
    ] == [("ci:shop/web", issuer.issuer), ("ci:shop/app", None)]


def test_each_change_names_the_clone_by_its_unchanging_name(host: ServeHost) -> None:
    host.clones({**MINE, "id": "of-the-pool-1"})
    token = host.token("ci:shop/web")
    for verb in CHANGES:
        host.done(token, of(verb, "mine"))
    assert [call.words[1:] for call in host.calls()] == [
        ("reset", "--json", "of-the-pool-1"),
        ("extend", "--ttl=7200.000s", "--json", "of-the-pool-1"),
        ("destroy", "--json", "of-the-pool-1"),
    ]


@pytest.mark.parametrize("verb", [*CHANGES, GetCloneVerb(name="x")], ids=lambda verb: verb.kind)
def test_anothers_clone_is_as_one_that_is_not_there(host: ServeHost, verb: DestroyCloneVerb) -> None:
    host.clones(MINE, THEIRS)
    for role in (Role.DEVELOPER, Role.VIEWER):
        token = host.token("ci:shop/web", role)
        theirs, nothing = host.refused(token, of(verb, "theirs")), host.refused(token, of(verb, "nothing"))
        assert theirs.code == "unknown-name"
        assert theirs.model_dump_json().replace("theirs", "nothing") == nothing.model_dump_json()
    assert host.calls() == []


def test_an_account_is_the_same_with_and_without_its_kind(host: ServeHost) -> None:
    host.clones(THEIRS)
    host.done(host.token("unix:ann"), DestroyCloneVerb(name="theirs"))
    assert host.refused(host.token("ci:ann"), DestroyCloneVerb(name="theirs")).code == "unknown-name"


@pytest.mark.parametrize("set_name", ["mine", "c1"])
def test_a_name_that_also_names_a_set_of_others_is_refused(host: ServeHost, set_name: str) -> None:
    """`zsnapdb clone destroy` takes the name of a set too."""
    host.clones({**MINE, "id": set_name}, {**THEIRS, "set": set_name})
    assert host.refused(host.token("ci:shop/web"), DestroyCloneVerb(name="mine")).code == "unknown-name"
    assert host.calls() == []


def test_roles_see_and_change_what_they_may(host: ServeHost) -> None:
    host.clones(MINE, THEIRS, {"name": "slot", "owner": "the pool", "waits": True})
    seen = {
        role: [one["name"] for one in host.done(host.token("ci:shop/web", role), ListClonesVerb()).document["clones"]]  # type: ignore[union-attr,index,call-overload]
        for role in Role
    }
    assert seen == {
        Role.VIEWER: ["mine"],
        Role.DEVELOPER: ["mine"],
        Role.OPERATOR: ["mine", "theirs"],
        Role.AUDITOR: ["mine", "theirs"],
    }
    assert host.refused(host.token("ci:shop/web", Role.VIEWER), DestroyCloneVerb(name="mine")).code == "not-allowed"
    assert host.refused(host.token("user:a@b.org", Role.AUDITOR), DestroyCloneVerb(name="theirs")).code == "not-allowed"
    assert host.refused(host.token("user:a@b.org", Role.AUDITOR), new()).code == "not-allowed"
    assert host.calls() == []
    host.done(host.token("user:op@b.org", Role.OPERATOR), DestroyCloneVerb(name="theirs"))
    assert (
        host.refused(host.token("user:op@b.org", Role.OPERATOR), DestroyCloneVerb(name="slot")).code == "unknown-name"
    )


def test_the_helper_says_who_asks_and_within_which_limits(host: ServeHost) -> None:
    for role in Role:
        assert host.done(host.token("ci:shop/web", role, seconds=60), GetSubjectVerb()).document == {
            "subject": "ci:shop/web",
            "role": role.value,
            "expires": (host.now + timedelta(seconds=60)).isoformat(),
            "clones": {"most": 10, "ttl": 7200.0, "longest_lease": 86400.0},
        }


def test_who_only_begins_gets_the_operation_at_once_and_it_goes_on(host: ServeHost) -> None:
    host.let("slow", "60")
    token = host.token("ci:shop/web")
    begun = host.client.begin(HelperRequest(token=token, verb=new()))
    assert isinstance(begun, BegunAnswer)
    asked = GetOperationVerb(id=begun.operation)
    assert isinstance(host.ask(token, asked), PendingAnswer)
    host.let("go", "")
    while isinstance(host.ask(token, asked), PendingAnswer):
        time.sleep(0.05)
    assert host.done(token, asked).document["password"] == "secret of the clone"
    refused = host.client.begin(HelperRequest(token="x", verb=new()))
    assert isinstance(refused, FailureAnswer)
    assert refused.code == "unauthenticated"


def test_bad_tokens_have_one_answer(host: ServeHost) -> None:
    expired, revoked = host.token("ci:a", seconds=60), host.token("ci:b")
    host.pass_time(120)
    host.book.revoke(host.book.tokens()[1].id, host.now)
    answers = {host.refused(token, ListClonesVerb()).model_dump_json() for token in ("", "x", expired, revoked)}
    assert len(answers) == 1
    assert json.loads(answers.pop())["code"] == "unauthenticated"


@pytest.mark.parametrize(
    ("role", "asked", "is_masked"),
    [
        (Role.DEVELOPER, False, True),
        (Role.DEVELOPER, True, True),
        (Role.OPERATOR, False, False),
        (Role.OPERATOR, True, True),
    ],
)
def test_masking_is_turned_off_by_nobody_but_an_operator(
    host: ServeHost, role: Role, asked: bool, is_masked: bool
) -> None:
    host.done(host.token("ci:shop/web", role), new("masked", mask=asked))
    assert ("--mask" in host.calls()[0].words) is is_masked


def test_an_instance_without_masking_is_not_masked_unless_asked(host: ServeHost) -> None:
    token = host.token("ci:shop/web")
    host.done(token, new(name="one"))
    host.done(token, new(name="two", mask=True))
    assert ["--mask" in call.words for call in host.calls()] == [False, True]
    assert host.done(token, ListInstancesVerb()).document["instances"] == [
        {"name": "main", "masked": False, "pool": False, "clones_allowed": True},
        {"name": "masked", "masked": True, "pool": False, "clones_allowed": True},
        {"name": "secret", "masked": False, "pool": False, "clones_allowed": False},
    ]


def test_of_an_instance_without_masking_only_operators_have_clones_unless_it_is_named(host: ServeHost) -> None:
    refused = host.refused(host.token("ci:shop/web"), new("secret", mask=True))
    assert (refused.code, "clones of secret are not masked" in refused.message) == ("not-allowed", True)
    assert host.calls() == []
    host.done(host.token("user:ada@example.org", Role.OPERATOR), new("secret"))
    assert len(host.calls()) == 1


@pytest.mark.parametrize("ttl", ["25h", "0s", "999999999w"])
def test_a_lease_has_a_limit(host: ServeHost, ttl: str) -> None:
    host.clones(MINE)
    token = host.token("ci:shop/web")
    assert host.refused(token, new(name="other", ttl=ttl)).code == "usage"
    assert host.refused(token, ExtendCloneVerb(name="mine", lease=NewLease(ttl=ttl))).code == "usage"
    assert host.calls() == []


def test_twenty_requests_at_once_over_a_quota_of_ten_give_ten(host: ServeHost) -> None:
    token = host.token("ci:shop/web")
    other = host.token("ci:shop/web")
    host.clones({"name": "old", "owner": "ci:shop/web"}, THEIRS)
    with ThreadPoolExecutor(20) as pool:
        answers = list(pool.map(lambda n: host.ask(token if n % 2 else other, new(name=f"c{n}")), range(20)))
    # One is there already.
    assert Counter(one.code if isinstance(one, FailureAnswer) else one.kind for one in answers) == {
        "result": 9,
        "quota": 11,
    }
    assert len(host.calls()) == 9
    refused = next(one for one in answers if isinstance(one, FailureAnswer))
    assert "serve.per_subject is 10" in refused.message
    assert "old" in refused.message
    host.done(token, DestroyCloneVerb(name="old"))
    host.done(token, new(name="again"))


def test_a_clone_that_is_completed_while_clones_are_listed_counts(tmp_path: Path) -> None:
    host = ServeHost(tmp_path, per_subject=1, patience=0.1)
    host.let("slow", "1")
    with host.helper() as desk:
        token, look = host.token("ci:shop/web"), desk.look

        def look_just_before_it_is_there() -> ResultAnswer:
            listed = look()
            desk.operations.settle(20)
            return listed

        assert isinstance(host.ask(token, new(name="first")), PendingAnswer)
        desk.look = look_just_before_it_is_there
        assert host.refused(token, new(name="second")).code == "quota"


def test_a_clone_that_could_not_be_made_takes_no_place(tmp_path: Path) -> None:
    host = ServeHost(tmp_path, per_subject=1)
    host.let("fails", json.dumps({"error": {"code": "server", "message": "no server", "hint": "start it"}}))
    with host.helper():
        token = host.token("ci:shop/web")
        keyed = CreateCloneVerb(wanted=NewClone(instance="main", name="mine"), key="build-7")
        failure = host.refused(token, keyed)
        assert (failure.code, failure.message, failure.hint, failure.exit_code) == (
            "server",
            "no server",
            "start it",
            7,
        )
        host.let("fails", "")
        # What failed is tried again with its key, and what was done is not.
        assert host.done(token, keyed) == host.done(token, keyed)
        assert len(host.calls()) == 2
        assert host.refused(token, new(name="second")).code == "quota"


def test_a_key_makes_one_clone_however_often_it_comes(host: ServeHost) -> None:
    token, other = host.token("ci:shop/web"), host.token("ci:shop/app")
    keyed = CreateCloneVerb(wanted=NewClone(instance="main"), key="build-7")
    with ThreadPoolExecutor(8) as pool:
        answers = set(pool.map(lambda _: host.done(token, keyed).model_dump_json(), range(8)))
    assert len(answers) == 1
    assert len(host.calls()) == 1
    changed = CreateCloneVerb(wanted=NewClone(instance="main", ttl="1h"), key="build-7")
    assert host.refused(token, changed).code == "idempotency-key-reused"
    # The key of another subject is another key.
    host.done(other, keyed)
    assert len(host.calls()) == 2


def test_the_key_of_an_operator_gives_no_unmasked_clone_to_another_role_of_the_subject(host: ServeHost) -> None:
    keyed = CreateCloneVerb(wanted=NewClone(instance="masked"), key="build-7")
    host.done(host.token("ci:shop/web", Role.OPERATOR), keyed)
    assert host.refused(host.token("ci:shop/web"), keyed).code == "idempotency-key-reused"


def test_what_takes_long_goes_on_and_is_found_again(tmp_path: Path) -> None:
    host = ServeHost(tmp_path, patience=0.1)
    host.let("slow", "60")
    with host.helper() as desk:
        token, other = host.token("ci:shop/web"), host.token("ci:shop/app", Role.OPERATOR)
        begun = host.ask(token, new())
        assert isinstance(begun, PendingAnswer)
        asks = GetOperationVerb(id=begun.operation)
        assert host.ask(token, asks) == begun
        unknown = host.refused(other, GetOperationVerb(id="20260101T000000Z-00000000"))
        assert host.refused(other, asks).model_dump_json() == unknown.model_dump_json().replace(
            "20260101T000000Z-00000000", begun.operation
        )
        host.let("go", "")
        desk.operations.settle(20)
        assert host.done(token, asks).document["kind"] == "clone"
    # Another helper finds it in its folder.
    with host.helper():
        assert host.done(token, asks).document["kind"] == "clone"
        host.pass_time(2 * 86400)
        token = host.token("ci:shop/web")
        host.let("slow", "0")
        host.ask(token, new(name="later"))
        assert host.refused(token, asks).code == "unknown-name"


@pytest.mark.parametrize("owner", ["ci:shop/app", "ci:shop/web"])
def test_a_change_that_waits_for_its_turn_is_not_done_to_a_later_clone_of_the_name(tmp_path: Path, owner: str) -> None:
    host = ServeHost(tmp_path, patience=0.1, most_changes=1)
    token = host.token("ci:shop/web")
    host.clones(MINE, {"name": "slow", "owner": "ci:shop/web"})
    host.let("slow", "60")
    with host.helper() as desk:
        assert isinstance(host.ask(token, ResetCloneVerb(name="slow")), PendingAnswer)
        host.waits_for("waits")
        waits = host.ask(token, DestroyCloneVerb(name="mine"))
        assert isinstance(waits, PendingAnswer)
        host.clones({"name": "mine", "owner": owner, "guid": "2"}, {"name": "slow", "owner": "ci:shop/web"})
        host.let("go", "")
        desk.operations.settle(20)
        assert host.refused(token, GetOperationVerb(id=waits.operation)).code == "unknown-name"
    assert [call.words[1] for call in host.calls()] == ["reset"]


def test_one_subject_does_not_take_every_place(tmp_path: Path) -> None:
    host = ServeHost(tmp_path, most_clients=4, patience=3)
    host.let("slow", "3")
    token, other = host.token("ci:shop/web"), host.token("ci:shop/app")
    keyed = CreateCloneVerb(wanted=NewClone(instance="main"), key="build-7")
    with host.helper() as desk, ThreadPoolExecutor(4) as pool:
        desk.turns.most = 3
        answers = pool.map(lambda _: host.ask(token, keyed), range(4))
        refused = next(one for one in answers if isinstance(one, FailureAnswer))
        assert refused.code == "busy"
        assert isinstance(host.ask(other, ListClonesVerb()), ResultAnswer)
    assert len(host.calls()) == 1


def test_a_list_does_not_wait_for_changes_however_long_they_take(tmp_path: Path) -> None:
    host = ServeHost(tmp_path, patience=0.1, most_changes=1)
    host.let("slow", "60")
    with host.helper() as desk:
        token = host.token("ci:shop/web")
        begun = [host.ask(token, new(name=name)) for name in ("first", "second")]
        began = time.monotonic()
        assert host.done(token, ListClonesVerb()).document["clones"] == []
        assert time.monotonic() - began < 30
        assert [isinstance(one, PendingAnswer) for one in begun] == [True, True]
        assert len(host.calls()) <= 1, "the second waits for its turn"
        host.let("go", "")
        desk.operations.settle(20)
        assert len(host.done(token, ListClonesVerb()).document["clones"]) == 2  # type: ignore[arg-type]


def test_what_a_killed_helper_was_doing_counts_as_interrupted(tmp_path: Path) -> None:
    host = ServeHost(tmp_path, patience=0.1)
    host.let("slow", "60")
    with host.helper() as desk:
        token = host.token("ci:shop/web")
        begun = host.ask(token, new())
        assert isinstance(begun, PendingAnswer)
        file = tmp_path / "state" / "operations" / f"{begun.operation}.json"
        as_it_was = file.read_bytes()
        host.let("go", "")
        desk.operations.settle(20)
    file.write_bytes(as_it_was)
    with host.helper():
        assert host.refused(token, GetOperationVerb(id=begun.operation)).code == "interrupted"


def test_what_ended_a_day_ago_is_forgotten_also_if_nobody_asks(tmp_path: Path) -> None:
    host = ServeHost(tmp_path)
    folder = tmp_path / "state" / "operations"
    with host.helper():
        host.done(host.token("ci:shop/web"), new())
        (file,) = folder.glob("*.json")
        as_it_was = file.read_bytes()
        host.pass_time(2 * 86400)
        deadline = time.monotonic() + 20
        while file.exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        assert list(folder.iterdir()) == []
        asks = GetOperationVerb(id=file.stem)
        assert host.refused(host.token("ci:shop/web"), asks).code == "unknown-name"
    # Nor does a helper that starts later keep it, or what a killed one was writing.
    file.write_bytes(as_it_was)
    (folder / ".new-1234").write_bytes(as_it_was)
    Operations(folder, lambda: host.now)
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("role", Role)
def test_an_operation_of_others_is_as_one_that_is_not_there(host: ServeHost, role: Role) -> None:
    host.done(host.token("ci:shop/app"), new())
    (theirs,) = (host.folder / "state" / "operations").glob("*.json")
    token, unknown = host.token("ci:shop/web", role), "20260101T000000Z-00000000"
    answers = [host.refused(token, GetOperationVerb(id=one)).model_dump_json() for one in (theirs.stem, unknown)]
    assert answers[0].replace(theirs.stem, unknown) == answers[1]


def test_a_client_that_goes_away_ends_nothing(host: ServeHost) -> None:
    token = host.token("ci:shop/web")
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(host.socket))
        client.sendall(HelperRequest(token=token, verb=new()).line())
    deadline = time.monotonic() + 20
    while not host.done(token, ListClonesVerb()).document["clones"] and time.monotonic() < deadline:
        time.sleep(0.02)
    assert host.done(token, GetCloneVerb(name="mine"))


@pytest.mark.parametrize(
    "line",
    [
        b"\n",
        b"GET / HTTP/1.1\r\n\r\n",
        b"\0" * 100 + b"\n",
        b'{"token": "TOKEN", "verb": {"kind": "shell"}}\n',
        b'{"token": "TOKEN", "verb": {"kind": "clone.destroy", "name": "--with-foreign-snapshots"}}\n',
        b'{"token": "TOKEN", "verb": {"kind": "clone.destroy", "name": "mine\\u0000"}}\n',
        b'{"token": "TOKEN", "verb": {"kind": "clone.destroy", "name": "mine\\n--json"}}\n',
        b'{"token": "TOKEN", "verb": {"kind": "clone.create", "wanted": {"instance": "main", "owner": "root"}}}\n',
        b'{"token": "TOKEN", "verb": {"kind": "clone.list"}, "subject": "unix:root"}\n',
        b'{"token": "TOKEN", "verb": {"kind": "clone.list"}}\n{"token": "x", "verb": {"kind": "clone.list"}}\n',
        b"[" * 65_000 + b"\n",
        b"x" * (1 << 20) + b"\n",
    ],
    ids=range(12),
)
def test_hostile_lines_run_nothing(host: ServeHost, line: bytes) -> None:
    host.clones(MINE)
    answers = host.send(line.replace(b"TOKEN", host.token("ci:shop/web").encode()))
    assert [answer.get("code") for answer in answers] in (["usage"], [])
    assert host.calls() == []
    host.done(host.token("ci:shop/web"), ListClonesVerb())


def test_a_line_of_64_kib_is_the_longest(host: ServeHost) -> None:
    (answer,) = host.send(b" " * 65_535 + b"\n")
    assert "longer than" not in str(answer["message"])
    (answer,) = host.send(b" " * 65_537)
    assert answer["message"] == "the request is longer than 65536 bytes"


def test_another_account_is_not_answered(tmp_path: Path) -> None:
    host = ServeHost(tmp_path, uids=frozenset({os.geteuid() + 1}))
    with host.helper():
        failure = host.refused(host.token("ci:shop/web"), ListClonesVerb())
    assert failure.code == "not-allowed"
    assert str(os.geteuid()) in failure.message


def test_who_has_no_token_learns_nothing_of_a_broken_host(host: ServeHost, capfd: pytest.CaptureFixture[str]) -> None:
    host.token("ci:shop/web")
    host.book.file.write_text("{")
    failure = host.refused("x", ListClonesVerb())
    assert (failure.code, failure.message) == ("internal", "the tokens cannot be read")
    assert str(host.book.file) in capfd.readouterr().err


def test_a_full_disk_begins_nothing_and_is_an_answer(host: ServeHost, capfd: pytest.CaptureFixture[str]) -> None:
    token = host.token("ci:shop/web")
    folder = host.folder / "state" / "operations"
    folder.rename(folder.with_name("elsewhere"))
    assert host.refused(token, new()).code == "internal"
    assert "Traceback" in capfd.readouterr().err
    assert host.calls() == []
    folder.with_name("elsewhere").rename(folder)


def test_the_socket_is_for_root_and_one_group(host: ServeHost) -> None:
    assert host.socket.stat().st_mode & 0o777 == 0o660
    assert host.socket.parent.stat().st_mode & 0o777 == 0o750


def test_a_slow_client_loses_its_place(tmp_path: Path) -> None:
    host = ServeHost(tmp_path, seconds=0.3, most_clients=1)
    with host.helper():
        token = host.token("ci:shop/web")
        with socket.socket(socket.AF_UNIX) as slow:
            slow.connect(str(host.socket))
            slow.settimeout(20)
            began = time.monotonic()
            ended = threading.Event()

            def drip() -> None:
                while not ended.wait(0.05):
                    try:
                        slow.sendall(b" ")
                    except OSError:
                        return

            dripping = threading.Thread(target=drip)
            dripping.start()
            try:
                # A byte now and then does not lengthen its time.
                with pytest.raises((ConnectionError, EOFError)):
                    _read_end(slow)
            finally:
                ended.set()
                dripping.join()
        assert time.monotonic() - began < 10
        # Its thread gives the place back after the connection ended.
        while not isinstance(host.ask(token, ListClonesVerb()), ResultAnswer):
            assert time.monotonic() - began < 20


def _read_end(client: socket.socket) -> None:
    if client.recv(1) == b"":
        raise EOFError


def test_one_client_too_many_is_told_so(tmp_path: Path) -> None:
    host = ServeHost(tmp_path, most_clients=2)
    with host.helper():
        first, second = (socket.socket(socket.AF_UNIX) for _ in range(2))
        with first, second:
            for client in (first, second):
                client.connect(str(host.socket))
            assert host.refused(host.token("ci:shop/web"), ListClonesVerb()).code == "busy"


def test_no_helper_is_an_answer_too(tmp_path: Path) -> None:
    host = ServeHost(tmp_path)
    assert host.refused("x", ListClonesVerb()).code == "unreachable"


def test_verb_with_a_guid_reaches_that_clone_only(tmp_path: Path) -> None:
    host = ServeHost(tmp_path)
    token = host.token("ci:shop/web")
    host.clones({**MINE, "guid": "4711"})
    with host.helper():
        missing = host.refused(token, ResetCloneVerb(name="nothing")).message
        for wrong in ("4712", "0"):
            said = host.refused(token, ResetCloneVerb(name="mine", guid=wrong)).message
            assert said.replace("mine", "nothing") == missing
        assert host.calls() == []
        host.done(token, ResetCloneVerb(name="mine", guid="4711"))
    (call,) = host.calls()
    assert '"guid":"4711"' in call.environment["ZSNAPDB_MEANT_CLONE"]


def test_request_that_drips_ends_at_the_limit(tmp_path: Path) -> None:
    host, stop = ServeHost(tmp_path), threading.Event()
    client, sender = socket.socketpair()
    with host.helper() as desk, client, sender:
        server = HelperServer(client, desk, (), seconds=0.2)

        def drip() -> None:
            with contextlib.suppress(OSError):
                while not stop.wait(0.0002):
                    sender.sendall(b"x")

        thread = threading.Thread(target=drip)
        thread.start()
        try:
            with pytest.raises(TimeoutError):
                server._line(client)
        finally:
            stop.set()
            thread.join()
