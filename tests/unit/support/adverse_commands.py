"""Execution of command lines without root, or with standard streams that are closed, full or without a reader.

`python -m tests.unit.support.adverse_commands FOLDER` reads cases from stdin and prints their results, as JSON. Each
case runs in a child of this process, which has already imported the package and built its commands, because that takes
longer than most commands. A child has the streams of a newly started program.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from types import TracebackType

from tests.lab.inside.zygote import import_all
from tests.unit.support.command_line import CHECKOUT
from zsnapdb.cli import app

UNEXPECTED = 99
"""Exit code of a command that ended with an unexpected error."""
_SECONDS = 300
_NOBODY = 65534


class Adversity(StrEnum):
    """The problem in a command's surroundings."""

    NO_STDIN = "no stdin"
    NO_STDOUT = "no stdout"
    NO_STDERR = "no stderr"
    NONE = "none of them"
    FULL = "stdout is a full disk"
    GONE = "the reader of stdout has gone"
    NOBODY = "no root"


_CLOSED = {
    Adversity.NO_STDIN: (0,),
    Adversity.NO_STDOUT: (1,),
    Adversity.NO_STDERR: (2,),
    Adversity.NONE: (0, 1, 2),
}


@dataclass(frozen=True)
class AdverseCase:
    """A command line, with the problem in its surroundings."""

    words: tuple[str, ...]
    adversity: Adversity


@dataclass(frozen=True)
class CommandEnd:
    """The result of a case: its exit code (minus the signal, if one ended it), and its stderr."""

    code: int
    stderr: str


def ends(cases: Sequence[AdverseCase], folder: Path, environment: Mapping[str, str]) -> list[CommandEnd]:
    """Run all cases one by one."""
    done = subprocess.run(
        [sys.executable, "-m", __name__, str(folder)],
        input=json.dumps([asdict(case) for case in cases]),
        capture_output=True,
        text=True,
        cwd=CHECKOUT,
        env=environment,
        timeout=_SECONDS,
    )
    assert done.returncode == 0, done.stderr
    return [CommandEnd(**end) for end in json.loads(done.stdout)]


def _end_of(case: AdverseCase, folder: Path, whole: app.Command) -> CommandEnd:
    said = folder / "said"
    said.write_bytes(b"")
    child = os.fork()
    if child == 0:
        try:
            _become(case, said, whole)
        finally:
            os._exit(UNEXPECTED)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return CommandEnd(code, said.read_text(errors="replace"))


def _become(case: AdverseCase, said: Path, whole: app.Command) -> None:
    """Run the case with the streams of a newly started program."""
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(null, 1)
    os.dup2(os.open(said, os.O_WRONLY | os.O_APPEND), 2)
    if case.adversity is Adversity.FULL:
        os.dup2(os.open("/dev/full", os.O_WRONLY), 1)
    elif case.adversity is Adversity.GONE:
        reading, writing = os.pipe()
        os.dup2(writing, 1)
        os.close(reading)
    elif case.adversity is Adversity.NOBODY:
        os.setgroups([])
        os.setgid(_NOBODY)
        os.setuid(_NOBODY)
    os.closerange(3, 64)
    closed = _CLOSED.get(case.adversity, ())
    for number in closed:
        os.close(number)
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        setattr(sys, name, None if number in closed else os.fdopen(number, "w" if number else "r", closefd=False))
    sys.argv = ["zsnapdb", *case.words]
    sys.excepthook = _unexpected
    try:
        app.main(whole)
    except SystemExit as ended:
        os._exit(ended.code if isinstance(ended.code, int) else 1)
    except BaseException as error:
        _unexpected(type(error), error, error.__traceback__)


def _unexpected(_kind: type[BaseException], error: BaseException, _where: TracebackType | None) -> None:
    os.write(2, f"unexpected: {error!r}".encode(errors="replace"))
    os._exit(UNEXPECTED)


def _main() -> None:
    import_all()
    whole = app.built()
    folder = Path(sys.argv[1])
    cases = [AdverseCase(tuple(case["words"]), Adversity(case["adversity"])) for case in json.load(sys.stdin)]
    print(json.dumps([asdict(_end_of(case, folder, whole)) for case in cases]))


if __name__ == "__main__":
    _main()
