"""Execution of all checks: lint, types, unit tests, system tests, campaign samples, fault tests.

System tests run in guests of both flavours; flavours.py selects the tests that run on one only. The parts are
independent jobs; a few run concurrently, the longest first. The lab's own tests with the mark `alone` run after all
others, because they count the processes and files of the machine.
"""

from __future__ import annotations

import functools
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from . import campaign, flavours, host, servers, zfs_releases
from .build import build
from .flavours import FLAVOURS
from .guest import CHECKOUT, ENCRYPTED, Guest, Lab
from .host import Bind, in_root
from .job import FIRST, Job, Stage
from .progress import JobOutput, told_until_ended
from .shares import ANY_SERVER_SECONDS, OTHER_RELEASES, OTHER_RELEASES_TRY, SAMPLES, SECONDS, USUAL

PYTEST = (
    "/opt/venv/bin/python",
    "-m",
    "pytest",
    "-p",
    "no:cacheprovider",
    "-o",
    "addopts=",
    "-q",
    "--tb=short",
    "--durations=10",
    "--durations-min=5",
)
TYPED = ("tests", "packaging/tools")
"""Type-checked folders in addition to the package."""
KINDS = ("unit", "system", "attacks", "campaigns", "faults")
SHARDS = 2
"""Number of guests per flavour that share the system tests."""
OWN_GUEST = {"test_guides.py": "mysql"}
"""System test files that need a newly installed server, with their flavour."""
ONE_SERVER = ("test_machines.py", "test_setup_move.py", "test_systemd.py", "test_upgrade.py")
"""Fault test files that choose their servers themselves: one job runs the whole file."""
LAB_FAULTS = "test_lab.py"
_NO_TESTS = 5
"""Exit status of pytest if no test was selected."""


def _inside(lab: Lab, argv: Sequence[str], more: Mapping[str, str] | None = None) -> list[str]:
    """Return an argv that runs chrooted in the guest root, with checkout and cache at their own paths."""
    binds = [Bind(CHECKOUT, str(CHECKOUT)), Bind(lab.cache.top, str(lab.cache.top))]
    env = {"ZSNAPDB_LAB_CACHE": str(lab.cache.top), "PYTHONPATH": str(CHECKOUT), "PYTHONDONTWRITEBYTECODE": "1"}
    # Tests on the host start guests themselves, with the choices for this run's guests.
    env |= {name: os.environ[name] for name in (ENCRYPTED, zfs_releases.CHOSEN) if name in os.environ}
    return in_root(lab.root, argv, binds, cwd=str(CHECKOUT), env={**env, **(more or {})}, own_processes=True)


def _local(
    lab: Lab, commands: Sequence[Sequence[str]], env: Mapping[str, str] | None = None, *, output: JobOutput
) -> int:
    """Run commands in the chroot one by one; return the first status that is not 0."""
    code = 0
    for argv in commands:
        if len(commands) > 1:
            output.add(f"$ {' '.join(argv)}\n".encode())
        inside = _inside(lab, argv, env)
        with subprocess.Popen(
            inside, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, bufsize=0
        ) as done:
            assert done.stdout is not None
            while data := done.stdout.read(1 << 16):
                output.add(data)
        code = code or done.returncode
    return code


def _lint(lab: Lab, *, output: JobOutput) -> int:
    """Check style and types. The mypy cache is in the lab's cache, so a second run takes seconds."""
    commands = (
        ("ruff", "check", "--no-cache", "."),
        ("ruff", "format", "--no-cache", "--check", "."),
        ("mypy", f"--cache-dir={lab.cache.top / 'mypy'}", "zsnapdb", *TYPED),
    )
    return _local(lab, commands, output=output)


def _in_guest(
    lab: Lab, flavour: str, arguments: Sequence[str], more: Mapping[str, str] | None = None, *, output: JobOutput
) -> int:
    env = {"PYTHONPATH": "/checkout", "LAB_FLAVOUR": flavour, "PYTHONDONTWRITEBYTECODE": "1", **(more or {})}
    argv = [*PYTEST, *arguments]
    with Guest.boot(lab, flavour) as guest:
        return guest.run(argv, cwd="/checkout", env=env, timeout=7200, sink=lambda _, data: output.add(data)).code


def _system(lab: Lab, arguments: Sequence[str], *, all_flavours: bool) -> list[Job]:
    """Return the jobs of the system tests: named tests in one guest per flavour, or all tests in several guests."""
    own = arguments_for("system", arguments)
    if own[0] != "tests/system":
        return [
            Job(f"system, {flavour}", usual_seconds(own), functools.partial(_in_guest, lab, flavour, own))
            for flavour in lab.flavours
        ]
    jobs = []
    names = sorted(path.name for path in (CHECKOUT / "tests/system").glob("test_*.py") if path.name not in OWN_GUEST)
    for name, flavour in OWN_GUEST.items():
        env = None if all_flavours else flavours.environment([])
        work = functools.partial(_in_guest, lab, flavour, [f"tests/system/{name}", *own[1:]], env)
        jobs.append(Job(f"system {name[5:-3]}, {flavour}", usual_seconds([name]), work))
    for number, files in enumerate(shared_out(names, SHARDS), 1):
        hands = _dealt([CHECKOUT / file for file in files])
        for flavour in FLAVOURS:
            env = None if all_flavours else flavours.environment(hands[flavour])
            elsewhere = (
                [] if all_flavours else [name for other in FLAVOURS if other != flavour for name in hands[other]]
            )
            work = functools.partial(_in_guest, lab, flavour, [*files, *own[1:]], env)
            jobs.append(Job(f"system {number}, {flavour}", usual_seconds(files, elsewhere), work))
    return jobs


def _dealt(files: Sequence[Path], sign: str = flavours.MARK) -> dict[str, list[str]]:
    return flavours.dealt(flavours.marked(files, sign), ANY_SERVER_SECONDS)


def usual_seconds(arguments: Sequence[str], elsewhere: Sequence[str] = ()) -> float:
    """Return the approximate seconds of the test files in pytest's arguments, on one flavour.

    The tests with the mark `any_server` of the files `elsewhere` run on the other flavour.
    """
    names = [word.partition("::")[0].rpartition("/")[2] for word in arguments]
    spared = sum(ANY_SERVER_SECONDS.get(name, 0.0) for name in elsewhere)
    return max(5.0, sum(SECONDS.get(name, USUAL) for name in names if name.startswith("test_")) - spared)


def shared_out(files: Sequence[str], parts: int) -> list[list[str]]:
    """Return the files of tests/system in `parts` lists with about equal durations."""
    lists: list[list[str]] = [[] for _ in range(parts)]
    seconds = [0.0] * parts
    for name in sorted(files, key=lambda name: (-SECONDS.get(name, USUAL), name)):
        least = seconds.index(min(seconds))
        lists[least].append(f"tests/system/{name}")
        seconds[least] += SECONDS.get(name, USUAL)
    return [sorted(names) for names in lists if names]


def _attacks(lab: Lab, arguments: Sequence[str], *, all_flavours: bool) -> list[Job]:
    """Return the jobs of the attacks: named ones in a guest of each flavour, all of them in one guest."""
    own = arguments_for("attacks", arguments)
    chosen = FLAVOURS if all_flavours or own[0] != "tests/attacks" else ("mariadb",)
    return [Job(f"attacks, {flavour}", 560.0, functools.partial(_in_guest, lab, flavour, own)) for flavour in chosen]


def _faults(lab: Lab, arguments: Sequence[str], *, all_flavours: bool) -> list[Job]:
    """Return the jobs of the fault tests: the named tests as one job, or a job per file and flavour.

    Jobs without a test are left out.
    """
    own = arguments_for("faults", arguments)
    if own[0] != "tests/faults":
        return [Job("faults", usual_seconds(own), functools.partial(_pytest, lab, own))]
    files = sorted(path for path in (CHECKOUT / "tests/faults").glob("test_*.py") if path.name != LAB_FAULTS)
    hands = _dealt(files)
    jobs = []
    for name in [path.name for path in files if path.name in ONE_SERVER]:
        env = None if all_flavours else flavours.environment([])
        work = functools.partial(_pytest, lab, [f"tests/faults/{name}", *own[1:]], env)
        jobs.append(Job(f"faults {name[5:-3]}", usual_seconds([name]), work))
    for path in [path for path in files if path.name not in ONE_SERVER]:
        name = path.name
        for flavour, chosen in (("mysql", "not mariadb"), ("mariadb", "mariadb")):
            env = None if all_flavours else flavours.environment(hands[flavour])
            elsewhere = () if all_flavours or name in hands[flavour] else (name,)
            if elsewhere and flavours.WHOLE_FILE in path.read_text():
                continue
            work = functools.partial(_pytest, lab, [f"tests/faults/{name}", "-k", chosen, *own[1:]], env)
            jobs.append(Job(f"faults {name[5:-3]}, {flavour}", usual_seconds([name], elsewhere), work))
    return jobs


def _lab_faults(lab: Lab, own: Sequence[str], marks: str) -> Callable[..., int]:
    return functools.partial(_pytest, lab, [f"tests/faults/{LAB_FAULTS}", "-m", marks, *own[1:]])


def _pytest(lab: Lab, arguments: Sequence[str], env: Mapping[str, str] | None = None, *, output: JobOutput) -> int:
    code = _local(lab, [[*PYTEST, *arguments]], env, output=output)
    # If all tests of a file run on one flavour, the other flavour's job has none.
    chosen = "-k" in arguments or "-m" in arguments
    return 0 if code == _NO_TESTS and chosen else code


def _campaigns(lab: Lab, arguments: Sequence[str], *, all_flavours: bool) -> list[Job]:
    """Return the jobs for a sample of each campaign, or of those named in the arguments."""
    named = any("tests/campaigns/" in word for word in arguments)
    files = [campaign.FOLDER / f"{name}.py" for name in chosen_campaigns(arguments)]
    hands = _dealt([] if named or all_flavours else files, flavours.CAMPAIGN)
    once = [name for hand in hands.values() for name in hand]
    return [
        Job(
            f"{path.stem}, {flavour}",
            SECONDS.get(path.name, USUAL),
            functools.partial(_sample, lab, path.stem, flavour),
        )
        for path in files
        for flavour in FLAVOURS
        if path.name in hands[flavour] or path.name not in once
    ]


def chosen_campaigns(arguments: Sequence[str]) -> list[str]:
    """Return the campaigns named in the arguments; all that have a sample if there are none."""
    named = [name for name in campaign.known() if any(f"tests/campaigns/{name}" in word for word in arguments)]
    return named or [name for name in campaign.known() if name in SAMPLES]


def _sample(lab: Lab, name: str, flavour: str, *, output: JobOutput) -> int:
    (outcome,) = campaign.run(lab, name, (flavour,), SAMPLES.get(name, ()), timeout=3600)
    output.add(b"1 passed" if outcome.code == 0 else b"1 failed")
    return outcome.code


def _other_releases(lab: Lab) -> list[Job]:
    """Return the jobs that try server-dependent features on releases other than the lab's two."""
    return [
        Job(f"releases, {name}", seconds, functools.partial(_release, lab, name))
        for name, seconds in OTHER_RELEASES.items()
    ]


def _release(lab: Lab, name: str, *, output: JobOutput) -> int:
    """Try a release. If its distribution does not provide it, skip it and report that in the run's table."""
    try:
        servers.tree(lab.cache, name)
    except host.LabError as error:
        output.add(f"{name} cannot be fetched, so it was not tried: {error}\n1 skipped".encode())
        return 0
    other = Lab.ready(lab.cache, server=name)
    (outcome,) = campaign.run(other, "releases", (servers.SERVERS[name].flavour,), OTHER_RELEASES_TRY, timeout=1800)
    output.add(b"1 passed" if outcome.code == 0 else b"1 failed")
    return outcome.code


def named_kinds(arguments: Sequence[str]) -> list[str]:
    """Return the kinds of test that the arguments name; all (and lint) if they name none."""
    named = [kind for kind in KINDS if any(f"tests/{kind}" in word for word in arguments)]
    return named or ["lint", *KINDS]


def arguments_for(kind: str, arguments: Sequence[str]) -> list[str]:
    """Return the pytest arguments for one kind of test: arguments without a kind apply to each kind."""
    others = [f"tests/{other}" for other in KINDS if other != kind]
    own = [word for word in arguments if not any(other in word for other in others)]
    return own if any(f"tests/{kind}" in word for word in own) else [f"tests/{kind}", *own]


def lanes(processors: int, memory: int) -> int:
    """Return how many jobs run concurrently on a machine with these processors and bytes of memory.

    Two on each processor, because a guest often waits; but only as many as fit, with 5 GiB per guest.
    """
    return max(2, min(2 * processors, memory // (5 << 30), 12))


def places(processors: Sequence[int], count: int) -> list[frozenset[int]]:
    """Return the processors for the guests of each of `count` lanes.

    A guest is two processes that wait for each other at each system call: on one processor it takes a fifth less
    processor time than on two. So a lane has one processor, if every processor gets the same number of lanes. The
    remaining lanes use all processors.
    """
    own = count // len(processors) * len(processors) if count >= len(processors) else count
    lone = [frozenset((processors[lane % len(processors)],)) for lane in range(own)]
    return [frozenset(processors)] * (count - own) + lone


def _side_by_side(jobs: Sequence[Job]) -> list[Stage]:
    """Run jobs concurrently, the longest first, within the machine's limits. Report finished tests every minute.

    Return the stages in the order of the jobs.
    """
    waiting: queue.SimpleQueue[Job] = queue.SimpleQueue()
    for job in sorted(jobs, key=lambda job: -job.weight):
        waiting.put(job)
    stages: dict[str, Stage] = {}
    outputs: dict[str, JobOutput] = {}

    def lane(place: frozenset[int]) -> None:
        while not waiting.empty():
            try:
                job = waiting.get_nowait()
            except queue.Empty:
                return
            outputs[job.name] = JobOutput(job.name)
            # It applies to this thread and to its later threads and processes.
            os.sched_setaffinity(0, place if job.has_guest else processors)
            stages[job.name] = job.run(outputs[job.name])

    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    processors = sorted(os.sched_getaffinity(0))
    count = min(len(jobs), lanes(len(processors), memory))
    threads = [threading.Thread(target=lane, args=(place,), daemon=True) for place in places(processors, count)]
    for thread in threads:
        thread.start()
    told_until_ended(threads, lambda: [output for name, output in list(outputs.items()) if name not in stages])
    return [stages[job.name] for job in jobs]


def run(lab: Lab, arguments: Sequence[str], *, all_flavours: bool = False) -> int:
    """Run the named checks, print a table and a closing line, and return 0 only if nothing failed.

    With `all_flavours` every test that needs a server runs on each flavour.
    """
    kinds = named_kinds(arguments)
    began = time.monotonic()
    stages: list[Stage] = []
    jobs = []
    if "lint" in kinds:
        jobs.append(Job("lint and types", FIRST, functools.partial(_lint, lab), has_guest=False))
    if "unit" in kinds:
        # Tests of the libvirt adapter need its library. This root has it and is otherwise the same.
        paths = build(lab.cache)
        root = replace(lab, root=paths["guest-vm"])
        env = {"PATH": f"{host.PATH}:{paths['promtool']}:{paths['mkdocs']}"}
        work = functools.partial(_pytest, root, arguments_for("unit", arguments), env)
        jobs.append(Job("unit", FIRST, work, has_guest=False))
    if "system" in kinds:
        jobs += _system(lab, arguments, all_flavours=all_flavours)
    if "attacks" in kinds:
        jobs += _attacks(lab, arguments, all_flavours=all_flavours)
    if "campaigns" in kinds:
        jobs += _campaigns(lab, arguments, all_flavours=all_flavours)
        if kinds == named_kinds([]):
            jobs += _other_releases(lab)
    if "faults" in kinds:
        jobs += _faults(lab, arguments, all_flavours=all_flavours)
    own = arguments_for("faults", arguments)
    alone = "faults" in kinds and own[0] == "tests/faults"
    if alone:
        jobs.append(Job("faults lab", USUAL, _lab_faults(lab, own, "not alone")))
    stages += _side_by_side(jobs)
    if alone:
        last = Job("faults lab, alone", 0, _lab_faults(lab, own, "alone"))
        stages.append(last.run(JobOutput(last.name)))
    return _conclude(stages, time.monotonic() - began)


def _conclude(stages: list[Stage], seconds: float) -> int:
    print(f"\n{'stage':<32} {'seconds':>8}  result")
    for stage in stages:
        words = ", ".join(f"{number} {word}" for word, number in stage.counts.items())
        print(f"{stage.name:<32} {stage.seconds:8.0f}  {'ok' if stage.code == 0 else 'FAILED'} {words}")
    print(f"{'altogether':<32} {seconds:8.0f}")
    for stage in stages:
        for reason in stage.reasons:
            print(f"{stage.name}: {reason}")
    passed = sum(s.counts.get("passed", 0) for s in stages)
    failed = sum(s.counts.get("failed", 0) + s.counts.get("error", 0) for s in stages)
    silent = sum(1 for s in stages if s.code != 0 and not (s.counts.get("failed") or s.counts.get("error")))
    skipped = sum(s.counts.get("skipped", 0) for s in stages)
    print(f"{passed} passed, {failed + silent} failed" + (f", {skipped} skipped" if skipped else ""))
    sys.stdout.flush()
    return 0 if all(s.code == 0 for s in stages) else 1
