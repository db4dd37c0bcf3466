"""The helper forks its commands from a process that has imported all: each is like one started from nothing."""

from __future__ import annotations

import json
import math
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from tests.unit.support.command_line import ENVIRONMENT
from zsnapdb.agent.children import AdoptedProcess, children_of, start_detached
from zsnapdb.agent.job_starter import JobStarter
from zsnapdb.base import run_context
from zsnapdb.base.program_start import Process
from zsnapdb.jobs.clone.expected_clone import ExpectedClone
from zsnapdb.serve.command_processes import CLEAN, ChildRunner, CommandCall, StartCommand
from zsnapdb.serve.helper_messages import FailureAnswer, ResultAnswer

WAITS = """#!/bin/sh
trap '' TERM
env >{0}/environment
echo $PPID >{0}/reached.new && mv {0}/reached.new {0}/reached
while [ -e {0}/closed ]; do sleep 0.02; done
exit 1
"""
"""In place of `zfs`: writes down which command runs it, and with which environment. It obeys no SIGTERM."""
CONFIGURATION = """
[clones]
dataset = "tank/clones"
[repository.here]
url = "file:///nonexistent"
[instance.main]
volumes = {{ data = "tank/data" }}
repository = "here"
"""
STATUS = (
    *("Umask", "PPid", "Uid", "Gid", "Groups", "NSsid", "Threads", "SigBlk", "SigIgn", "SigCgt"),
    *("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb", "NoNewPrivs", "Cpus_allowed"),
)


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 240
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


class Commands:
    """Commands of the helper, `zsnapdb clone list`, each of which stands still as long as there is `closed`."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.began = folder, list[Process]()
        (folder / "zfs").write_text(WAITS.format(folder))
        (folder / "zfs").chmod(0o755)
        (folder / "zsnapdb.toml").write_text(CONFIGURATION.format())
        self.environment = {**ENVIRONMENT, "PATH": f"{folder}:{os.environ['PATH']}"}
        self.environment["ZSNAPDB_CONFIG"] = str(folder / "zsnapdb.toml")
        self.starter = JobStarter({**CLEAN, **self.environment}, frequent=math.inf)

    def ready(self) -> int:
        """Forget what was begun, let the server be ready, and return its number."""
        self.began.clear()
        self.starter.tidy()
        self.starter.prepare()
        server = self.starter.server
        assert server is not None
        until(lambda: server.is_ready() or server.has_ended())
        return server.pid

    def run(self, start: StartCommand, call: CommandCall, *, grace: float = 0.2) -> ResultAnswer | FailureAnswer:
        def noted(words: Sequence[str], environment: Mapping[str, str], streams: tuple[int, int, int]) -> Process:
            self.began.append(start(words, environment, streams))
            return self.began[-1]

        return ChildRunner(noted, self.environment, grace=grace)(call)

    def waiting(self, start: StartCommand, call: CommandCall) -> tuple[threading.Thread, int, list[FailureAnswer]]:
        """Run a command in a thread, and return that, the command's number, and where its answer will be."""
        (self.folder / "closed").touch()
        (self.folder / "reached").unlink(missing_ok=True)
        answers: list[FailureAnswer] = []

        def work() -> None:
            answer = self.run(start, call)
            assert isinstance(answer, FailureAnswer)
            answers.append(answer)

        thread = threading.Thread(target=work)
        thread.start()
        until((self.folder / "reached").exists)
        return thread, int((self.folder / "reached").read_text()), answers

    def let_go(self) -> None:
        (self.folder / "closed").unlink(missing_ok=True)


@pytest.fixture(scope="module")
def commands(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Commands]:
    """One starter for all tests, as the helper has one."""
    known = Commands(tmp_path_factory.mktemp("commands"))
    yield known
    known.let_go()
    known.starter.close()


def call(subject: str = "ci:shop/web", words: tuple[str, ...] = ("clone", "list", "--json")) -> CommandCall:
    meant = ExpectedClone(owner=subject, id="c1")
    return CommandCall(words, subject, run_context.new_run_id(), 60.0, issuer="https://ci.example.org", meant=meant)


def is_forked(process: Process) -> bool:
    return isinstance(process, AdoptedProcess)


def seen(folder: Path, number: int) -> dict[str, object]:
    """Return what the kernel knows of a command, and the environment of what it runs."""
    own = Path(f"/proc/{number}")
    status = dict(line.split(":", 1) for line in (own / "status").read_text().splitlines())
    known: dict[str, object] = {name: status[name] for name in STATUS}
    known |= {name: (own / name).read_text() for name in ("limits", "cgroup", "oom_score_adj")}
    known["words"] = (own / "cmdline").read_text().rstrip("\0").split("\0")
    links = {entry.name: os.readlink(entry).split()[0] for entry in (own / "fd").iterdir()}
    # A temporary file has another number each time. What is beyond three are the pipes to `zfs`.
    known["streams"] = {name: links[name].partition("#")[0] for name in ("0", "1", "2")}
    known["descriptors"] = len(links)
    known["group"] = os.getpgid(number) == number
    known["folder"] = (own / "cwd").readlink()
    known["environment"] = sorted((folder / "environment").read_text().splitlines())
    return known


def test_a_forked_command_differs_in_nothing_from_one_that_was_started_from_nothing(
    commands: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    # What the helper has beside is for no command.
    monkeypatch.setenv("ZSNAPDB_SECRET_OF_THE_HELPER", "hidden")
    commands.ready()
    wanted, found = call(), []
    for start in (start_detached, commands.starter.apart):
        thread, number, answers = commands.waiting(start, wanted)
        found.append(seen(commands.folder, number))
        commands.let_go()
        thread.join()
        assert (answers[0].exit_code, "zfs" in answers[0].message) == (9, True), answers
    assert [is_forked(one) for one in commands.began] == [False, True]
    assert found[1] == found[0]
    assert (found[0]["group"], found[0]["folder"]) == (True, Path("/"))
    # Programs get an environment of our own, in which neither stands.
    environment = str(found[1]["environment"])
    assert ("hidden" in environment, wanted.subject in environment) == (False, False)


def test_nothing_of_a_command_is_known_to_the_next_or_stands_where_others_read_it(commands: Commands) -> None:
    server = commands.ready()
    environments = []
    for subject in ("user:anna@example.org", "ci:shop/web"):
        thread, number, _ = commands.waiting(commands.starter.apart, call(subject))
        environments.append((commands.folder / "environment").read_text())
        for process in (server, number):
            assert subject not in Path(f"/proc/{process}/environ").read_text()
            assert subject not in Path(f"/proc/{process}/cmdline").read_text()
        commands.let_go()
        thread.join()
    assert all(is_forked(one) for one in commands.began)
    assert ["anna" in text or "ci:shop" in text for text in environments] == [False, False]


def test_a_forked_command_that_is_cancelled_ends_and_the_server_goes_on(commands: Commands) -> None:
    server, wanted = commands.ready(), call()
    thread, number, answers = commands.waiting(commands.starter.apart, wanted)
    wanted.cancelled.set()
    thread.join()
    assert (answers[0].code, is_forked(commands.began[0])) == ("cancelled", True)
    assert not Path(f"/proc/{number}").exists()
    assert commands.starter.server is not None
    assert (commands.starter.server.pid, commands.starter.server.has_ended()) == (server, False)


def test_a_command_outlives_its_fork_server_and_the_next_one_is_run_all_the_same(commands: Commands) -> None:
    server = commands.ready()
    thread, _, answers = commands.waiting(commands.starter.apart, call())
    os.kill(server, signal.SIGKILL)
    commands.let_go()
    thread.join()
    second = commands.run(commands.starter.apart, call())
    assert isinstance(second, FailureAnswer)
    assert [one.exit_code for one in (answers[0], second)] == [9, 9]
    assert [is_forked(one) for one in commands.began] == [True, False]
    # Another server was started then.
    until(lambda: commands.starter.server is not None and commands.starter.server.is_ready())
    commands.run(commands.starter.apart, call())
    assert is_forked(commands.began[-1])


def test_many_commands_at_once_are_forked_each_with_its_own_answer(commands: Commands) -> None:
    commands.ready()
    answers: dict[int, ResultAnswer | FailureAnswer] = {}

    def ask(number: int) -> None:
        answers[number] = commands.run(commands.starter.apart, call(words=("list", f"no-{number}", "--json")))

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(is_forked(one) for one in commands.began)
    assert [f"no-{number}" in json.dumps(answers[number].model_dump()) for number in range(16)] == [True] * 16
    commands.starter.tidy()
    assert set(children_of(os.getpid())) & {one.pid for one in commands.began} == set()
