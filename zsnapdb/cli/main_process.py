"""Exit codes of signals, errors and closed pipes. `zsnapdb/base/errors.py` defines the codes."""

from __future__ import annotations

import contextlib
import io
import itertools
import os
import select
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NoReturn, TextIO

from zsnapdb.base import run_context
from zsnapdb.base.errors import CLOSED_PIPE, INTERNAL, INTERRUPTED, ZsnapdbError
from zsnapdb.base.untrusted_text import printed
from zsnapdb.cli.command_context import cached_configuration
from zsnapdb.cli.command_groups import CommandGroup
from zsnapdb.cli.log_options import VALUED_LOG_OPTIONS, log_options, wants_json_progress
from zsnapdb.cli.printed_commands import complete

if TYPE_CHECKING:
    from types import FrameType

_STREAMS = 3
_MOST_RECORDED = 4000
_DESTRUCTOR_SECONDS = 0.01
"""Seconds until the interrupt is repeated. By then, the destructor that swallowed the interrupt must have ended."""
_THREADED_LIBRARIES = frozenset({"temporalio.bridge.temporal_sdk_bridge", "obstore"})
"""Modules of libraries whose own threads use Python objects: the client of fleets, and that of Azure and Google."""
_PassedOn = (KeyboardInterrupt, EOFError, OSError)
"""Exceptions that typer would turn into its own exit code or message."""


class Failure(Exception):
    """An exception that carries an error through typer. It contains the original error with its notes."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(str(error))
        self.error = error


class Root(CommandGroup):
    """The group of all commands. It passes interrupts and system errors on as `Failure`."""

    def get_params(self, ctx: Any) -> Any:
        """Return the options of `zsnapdb`, including the log options."""
        if not any("--log-level" in parameter.opts for parameter in self.params):
            self.params.extend(log_options(hidden=False))
        return super().get_params(ctx)

    def make_context(self, *words: Any, **options: Any) -> Any:
        """Parse the command line. Options that print and exit, such as --help, do so here."""
        with _past_typer():
            return super().make_context(*words, **options)

    def invoke(self, ctx: Any) -> Any:
        with _past_typer(), cached_configuration():
            return super().invoke(ctx)


@contextlib.contextmanager
def _past_typer() -> Iterator[None]:
    try:
        yield
    except _PassedOn as error:
        raise Failure(error) from error


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _hang_up(number: int, _frame: FrameType | None) -> None:
    """Interrupt the command only once. When a session ends, both the kernel and the shell send SIGHUP to it.

    A second interrupt would end the cleanup that the first interrupt started. The handler remains a function, because
    child processes would inherit an ignored signal.
    """
    signal.signal(number, lambda *_: None)
    raise KeyboardInterrupt


def _again(unraisable: sys.UnraisableHookArgs) -> None:
    """Repeat, a moment later, an interrupt that arrived during a destructor.

    The interpreter drops exceptions in destructors and calls this hook (sys.unraisablehook). The interpreter would also
    drop an exception raised in this hook. SIGTERM repeats every signal: SIGHUP interrupts only once, and SIGINT may be
    ignored.
    """
    if not issubclass(unraisable.exc_type, KeyboardInterrupt):
        sys.__unraisablehook__(unraisable)
        return
    signal.signal(signal.SIGALRM, lambda *_: signal.raise_signal(signal.SIGTERM))
    signal.setitimer(signal.ITIMER_REAL, _DESTRUCTOR_SECONDS)


def interrupt_on_signals() -> None:
    """Make SIGTERM (a service manager) and SIGHUP (a lost session) interrupt the command, as Ctrl-C does.

    The command then releases its locks, runs its hooks, and removes incomplete files and datasets. A command started by
    nohup(1) still ignores SIGHUP.
    """
    sys.unraisablehook = _again
    signal.signal(signal.SIGTERM, _interrupt)
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        signal.signal(signal.SIGHUP, _hang_up)


class SignalledStop:
    """A request to stop, set by a signal.

    The signal handler may run at any moment in the waiting thread, where the lock of a threading.Event could deadlock.
    So a pipe ends the wait (pipe(7), self-pipe).
    """

    def __init__(self) -> None:
        self._was_set = False
        self._reading, self._writing = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def set(self) -> None:
        self._was_set = True
        self.wake()

    def wake(self) -> None:
        """End the current or the next wait early, without a request to stop."""
        # If the pipe is full, the wait ends too.
        with contextlib.suppress(BlockingIOError):
            os.write(self._writing, b"\0")

    def is_set(self) -> bool:
        return self._was_set

    def wait(self, seconds: float) -> bool:
        """Wait until the stop is requested or `wake` is called, for at most `seconds`.

        Return whether the stop was requested.
        """
        select.select([self._reading], [], [], seconds)
        if not self._was_set:
            with contextlib.suppress(BlockingIOError):
                os.read(self._reading, select.PIPE_BUF)
        return self._was_set


def stop_on_signals(numbers: Iterable[signal.Signals]) -> SignalledStop:
    """Return a stop request that each of the given signals sets.

    A signal that this process has ignored from its start remains ignored.
    """
    stop = SignalledStop()
    for number in numbers:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, lambda *_: stop.set())
    return stop


def open_standard_streams() -> None:
    """Open /dev/null for each closed standard stream.

    Otherwise the next file or socket would get the stream's number, and a child process would write into it.
    """
    for number in range(_STREAMS):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    # If a stream was closed when the process started, the interpreter has no object for the stream.
    sys.stdin = sys.stdin or open(0, closefd=False)  # noqa: SIM115 - it stays open
    sys.stdout = sys.stdout or open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = sys.stderr or open(2, "w", closefd=False)  # noqa: SIM115
    # File names may contain bytes that are not UTF-8. They are printed escaped, and cause no error.
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


def own_umask() -> None:
    """Set umask 022, even if the shell uses a different umask, because servers must enter folders that zsnapdb creates.

    With `umask 077`, the account of a restored server could not enter its own folders. Secret files get their mode
    explicitly.
    """
    os.umask(0o022)


def exit_code_of(command: Callable[[], object]) -> int:
    """Run a typer command to its end, print its error, and return the exit code.

    An expected error is printed without a traceback. If the reader of stdout has closed the pipe, nothing is printed.
    """
    began = time.monotonic()
    try:
        try:
            with _signs_of_life():
                code = _run(command)
            _flush()
        except ZsnapdbError as error:
            code = _failed(_for_this_account(error))
        except OSError as error:
            if _stdout_has_no_reader():
                raise
            known = unexpected_system_error(error)
            known.__cause__ = error
            code = _failed(_for_this_account(known))
    except BrokenPipeError:
        _forget(sys.stdout)
        code = CLOSED_PIPE
    _log_end(code, time.monotonic() - began)
    _settle_stderr()
    return code


def leave(code: int) -> NoReturn:
    """Flush the output and end the process with the code that `exit_code_of` returned.

    During the interpreter's shutdown, threads of some libraries sometimes use Python objects and so abort the process.
    If such a library was imported, os._exit skips the shutdown.
    """
    if not _THREADED_LIBRARIES.isdisjoint(sys.modules):
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError):
                stream.flush()
        os._exit(code)
    sys.exit(code)


@contextlib.contextmanager
def _signs_of_life() -> Iterator[None]:
    """While the block runs, write a line every few seconds if JSON progress is requested.

    If JSON progress is not requested, its code is not imported.
    """
    if not wants_json_progress(sys.argv, os.environ):
        yield
        return
    from zsnapdb.cli.progress import PULSE

    with PULSE.beating(" ".join(command_arguments(sys.argv[1:]))):
        yield


def _log_end(code: int, seconds: float) -> None:
    from zsnapdb.cli import log_writer

    log_writer.log_end(" ".join(("zsnapdb", *command_arguments(sys.argv[1:]))), code, seconds)


def command_arguments(argv: Sequence[str]) -> list[str]:
    """Return the arguments of a command up to its first option. Options before the command are omitted."""
    rest = list(argv)
    while rest and rest[0].startswith("-"):
        rest = rest[2 if rest[0] in VALUED_LOG_OPTIONS else 1 :]
    return list(itertools.takewhile(lambda word: not word.startswith("-"), rest))


def _settle_stderr() -> None:
    """Flush stderr. If stderr has no reader, redirect it to /dev/null.

    Otherwise the interpreter's last flush would fail and change the exit code to 120.
    """
    try:
        sys.stderr.flush()
    except OSError:
        _forget(sys.stderr)


def _flush() -> None:
    """Write the buffered text of stdout.

    Raises: ZsnapdbError if stdout accepts no more text, for example on a full disk.
    """
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        _forget(sys.stdout)
        raise ZsnapdbError(
            f"writing the result to stdout: {error.strerror}", hint="the command itself has ended; free space there"
        ) from error


def _stdout_has_no_reader() -> bool:
    """Return whether stdout is a pipe or socket whose other end is closed (poll(2))."""
    poll = select.poll()
    poll.register(1, 0)
    return any(flags & (select.POLLERR | select.POLLHUP) for _, flags in poll.poll(0))


def _run(command: Callable[[], object]) -> int:
    try:
        command()
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except Failure as failure:
        if not isinstance(failure.error, KeyboardInterrupt):
            raise failure.error from None
        _print("interrupted")
        _print_notes(failure.error)
        return INTERRUPTED
    return 0


def _failed(whole: ZsnapdbError) -> int:
    whole.hint = complete(whole.hint)
    error = run_context.current_audience().told(whole)
    if error is whole:
        _print(str(error))
        _print_notes(error)
    else:
        record_for_administrators(f"{whole.code}: {whole}")
        _print(str(error))
    if "--json" in sys.argv:
        from zsnapdb.report import view

        _print_document(view.error_json(error))
    return error.exit_code


def record_for_administrators(text: str) -> None:
    """Write a text to the system log, because the reader of this command's output may not see it."""
    import syslog

    syslog.openlog("zsnapdb", syslog.LOG_PID, syslog.LOG_AUTHPRIV)
    syslog.syslog(syslog.LOG_NOTICE, f"for {run_context.current_audience().owner}: {printed(text)}"[:_MOST_RECORDED])


def _print_document(text: str) -> None:
    """Print the document of an error.

    A failed write to stdout is ignored, because the error is also on stderr. The exit code stays the same.
    """
    try:
        print(text, flush=True)
    except BrokenPipeError:
        raise
    except OSError:
        _forget(sys.stdout)


def unexpected_system_error(error: OSError) -> ZsnapdbError:
    """Return the ZsnapdbError for a system error that no module expected."""
    what = error.strerror or type(error).__name__
    where = f"{os.fsdecode(error.filename)}: " if isinstance(error.filename, str | bytes) else ""
    known = ZsnapdbError(f"{where}{what}", hint="check that the file or folder exists, and that zsnapdb may use it")
    for note in getattr(error, "__notes__", ()):
        known.add_note(note)
    assert known.exit_code == INTERNAL
    return known


def _for_this_account(error: ZsnapdbError) -> ZsnapdbError:
    """Begin the message with "you may not" if the system denied access and the account is not root.

    If the account wants a clone of another host, say which commands reach that host. The exit code does not change.
    """
    if os.geteuid() == 0:
        return error
    is_clone = sys.argv[1:2] == ["clone"] and sys.argv[2:3] != ["tunnel"]
    if is_clone and os.environ.get("ZSNAPDB_URL") and _has_cause(error, FileNotFoundError, PermissionError):
        error.hint = (
            "open the page of ZSNAPDB_URL or use the Python client; only `zsnapdb clone tunnel` and `zsnapdb mcp` "
            "use ZSNAPDB_URL"
        )
        return error
    if not _has_cause(error, PermissionError):
        return error
    clones = ", or `sudo zsnapdb-clone` if your administrator allows it" if sys.argv[1:2] == ["clone"] else ""
    error.message = f"you may not do this: {error.message}"
    error.hint = f"run the command as root, for example with sudo{clones}"
    return error


def _has_cause(error: BaseException, *kinds: type[OSError]) -> bool:
    """Return whether the chain of the error's causes contains a system error of these kinds."""
    cause = error.__cause__
    while cause is not None:
        if isinstance(cause, kinds):
            return True
        cause = cause.__cause__
    return False


def _forget(stream: TextIO) -> None:
    """Redirect a standard stream to /dev/null, so that the interpreter's last flush cannot fail."""
    with contextlib.suppress(OSError):
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, stream.fileno())
        os.close(null)


def _print(text: str) -> None:
    """Print the line of an error to stderr, if stderr still has a reader."""
    from zsnapdb.cli import log_writer

    log_writer.error(text)


def _print_notes(error: BaseException) -> None:
    for note in getattr(error, "__notes__", ()):
        _print(note)
