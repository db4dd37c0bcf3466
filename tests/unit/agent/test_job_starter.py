"""Frequent jobs are forked from a server: each is a child of the agent, like one that was started from nothing."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.unit.support.command_line import CHECKOUT
from zsnapdb.agent import job_starter
from zsnapdb.agent.children import AdoptedProcess, Adoption, ProcessChild, children_of, command_line
from zsnapdb.agent.job_starter import FREQUENT, SPARED, ForkServer, JobStarter
from zsnapdb.cli.fork_server import GRAIN, LoadedCode, _is_one_thread

RUN_ID = "20261122T120000Z-0123abcd"
JOB = ("list", "--json", "--config")
ENDED_BY_SIGTERM = 130
NOT_READ = 3
STATUS = (
    *("Umask", "PPid", "Uid", "Gid", "Groups", "NSpgid", "NSsid", "Threads", "SigBlk", "SigIgn", "SigCgt"),
    *("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb", "NoNewPrivs", "Cpus_allowed"),
)


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 240
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


class Jobs:
    """A starter whose jobs wait for their configurations: each is a pipe, which a job reads after all its imports."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.log = folder, folder / "log"
        self.time, self._writing = 0.0, dict[int, int]()
        environment = {**os.environ, "PYTHONPATH": f"{folder}:{CHECKOUT}"}
        self.starter = JobStarter(environment, steady=lambda: self.time)

    def start(self) -> ProcessChild:
        with contextlib.suppress(FileExistsError):
            os.mkfifo(self.folder / "config")
        return self.starter.start((*JOB, str(self.folder / "config")), self.log, RUN_ID)

    def waiting(self) -> ProcessChild:
        """Start a job, and return it when it waits."""
        job = self.start()

        def is_reading() -> bool:
            assert job.poll() is None, job.tail()
            with contextlib.suppress(OSError):
                if pid(job) not in self._writing:
                    self._writing[pid(job)] = os.open(
                        self.folder / "config", os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC
                    )
            # The job has the pipe: it waits for what is in it.
            return pid(job) in self._writing and Path(f"/proc/{pid(job)}/fd/3").exists()

        until(is_reading)
        # The next job has another pipe in this place.
        (self.folder / "config").unlink()
        return job

    def ended(self, job: ProcessChild, text: str = "wrong") -> int:
        """Give the waiting job this configuration, and return its exit code."""
        with open(self._writing.pop(pid(job)), "w") as pipe:
            pipe.write(text)
        until(lambda: job.poll() is not None)
        code = job.poll()
        assert code is not None
        return code

    def killed(self, *running: ProcessChild) -> None:
        for job in running:
            job.kill()
        until(lambda: all(job.poll() == -signal.SIGKILL for job in running))

    def server(self) -> ForkServer:
        """Return a server that is ready. One is started by the second of two jobs."""
        if self.starter.server is None or self.starter.server.has_ended():
            self.time += SPARED
        while self.starter.server is None or self.starter.server.has_ended():
            self.killed(self.start())
        server = self.starter.server
        until(lambda: server.is_ready() or server.has_ended())
        assert not server.has_ended()
        return server


@pytest.fixture(scope="module")
def jobs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Jobs]:
    """One starter for all tests, as the agent has one: a server that is good goes on."""
    known = Jobs(tmp_path_factory.mktemp("jobs"))
    yield known
    known.starter.close()


def pid(job: ProcessChild) -> int:
    return job._process.pid


def is_forked(job: ProcessChild) -> bool:
    return isinstance(job._process, AdoptedProcess)


def memory(number: int) -> int:
    """Return the resident bytes of a process."""
    return int(Path(f"/proc/{number}/statm").read_text().split()[1]) * resource.getpagesize()


def is_of_one_run(log: str) -> bool:
    """Whether the log has the error of one run."""
    return log.startswith("zsnapdb: ") and log.count("\nzsnapdb: ") == 0


def seen(job: ProcessChild) -> dict[str, object]:
    """Return what the kernel knows of a job."""
    folder = Path(f"/proc/{pid(job)}")
    status = dict(line.split(":", 1) for line in (folder / "status").read_text().splitlines())
    # The last part of the lists of processes is the own number in the innermost namespace.
    known: dict[str, object] = {name: status[name] for name in STATUS}
    known |= {name: (folder / name).read_text() for name in ("limits", "cgroup", "oom_score_adj")}
    known["words"] = (folder / "cmdline").read_text().rstrip("\0").split("\0")
    known["descriptors"] = {entry.name: os.readlink(entry).split()[0] for entry in (folder / "fd").iterdir()}
    known["nice"] = os.getpriority(os.PRIO_PROCESS, pid(job))
    known["folder"] = (folder / "cwd").readlink()
    return known


def test_a_forked_job_differs_in_nothing_that_the_kernel_knows(jobs: Jobs) -> None:
    ordinary = jobs.waiting()
    expected = seen(ordinary)
    assert expected["words"] == command_line((*JOB, str(jobs.folder / "config")))
    assert list(expected["descriptors"]) == ["0", "1", "2", "3"]  # type: ignore[call-overload]
    server = jobs.server()
    assert 10 << 20 < memory(server.pid) < 100 << 20
    ordinary.stop()
    forked = jobs.waiting()
    assert (is_forked(ordinary), is_forked(forked)) == (False, True)
    assert seen(forked) == expected
    forked.stop()
    until(lambda: ordinary.poll() is not None and forked.poll() is not None)
    assert ordinary.poll() == forked.poll() == ENDED_BY_SIGTERM
    assert forked.tail() == "zsnapdb: interrupted\n"


def test_each_forked_job_reads_the_configuration_and_begins_an_empty_log(jobs: Jobs) -> None:
    jobs.server()
    tails = []
    for text in ("first = ", "second", "third = 3\n"):
        job = jobs.waiting()
        assert is_forked(job)
        assert jobs.ended(job, text) == NOT_READ
        tails.append(job.tail())
    assert ["third" in tail for tail in tails] == [False, False, True]
    assert len(set(tails)) == len(tails)
    assert all(is_of_one_run(tail) for tail in tails), tails


def test_jobs_outlive_their_server_and_the_next_is_started_from_nothing(jobs: Jobs) -> None:
    server = jobs.server()
    job = jobs.waiting()
    os.kill(server.pid, signal.SIGKILL)
    until(server.has_ended)
    second = jobs.waiting()
    assert not is_forked(second)
    jobs.killed(second)
    # The exit code of a job whose server has gone is known all the same.
    assert jobs.ended(job) == NOT_READ
    # A new server was started then.
    assert jobs.starter.server is not None
    assert jobs.starter.server is not server
    until(jobs.starter.server.is_ready)
    third = jobs.waiting()
    assert is_forked(third)
    jobs.killed(third)


def test_a_server_that_does_not_answer_starts_no_second_run(jobs: Jobs, monkeypatch: pytest.MonkeyPatch) -> None:
    server = jobs.server()
    monkeypatch.setattr(job_starter, "PATIENCE", 0.5)
    os.kill(server.pid, signal.SIGSTOP)
    job = jobs.waiting()
    assert not is_forked(job)
    until(server.has_ended)
    jobs.starter.close()
    assert set(children_of(os.getpid())) & {pid(job), server.pid} == {pid(job)}
    assert jobs.ended(job) == NOT_READ


def test_a_job_that_is_not_taken_does_nothing(jobs: Jobs, monkeypatch: pytest.MonkeyPatch) -> None:
    """As where the kernel gives the agent no orphans, or where the agent is killed at that moment."""
    jobs.server()
    forked: list[int] = []
    monkeypatch.setattr(job_starter, "is_child", forked.append)
    job = jobs.waiting()
    assert not is_forked(job)
    (number,) = forked
    assert AdoptedProcess(number).poll() in (None, 0)
    assert jobs.ended(job) == NOT_READ
    assert is_of_one_run(job.tail())


def test_the_server_ends_with_the_agent_and_the_job_goes_on(tmp_path: Path) -> None:
    folder = tmp_path / "jobs"
    folder.mkdir()
    code = (
        "import pathlib, time; from tests.unit.agent.test_job_starter import *;"
        f"jobs = Jobs(pathlib.Path({str(folder)!r})); server = jobs.server(); job = jobs.waiting();"
        "print(server.pid, pid(job), is_forked(job), flush=True); sys.stdin.read()"
    )
    env = {**os.environ, "PYTHONPATH": str(CHECKOUT)}
    agent = subprocess.Popen(
        [sys.executable, "-c", code], cwd=tmp_path, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with agent:
        assert agent.stdout is not None
        server, job, forked = agent.stdout.readline().split()
        assert forked == "True"
        agent.kill()
    until(lambda: not Path(f"/proc/{server}/exe").exists())
    # The pipe of its configuration has ended with the agent.
    until(lambda: not Path(f"/proc/{job}/exe").exists())
    assert is_of_one_run((folder / "log").read_text())


def test_after_a_change_of_code_no_job_is_forked_by_a_server_that_has_the_old_one(jobs: Jobs) -> None:
    module = jobs.folder / "sitecustomize.py"
    module.write_text("")
    until(lambda: time.time() > module.stat().st_ctime + GRAIN + 0.1)
    server = jobs.server()
    job = jobs.waiting()
    assert is_forked(job)
    module.write_text("")
    after = jobs.waiting()
    assert not is_forked(after)
    assert jobs.starter.server is not server
    jobs.killed(job, after)


def test_code_that_changed_while_it_was_loaded_counts_as_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "a_module.py"
    file.write_text("")
    module = type(sys)("a_module")
    module.__file__ = str(file)
    monkeypatch.setitem(sys.modules, "a_module", module)
    later = time.time() + 3600
    code, early = LoadedCode(later), LoadedCode(file.stat().st_ctime)
    for each in (code, early):
        each.finish()
    assert (code.has_changed(), early.has_changed()) == (False, True)
    file.unlink()
    assert code.has_changed()


def test_a_job_has_the_limits_that_the_agent_has_now(jobs: Jobs) -> None:
    server = jobs.server()
    soft, hard = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (soft ^ 4096 if soft >= 0 else 4096, hard))
    try:
        job = jobs.waiting()
        assert not is_forked(job)
        assert resource.prlimit(pid(job), resource.RLIMIT_CORE) == resource.getrlimit(resource.RLIMIT_CORE)
        assert jobs.starter.server is not server
    finally:
        resource.setrlimit(resource.RLIMIT_CORE, (soft, hard))
    jobs.killed(job)


def test_jobs_that_come_seldom_have_no_server(jobs: Jobs) -> None:
    jobs.starter.close()
    for _ in range(3):
        jobs.time += FREQUENT + 1
        jobs.killed(jobs.start())
        assert jobs.starter.server is None
    server = jobs.server()
    jobs.time += FREQUENT + 1
    jobs.starter.tidy()
    assert jobs.starter.server is None
    assert server.has_ended()


def test_a_server_that_forks_nothing_is_not_started_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = Jobs(tmp_path)
    monkeypatch.setattr(job_starter, "_MODULE", "zsnapdb.no_such_module")
    for _ in range(2):
        jobs.killed(jobs.start())
    server = jobs.starter.server
    assert server is not None
    until(server.has_ended)
    for _ in range(2):
        jobs.killed(jobs.start())
        assert jobs.starter.server is None


def test_of_several_threads_nothing_is_forked() -> None:
    code = "from zsnapdb.cli.fork_server import _is_one_thread; print(_is_one_thread())"
    env = {**os.environ, "PYTHONPATH": str(CHECKOUT)}
    assert subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True).stdout == "True\n"
    end = threading.Event()
    thread = threading.Thread(target=end.wait)
    thread.start()
    assert not _is_one_thread()
    end.set()
    thread.join()


def test_an_orphan_that_was_not_meant_leaves_no_zombie() -> None:
    adoption = Adoption()
    parent = subprocess.Popen(
        ["sh", "-c", "sleep 600 >/dev/null & echo $!; read end"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert parent.stdout is not None
    orphan = int(parent.stdout.readline())
    began = children_of(parent.pid)[orphan]
    until(lambda: time.clock_gettime(time.CLOCK_BOOTTIME) * os.sysconf("SC_CLK_TCK") > began + 1)
    with adoption.orphans():
        parent.communicate("")
    assert orphan in children_of(os.getpid())
    adoption.tidy()
    assert orphan in children_of(os.getpid())
    os.kill(orphan, signal.SIGKILL)

    def is_gone() -> bool:
        adoption.tidy()
        return not Path(f"/proc/{orphan}").exists()

    until(is_gone)
