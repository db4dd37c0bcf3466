"""The helper on a real socket: every verb of every role, what is read of instances, commits, and cancelling."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from tests.unit.serve.test_roles import LOGINS, MAY, OPERATIONS
from tests.unit.support.serve_host import ServeHost
from zsnapdb.serve.clone_documents import OwnedCommit
from zsnapdb.serve.helper_messages import FailureAnswer, PendingAnswer, ResultAnswer, Verb, status_of
from zsnapdb.serve.roles import CloneOwnership, Role, VerbKind
from zsnapdb.verbs.requests import (
    BeatCloneVerb,
    CancelOperationVerb,
    ChosenBranch,
    CloneLogsVerb,
    CommitCloneVerb,
    CreateBranchVerb,
    CreateCloneVerb,
    DeleteBranchVerb,
    DestroyCloneVerb,
    DiffBranchesVerb,
    ExtendCloneVerb,
    GetCloneVerb,
    GetLoginVerb,
    GetOperationVerb,
    GetSubjectVerb,
    InstancePointsVerb,
    ListBranchesVerb,
    ListClonesVerb,
    ListDrillsVerb,
    ListEvidenceVerb,
    ListFleetVerb,
    ListInstancesVerb,
    ListObjectivesVerb,
    LogBranchVerb,
    NewBranch,
    NewClone,
    NewCommit,
    NewLoginVerb,
    NewProtection,
    ProtectCloneVerb,
    ResetCloneVerb,
    StartCloneVerb,
    StopCloneVerb,
    SwitchBranchVerb,
    TwoStates,
    UnprotectCloneVerb,
    WatchOperationVerb,
)

SUBJECT, ANN = "ci:shop/web", "unix:ann"
MINE = {"name": "mine", "owner": SUBJECT}
THEIRS = {"name": "theirs", "owner": "ann"}
FROM_MAIN, X = {"branch": "x", "from": "main"}, ChosenBranch(branch="x")
NEWEST, OLDER = "20260102T000000Z-0002", "20260101T000000Z-0001"
STATUS = {
    "kind": "status",
    "instance": "main",
    "at": "2026-01-02T01:00:00+00:00",
    "recoverable": [
        {"from": "2026-01-01 00:00:00 UTC", "to": "2026-01-02 00:59:00 UTC", "backups": [OLDER, NEWEST], "ends": {}}
    ],
    "gaps": [],
    "damaged": [{"message": "/etc/secret place"}],
    "verdict": "broken",
    "repository": "secret place",
    "objectives": [
        {
            "objective": "backup_age",
            "subject": "main",
            "verdict": "broken",
            "reason": "the newest is old",
            "hint": "secret place",
            "since": None,
            "seconds": 7200.0,
            "limit_seconds": 3600.0,
        }
    ],
}
SETS = {
    "kind": "local-sets",
    "sets": [{"backup_id": NEWEST, "state": "stored", "used": 7, "snapshots": {"data": "secret place"}}],
}
DRILL = {
    "drill_id": "d1",
    "backup_id": OLDER,
    "requested": "latest",
    "started": "a",
    "finished": "b",
    "outcome": "passed",
    "seconds": 4.5,
    "host": "secret place",
    "checks": [{"what": "secret place"}],
}
EVIDENCE = {
    "kind": "report-records",
    "instance": "main",
    "repository": "store",
    "records": [{"number": 1}],
    "not_believed": [],
    "next": 1,
}


def new(key: str | None = None, **wanted: str) -> CreateCloneVerb:
    return CreateCloneVerb(wanted=NewClone.model_validate({"instance": "main", **wanted}), key=key)


def protect(name: str, time: str = "2h") -> ProtectCloneVerb:
    return ProtectCloneVerb(name=name, protection=NewProtection.model_validate({"for": time}))


def tells(host: ServeHost) -> None:
    """Let each command that changes nothing tell something; monitoring is not content with all of it."""
    host.prints("status", {**STATUS, "instances": [{"instance": "main", "status": STATUS, "error": None}]}, 2)
    host.prints("list", SETS)
    host.prints("drills", {"kind": "drills", "drills": [DRILL]})
    host.prints("report", EVIDENCE)
    host.fleet = lambda _asked, _role: ResultAnswer(document={"kind": "fleet-status"})
    for verb in ("list", "log", "create", "switch", "diff", "delete"):
        host.prints(f"branch-{verb}", {"kind": "clone-branches", "clone": "mine", "verb": verb})
    host.prints("logs", {"kind": "clone-logs", "clone": "mine", "lines": ["[Note] a\u001b[2J"]})


def began(host: ServeHost, subject: str) -> str:
    """Return the id of an operation of the subject that has ended."""
    with suppress(AssertionError):
        host.done(host.token(subject), ResetCloneVerb(name="mine" if subject == SUBJECT else "theirs"))
    records = [json.loads(file.read_text()) for file in (host.folder / "state" / "operations").glob("*.json")]
    return str(next(one["id"] for one in records if one["subject"] == subject))


def about(name: str, operation: str) -> Mapping[VerbKind, Verb]:
    """Return each verb that is about a clone or an operation."""
    return {
        VerbKind.CLONE_GET: GetCloneVerb(name=name),
        VerbKind.CLONE_LOGS: CloneLogsVerb(name=name),
        VerbKind.CLONE_LOGIN: GetLoginVerb(name=name),
        VerbKind.CLONE_NEW_LOGIN: NewLoginVerb(name=name),
        VerbKind.CLONE_BEAT: BeatCloneVerb(name=name),
        VerbKind.CLONE_RESET: ResetCloneVerb(name=name),
        VerbKind.CLONE_START: StartCloneVerb(name=name),
        VerbKind.CLONE_STOP: StopCloneVerb(name=name),
        VerbKind.CLONE_EXTEND: ExtendCloneVerb(name=name),
        VerbKind.CLONE_PROTECT: protect(name),
        VerbKind.CLONE_UNPROTECT: UnprotectCloneVerb(name=name),
        VerbKind.CLONE_COMMIT: CommitCloneVerb(name=name),
        VerbKind.BRANCH_LIST: ListBranchesVerb(name=name),
        VerbKind.BRANCH_LOG: LogBranchVerb(name=name, state="main"),
        VerbKind.BRANCH_CREATE: CreateBranchVerb(name=name, wanted=NewBranch.model_validate(FROM_MAIN)),
        VerbKind.BRANCH_SWITCH: SwitchBranchVerb(name=name, chosen=X),
        VerbKind.BRANCH_DIFF: DiffBranchesVerb(name=name, states=TwoStates(before="main", after="x")),
        VerbKind.BRANCH_DELETE: DeleteBranchVerb(name=name, chosen=X),
        VerbKind.OPERATION_GET: GetOperationVerb(id=operation),
        VerbKind.OPERATION_CANCEL: CancelOperationVerb(id=operation),
        VerbKind.OPERATION_WATCH: WatchOperationVerb(id=operation),
        VerbKind.CLONE_DESTROY: DestroyCloneVerb(name=name),
    }


ABOUT_NOTHING: Mapping[VerbKind, Verb] = {
    VerbKind.SUBJECT_GET: GetSubjectVerb(),
    VerbKind.INSTANCE_LIST: ListInstancesVerb(),
    VerbKind.INSTANCE_POINTS: InstancePointsVerb(name="main"),
    VerbKind.OBJECTIVE_LIST: ListObjectivesVerb(),
    VerbKind.DRILL_LIST: ListDrillsVerb(instance="main"),
    VerbKind.EVIDENCE_LIST: ListEvidenceVerb(instance="main"),
    VerbKind.FLEET_LIST: ListFleetVerb(),
    VerbKind.CLONE_LIST: ListClonesVerb(),
    VerbKind.CLONE_CREATE: new(name="another"),
}


def outcome(answer: object) -> str:
    """Return what became of a request, in the words of the table."""
    if isinstance(answer, FailureAnswer):
        # What is cancelled after its end was found, and may be cancelled.
        known = {"unknown-name": "hidden", "not-allowed": "forbidden", "preflight": "allowed"}
        return known.get(answer.code, answer.code)
    assert isinstance(answer, ResultAnswer), answer
    return "allowed"


@pytest.mark.parametrize("role", Role)
@pytest.mark.parametrize("belonging", CloneOwnership)
def test_every_verb_of_every_role_gives_exactly_the_table(
    host: ServeHost, role: Role, belonging: CloneOwnership
) -> None:
    tells(host)
    host.clones(MINE, THEIRS)
    operation = began(host, ANN if belonging is CloneOwnership.OTHERS else SUBJECT)
    verbs = ABOUT_NOTHING
    if belonging is not CloneOwnership.NOBODY:
        verbs = about("mine" if belonging is CloneOwnership.OWN else "theirs", operation)
    token = host.token(SUBJECT, role)
    for kind, verb in verbs.items():
        foreign = belonging is CloneOwnership.OTHERS
        if foreign and (kind in OPERATIONS or role in (Role.VIEWER, Role.DEVELOPER)):
            expected = "hidden"
        elif foreign and kind in LOGINS:
            expected = "forbidden"
        else:
            expected = "allowed" if role in MAY[kind] else "forbidden"
        assert outcome(host.ask(token, verb)) == expected, kind
    if belonging is CloneOwnership.OWN:
        assert {*verbs, *ABOUT_NOTHING} == set(VerbKind)


def test_points_are_times_and_sets_and_tell_no_more(host: ServeHost) -> None:
    tells(host)
    told = host.done(host.token(SUBJECT, Role.VIEWER), InstancePointsVerb(name="main")).document
    assert told == {
        "instance": "main",
        "at": "2026-01-02T01:00:00+00:00",
        "recoverable": [
            {"from": "2026-01-01 00:00:00 UTC", "to": "2026-01-02 00:59:00 UTC", "backups": [OLDER, NEWEST]}
        ],
        "gaps": [],
        "sets": [{"id": NEWEST, "state": "stored"}],
    }
    assert [call.words for call in host.calls()] == [
        ("list", "main", "--local", "--json"),
        ("status", "main", "--json"),
    ]
    assert host.refused(host.token(SUBJECT), InstancePointsVerb(name="nothing")).code == "usage"


def test_what_is_read_of_instances_names_no_place(host: ServeHost) -> None:
    tells(host)
    token = host.token("user:a@b.org", Role.AUDITOR)
    objectives = host.done(token, ListObjectivesVerb()).document
    drills = host.done(token, ListDrillsVerb(instance="main", limit=7)).document
    page = host.done(token, ListEvidenceVerb(instance="main", after=3, limit=5)).document
    assert "secret place" not in json.dumps([objectives, drills, page])
    assert objectives["instances"][0]["verdict"] == "broken"  # type: ignore[index,call-overload]
    assert drills["drills"][0]["seconds"] == 4.5  # type: ignore[index,call-overload]
    assert (page["records"], page["next"]) == ([{"number": 1}], 1)
    assert [call.words for call in host.calls()] == [
        ("status", "--all", "--json"),
        ("drills", "main", "--most=7", "--json"),
        ("report", "records", "main", "--after=3", "--most=5", "--json"),
    ]


def test_an_instance_whose_state_is_not_known_has_the_code_of_its_error_alone(host: ServeHost) -> None:
    state = {"instance": "main", "status": None, "error": {"code": "unreachable", "message": "secret place"}}
    host.prints("status", {"kind": "status-all", "instances": [state]}, 6)
    told = host.done(host.token(SUBJECT), ListObjectivesVerb()).document
    assert told == {"instances": [{"instance": "main", "verdict": None, "objectives": [], "error": "unreachable"}]}


def test_a_command_that_cannot_tell_is_an_error_of_its_class(host: ServeHost) -> None:
    error = {"code": "unreachable", "message": "the store does not answer", "hint": "try again"}
    host.prints("drills", {"kind": "error", "error": error}, 6)
    failure = host.refused(host.token(SUBJECT), ListDrillsVerb(instance="main"))
    assert (failure.code, failure.exit_code) == ("unreachable", 6)
    # The command did not say what its words name.
    assert "store does not answer" not in failure.message
    host.prints("drills", {"kind": "another"})
    assert host.refused(host.token(SUBJECT), ListDrillsVerb(instance="main")).code == "consistency"


def test_what_is_read_waits_for_no_change(tmp_path: Path) -> None:
    host = ServeHost(tmp_path, patience=0.1, most_changes=1)
    tells(host)
    host.clones(MINE)
    with host.helper() as desk:
        token = host.token(SUBJECT)
        host.let("slow", "60")
        begun = host.ask(token, ResetCloneVerb(name="mine"))
        assert isinstance(begun, PendingAnswer)
        host.waits_for("waits")
        host.let("slow", "")
        assert host.done(token, CloneLogsVerb(name="mine")).document == {
            "clone": "mine",
            "lines": ["[Note] a\u001b[2J"],
        }
        assert host.ask(token, GetOperationVerb(id=begun.operation)) == begun
        host.let("go", "")
        desk.operations.settle(20)


def test_a_protection_has_the_limit_of_a_lease(host: ServeHost) -> None:
    host.clones(MINE)
    token = host.token(SUBJECT)
    for time_asked in ("25h", "0s"):
        assert host.refused(token, protect("mine", time_asked)).code == "usage"
    host.done(token, protect("mine", "1d"))
    host.done(token, UnprotectCloneVerb(name="mine"))
    assert [call.words[2] for call in host.calls()] == ["--for=86400.000s", "--for=0s"]


def test_commits_have_a_limit_that_many_requests_at_once_keep(tmp_path: Path) -> None:
    host = ServeHost(tmp_path, patience=0.1)
    host.clones(MINE)
    host.commits += [OwnedCommit("20260101T000000Z-aaaa", SUBJECT), OwnedCommit("20260101T000000Z-bbbb", "ann")]
    host.let("slow", "60")
    token = host.token(SUBJECT)
    with host.helper(), ThreadPoolExecutor(6) as pool:
        asked = [CommitCloneVerb(name="mine", commit=NewCommit(message=f"no {n}")) for n in range(6)]
        answers = list(pool.map(lambda verb: host.ask(token, verb), asked))
    refused = [one for one in answers if isinstance(one, FailureAnswer)]
    assert (len(refused), {one.code for one in refused}) == (4, {"quota"})
    assert "serve.commits_per_subject is 3" in refused[0].message


def test_a_branch_and_a_switch_take_the_place_of_a_commit_unless_they_make_none(host: ServeHost) -> None:
    tells(host)
    host.clones(MINE)
    host.commits += [OwnedCommit(f"20260101T000000Z-{n:04x}", SUBJECT) for n in range(3)]
    token = host.token(SUBJECT)
    for verb in (
        CreateBranchVerb(name="mine", wanted=NewBranch(branch="x")),
        SwitchBranchVerb(name="mine", chosen=X),
    ):
        assert "serve.commits_per_subject is 3" in host.refused(token, verb).message
    assert host.calls() == []
    host.done(token, CreateBranchVerb(name="mine", wanted=NewBranch.model_validate(FROM_MAIN)))
    host.done(token, DeleteBranchVerb(name="mine", chosen=X))


def test_a_comparison_counts_as_the_two_servers_that_it_needs(tmp_path: Path) -> None:
    host = ServeHost(tmp_path, patience=0.1, more="running_per_subject = 4\ncomparisons_per_subject = 9")
    tells(host)
    host.clones({**MINE, "pid": 7}, THEIRS)
    diff = DiffBranchesVerb(name="mine", states=TwoStates(before="main", after="x"))
    host.let("slow", "60")
    with host.helper() as desk:
        token = host.token(SUBJECT)
        begun = host.ask(token, diff)
        assert isinstance(begun, PendingAnswer)
        refused = host.refused(token, diff)
        assert (refused.code, "has 0 running servers" in refused.message) == ("quota", True)
        host.waits_for("waits")
        desk.patience = 20
        host.done(token, CancelOperationVerb(id=begun.operation))
        host.let("slow", "")
        assert host.done(token, diff).document["verb"] == "diff"


def test_a_comparison_that_takes_too_long_is_stopped_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = ServeHost(tmp_path)
    tells(host)
    host.clones(MINE)
    host.let("slow", "60")
    monkeypatch.setattr("zsnapdb.serve.helper_request_handler._DIFFERENCE_SECONDS", 2.0)
    with host.helper():
        diff = DiffBranchesVerb(name="mine", states=TwoStates(before="main", after="x"))
        failure = host.refused(host.token(SUBJECT), diff)
    assert (failure.code, status_of(failure.code), "took too long" in failure.message) == ("command-timeout", 504, True)
    assert (tmp_path / "fake" / "undone").exists(), "it could undo what it began"


@pytest.mark.parametrize("verb", [CommitCloneVerb(name="mine", key="7"), DestroyCloneVerb(name="mine", key="7")])
def test_a_change_with_a_key_is_done_once_and_answered_again_also_if_the_clone_is_gone(
    host: ServeHost, verb: CommitCloneVerb | DestroyCloneVerb
) -> None:
    host.clones(MINE)
    token = host.token(SUBJECT)
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda _: host.ask(token, CommitCloneVerb(name="mine", key="first")), range(4)))
    assert len({one.model_dump_json() for one in answers}) == 1
    assert host.done(token, verb) == host.done(token, verb)
    assert [call.words[1] for call in host.calls()] == ["commit", verb.kind.removeprefix("clone.")]
    for other in (ResetCloneVerb(name="mine", key="7"), CommitCloneVerb(name="other", key="7"), new(key="7")):
        assert host.refused(token, other).code == "idempotency-key-reused"
    assert host.refused(host.token(SUBJECT, Role.VIEWER), verb).code == "not-allowed"
    assert host.refused(host.token(ANN), verb).code == "unknown-name"


def test_commits_of_operators_under_way_use_places_of_the_clone_s_owner(tmp_path: Path) -> None:
    host = ServeHost(tmp_path, patience=0.1)
    host.clones(MINE, THEIRS)
    host.let("slow", "60")
    with host.helper():
        tokens = host.token(SUBJECT), host.token("user:op@b.org", Role.OPERATOR)
        for number in range(3):
            assert isinstance(host.ask(tokens[number % 2], CommitCloneVerb(name="mine")), PendingAnswer)
        for token in tokens:
            assert host.refused(token, CommitCloneVerb(name="mine")).code == "quota"
        assert isinstance(host.ask(tokens[1], CommitCloneVerb(name="theirs")), PendingAnswer), "another owner's"


def test_a_command_sees_commits_of_its_subject_alone_but_for_operators(host: ServeHost) -> None:
    """The command looks for the source, so that another's takes as long as one that is not there."""
    host.done(host.token(SUBJECT), new(**{"from": NEWEST}))
    host.done(host.token("user:op@b.org", Role.OPERATOR), new(**{"from": NEWEST}))
    assert [call.environment.get("ZSNAPDB_AUDIENCE") for call in host.calls()] == [SUBJECT, None]


def test_what_an_operator_began_is_not_told_to_a_lesser_token_of_the_same_subject(host: ServeHost) -> None:
    operator, developer = host.token(SUBJECT, Role.OPERATOR), host.token(SUBJECT)
    keyed = CreateCloneVerb(wanted=NewClone(instance="main", name="mine"), key="build-7")
    assert host.done(operator, keyed).document["password"] == "secret of the clone"
    (record,) = (host.folder / "state" / "operations").glob("*.json")
    for verb in (GetOperationVerb(id=record.stem), CancelOperationVerb(id=record.stem)):
        assert host.refused(developer, verb).code == "unknown-name"
    assert host.refused(developer, keyed).code == "idempotency-key-reused"
    assert host.done(operator, GetOperationVerb(id=record.stem)).document["kind"] == "clone"
    host.done(developer, ResetCloneVerb(name="mine"))
    (later,) = set((host.folder / "state" / "operations").glob("*.json")) - {record}
    for token in (operator, developer):
        assert host.done(token, GetOperationVerb(id=later.stem)).document["kind"] == "clone-reset"


def test_what_is_cancelled_is_undone_by_its_command_and_its_group_ends(tmp_path: Path) -> None:
    host = ServeHost(tmp_path, per_subject=1, patience=0.1)
    host.let("slow", "60")
    host.let("helps", "yes")
    with host.helper() as desk:
        token = host.token(SUBJECT)
        keyed = CreateCloneVerb(wanted=NewClone(instance="main", name="mine"), key="build-7")
        others = _children()
        begun = host.ask(token, keyed)
        assert isinstance(begun, PendingAnswer)
        host.waits_for("waits")
        assert host.refused(host.token(ANN), CancelOperationVerb(id=begun.operation)).code == "unknown-name"
        (child,) = _children() - others
        assert len(_of_group(child)) == 2
        desk.patience = 20
        told = host.done(token, CancelOperationVerb(id=begun.operation)).document
        assert told == {"operation": begun.operation, "state": "cancelled"}
        assert (tmp_path / "fake" / "undone").exists()
        deadline = time.monotonic() + 20
        while _of_group(child):
            assert time.monotonic() < deadline
            time.sleep(0.02)
        ended = host.refused(token, GetOperationVerb(id=begun.operation))
        assert (ended.code, ended.exit_code) == ("cancelled", 130)
        assert host.done(token, CancelOperationVerb(id=begun.operation)).document == told, "a second time too"
        # It takes no place, and its key may be tried again.
        host.let("slow", "")
        assert host.done(token, keyed).document["kind"] == "clone"


def test_what_waits_for_its_turn_is_cancelled_before_it_begins(tmp_path: Path) -> None:
    host = ServeHost(tmp_path, patience=0.1, most_changes=1)
    host.clones(MINE)
    host.let("slow", "60")
    with host.helper() as desk:
        token = host.token(SUBJECT)
        assert isinstance(host.ask(token, ResetCloneVerb(name="mine")), PendingAnswer)
        host.waits_for("waits")
        waits = host.ask(token, DestroyCloneVerb(name="mine"))
        assert isinstance(waits, PendingAnswer)
        desk.patience = 20
        began_at = time.monotonic()
        assert host.done(token, CancelOperationVerb(id=waits.operation)).document["state"] == "cancelled"
        assert time.monotonic() - began_at < 30
        host.let("go", "")
        desk.operations.settle(20)
    assert [call.words[1] for call in host.calls()] == ["reset"]


def test_what_was_done_when_the_signal_came_is_done(tmp_path: Path) -> None:
    host = ServeHost(tmp_path, patience=0.1)
    host.let("slow", "1")
    host.let("deaf", "yes")
    with host.helper() as desk:
        token = host.token(SUBJECT)
        begun = host.ask(token, new(name="mine"))
        assert isinstance(begun, PendingAnswer)
        host.waits_for("waits")
        desk.patience = 20
        failure = host.refused(token, CancelOperationVerb(id=begun.operation))
        assert (failure.code, "has ended" in failure.message) == ("preflight", True)
        assert host.done(token, GetOperationVerb(id=begun.operation)).document["kind"] == "clone"


def _processes() -> dict[int, tuple[str, int, int]]:
    """Return state, parent and group of each process (proc_pid_stat(5))."""
    found = {}
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            state, parent, group = (process / "stat").read_text().rpartition(")")[2].split()[:3]
            found[int(process.name)] = (state, int(parent), int(group))
    return found


def _children() -> set[int]:
    """Return the children of this process."""
    return {pid for pid, (_, parent, _) in _processes().items() if parent == os.getpid()}


def _of_group(leader: int) -> list[int]:
    return [pid for pid, (state, _, group) in _processes().items() if group == leader and state != "Z"]


@pytest.mark.parametrize(
    ("instance", "masked", "lesser"),
    [("masked", False, False), ("masked", True, True), ("secret", False, False), ("main", False, True)],
)
def test_log_and_difference_of_a_clone_that_is_not_masked_are_for_no_lesser_token_of_its_owner(
    host: ServeHost, instance: str, masked: bool, lesser: bool
) -> None:
    tells(host)
    host.clones({"name": "mine", "owner": SUBJECT, "instance": instance, "masked": masked})
    diff = DiffBranchesVerb(name="mine", states=TwoStates(before="main", after="x"))
    verbs: tuple[Verb, ...] = (CloneLogsVerb(name="mine"), diff)
    for number, verb in enumerate(verbs, 1):
        host.done(host.token(SUBJECT, Role.OPERATOR), verb)
        answer = host.ask(host.token(SUBJECT), verb)
        if lesser:
            assert isinstance(answer, ResultAnswer)
        else:
            assert isinstance(answer, FailureAnswer)
            assert (answer.code, "is not masked" in answer.message) == ("not-allowed", True)
        assert len(host.calls()) == number * (1 + lesser)
