"""The templates for GitHub and GitLab keep one comment on a request and remove its clone; both are simulated."""

from __future__ import annotations

import importlib
import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.unit.support.command_line import CHECKOUT
from tests.unit.support.request_apis import CLONES, GITHUB, GITLAB, JOB, SECRETS, RequestApis, request_apis

SCRIPT = CHECKOUT / "hooks" / "request-comment"
MARK = "<!-- zsnapdb migration-check -->\n"
Answer = subprocess.CompletedProcess[str]


@pytest.fixture
def apis() -> Iterator[RequestApis]:
    with request_apis() as served:
        yield served


@pytest.fixture(params=["github", "gitlab"])
def place(request: pytest.FixtureRequest, apis: RequestApis) -> Mapping[str, str]:
    """The variables that a job of the CI has."""
    return variables(apis, request.param)


def variables(apis: RequestApis, name: str) -> Mapping[str, str]:
    if name == "gitlab":
        return {
            "GITLAB_CI": "true",
            "CI_API_V4_URL": f"{apis.root}/gitlab",
            "CI_PROJECT_ID": "42",
            "CI_MERGE_REQUEST_IID": "7",
            "GITLAB_TOKEN": GITLAB,
        }
    return {
        "GITHUB_API_URL": apis.root,
        "GITHUB_REPOSITORY": "shop/web",
        "REQUEST_NUMBER": "7",
        "GITHUB_TOKEN": GITHUB,
    }


def run(folder: Path, environment: Mapping[str, str], *words: str) -> Answer:
    done = subprocess.run(
        [sys.executable, "-I", str(SCRIPT), *words],
        cwd=folder,
        env={"PATH": os.environ["PATH"], "no_proxy": "*", **environment},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert not [secret for secret in SECRETS if secret in done.stdout + done.stderr], "a token is in the output"
    return done


def post(folder: Path, environment: Mapping[str, str], text: str = "### Good") -> Answer:
    (folder / "migration.md").write_text(text)
    return run(folder, environment, "post", "migration.md")


def own(environment: Mapping[str, str]) -> str:
    return "project_42_bot" if "GITLAB_CI" in environment else "github-actions[bot]"


def test_a_second_run_updates_the_comment_of_the_first(
    apis: RequestApis, place: Mapping[str, str], tmp_path: Path
) -> None:
    for number in range(130):
        apis.say("somebody", f"comment {number}")
    assert post(tmp_path, place, "### Bad").returncode == 0
    assert apis.bodies(own(place)) == [f"{MARK}### Bad"]
    assert post(tmp_path, place, "### Good").stdout == "the comment is updated\n"
    assert apis.bodies(own(place)) == [f"{MARK}### Good"], "it is found behind the first page"


def test_a_comment_with_the_mark_that_somebody_else_wrote_is_left_alone(
    apis: RequestApis, place: Mapping[str, str], tmp_path: Path
) -> None:
    """Who wrote it could change it afterwards, and say that a bad migration is good."""
    apis.say("somebody", f"{MARK}mine")
    assert post(tmp_path, place).returncode == 0
    assert apis.bodies("somebody") == [f"{MARK}mine"]
    assert apis.bodies(own(place)) == [f"{MARK}### Good"]


def test_a_long_answer_is_cut_to_what_the_services_take(
    apis: RequestApis, place: Mapping[str, str], tmp_path: Path
) -> None:
    assert post(tmp_path, place, "x" * 100_000).returncode == 0
    (body,) = apis.bodies(own(place))
    assert len(body) < 65_536
    assert body.endswith("(cut)")


@pytest.mark.parametrize(
    ("method", "status", "code"),
    [("GET", 403, 1), ("POST", 422, 1), ("GET", 301, 1), ("POST", 307, 1), ("POST", 429, 75), ("GET", 503, 75)],
)
def test_a_refusal_is_told_from_a_service_that_is_down_by_the_exit_status(
    apis: RequestApis, place: Mapping[str, str], tmp_path: Path, method: str, status: int, code: int
) -> None:
    apis.answers[method] = status, None
    done = post(tmp_path, place)
    assert (done.returncode, done.stdout) == (code, "")
    assert re.fullmatch(rf"request-comment: {method} http://\S+: {status}: no, .*\*\*\*.*\n", done.stderr)
    assert "\x1b" not in done.stderr
    assert not [asked for asked in apis.asked if "elsewhere" in asked], "no token follows a redirection"
    assert apis.bodies(own(place)) == []


def test_a_service_that_nobody_serves_is_to_be_asked_again(tmp_path: Path, apis: RequestApis) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
    done = post(tmp_path, {**variables(apis, "github"), "GITHUB_API_URL": f"http://127.0.0.1:{port}"})
    assert (done.returncode, "refused" in done.stderr) == (75, True), done.stderr


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"GITHUB_TOKEN": ""}, "GITHUB_TOKEN is not set"),
        ({"REQUEST_NUMBER": "7/../../../user"}, "REQUEST_NUMBER is no number"),
        ({"GITHUB_API_URL": "http://api.example.net"}, "is not https"),
        ({"GITHUB_API_URL": "file:///etc"}, "is not https"),
    ],
)
def test_a_wrong_environment_is_said_and_nothing_is_asked(
    apis: RequestApis, tmp_path: Path, changes: Mapping[str, str], said: str
) -> None:
    done = post(tmp_path, {**variables(apis, "github"), **changes})
    assert (done.returncode, said in done.stderr, apis.asked) == (2, True, []), done.stderr


def test_a_wrong_call_is_said(apis: RequestApis, tmp_path: Path) -> None:
    assert post(tmp_path, variables(apis, "github"), " \n").returncode == 2, "an empty answer is no comment"
    assert run(tmp_path, {}, "post", "nothing.md").returncode == 2
    assert run(tmp_path, {}, "publish", "x").returncode == 2


def test_an_answer_of_another_form_is_refused(apis: RequestApis, place: Mapping[str, str], tmp_path: Path) -> None:
    apis.answers["GET"] = 200, {"message": "a page"}
    assert post(tmp_path, place).returncode == 1


def test_the_clone_of_a_closed_request_goes_once_and_its_absence_is_good(apis: RequestApis, tmp_path: Path) -> None:
    apis.clones = {"web-pr-7", "web-pr-8"}
    given = {"ZSNAPDB_URL": apis.root, "ZSNAPDB_TOKEN": CLONES}
    assert run(tmp_path, given, "remove", "web-pr-7").stdout == "clone web-pr-7 is destroyed\n"
    assert run(tmp_path, given, "remove", "web-pr-7").stdout == "there is no clone web-pr-7\n"
    assert apis.clones == {"web-pr-8"}
    assert run(tmp_path, given, "remove", "../operations/x").returncode == 0
    assert apis.asked[-1] == "DELETE /api/v1/clones/..%2Foperations%2Fx"
    refused = run(tmp_path, {**given, "ZSNAPDB_TOKEN": JOB}, "remove", "web-pr-8")
    assert (refused.returncode, "401: no such token" in refused.stderr) == (1, True)
    assert run(tmp_path, {"ZSNAPDB_URL": apis.root}, "remove", "web-pr-8").returncode == 2


def steps(name: str, apis: RequestApis) -> tuple[list[str], list[str], Mapping[str, str]]:
    """Return the lines of the job that checks and of the one that removes, and their variables."""
    yaml: Any = importlib.import_module("yaml")
    document = yaml.safe_load((CHECKOUT / "configs" / "ci" / f"{name}-migration.yml").read_text())
    if name == "gitlab":
        remove = document["remove-clone"]
        assert remove["environment"] == {"name": document["migration"]["environment"]["name"], "action": "stop"}
        assert document["migration"]["environment"]["on_stop"] == "remove-clone"
        more = {"ZSNAPDB_TOKEN": CLONES}
        return ["\n".join(document["migration"]["script"])], ["\n".join(remove["script"])], more
    check, remove = document["jobs"]["check"], document["jobs"]["remove"]
    assert remove["permissions"] == {"id-token": "write"}
    assert {"opened", "synchronize", "closed"} <= set(document[True]["pull_request"]["types"])
    assert remove["env"]["CLONE"] == "web-pr-${{ github.event.number }}"
    more = {
        "CLONE": "web-pr-7",
        "ACTIONS_ID_TOKEN_REQUEST_URL": f"{apis.root}/id-token?api-version=2.0",
        "ACTIONS_ID_TOKEN_REQUEST_TOKEN": JOB,
    }
    return [one["run"] for one in check["steps"] if "run" in one], [one["run"] for one in remove["steps"]], more


@pytest.mark.parametrize(("name", "clone"), [("github", "web-pr-7"), ("gitlab", "api-mr-7")])
def test_the_steps_of_the_templates_post_update_and_remove(
    apis: RequestApis, tmp_path: Path, name: str, clone: str
) -> None:
    """`sudo` stands for the check, which needs a server; all else is what a runner starts."""
    programs = tmp_path / "bin"
    programs.mkdir()
    sudo = "#!/bin/sh\ntest \"$*\" = '-n /usr/local/sbin/check-migration' && echo '### Verdict'; exit 11\n"
    made = {"sudo": sudo, "zsnapdb": f'#!/bin/sh\nPYTHONPATH={CHECKOUT} exec {sys.executable} -m zsnapdb "$@"\n'}
    for program, text in made.items():
        (programs / program).write_text(text)
        (programs / program).chmod(0o755)
    check, remove, more = steps(name, apis)
    given = {"PATH": f"{programs}:{Path(sys.executable).parent}:/usr/bin:/bin", "no_proxy": "*", "LC_ALL": "C.UTF-8"}
    given |= {**variables(apis, name), **more, "ZSNAPDB_URL": apis.root}

    def job(lines: list[str]) -> list[int]:
        codes = []
        for line in lines:
            words = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", line]
            done = subprocess.run(words, cwd=tmp_path, env=given, capture_output=True, text=True, timeout=120)
            assert not [secret for secret in SECRETS if secret in done.stdout + done.stderr]
            codes.append(done.returncode)
        return codes

    for _ in range(2):
        assert job(check) == ([11, 0] if name == "github" else [11]), "the job is as red as the check"
        assert apis.bodies(own(given)) == [f"{MARK}### Verdict"]
    apis.clones = {clone, "other"}
    assert job(remove) == [0]
    assert apis.clones == {"other"}
    apis.answers["GET"] = 503, None
    assert job(check)[-1] == 75, "a comment that is not posted is seen"
