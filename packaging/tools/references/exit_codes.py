"""Page of exit codes and error codes in JSON."""

from __future__ import annotations

import inspect
from collections.abc import Iterator

from zsnapdb.base import errors
from zsnapdb.base.errors import EXIT_CODES, RetryClass, ZsnapdbError, retry_class

_HEAD = """# Exit codes

Every command ends with one of these codes, so that cron, systemd and scripts know what happened. `zsnapdb doctor` and
`zsnapdb status` have their own meaning of 0, 1 and 2 (see [the command line](command-line.md)).

With `--json` an error is a document on stdout:
`{"kind": "error", "error": {"code", "message", "hint"}, "exit_code", "retry"}`.
`code` is the code of its class below. Codes stay; messages and hints may change.

## Whether to repeat

`retry` says whether the same command is worth repeating. It follows from the exit code, and of 6 and 9 from the code
of the error too. A code that is not listed, such as that of a signal (137), counts as `twice`.

| repeat | meaning | exit codes |
|---|---|---|
TABLE

With `--once RUN` a repeated command does nothing twice ([scripting](../scripting.md#repeatable-commands)). An
exit code of a command that printed its result and no error is a verdict, and nothing to be repeated: of `doctor`,
`status`, `fleet status`, `verify`, `drill`, `prune` and `config check`.
"""

WHAT_TO_DO = {
    0: "Nothing.",
    1: "Read the message. If it is a traceback, report it with the version of zsnapdb.",
    2: "Read `zsnapdb COMMAND --help`. The hint names the form that the option needs.",
    3: "Mend the configuration: the message names every mistake, the hint the nearest known key. `zsnapdb config check`"
    " tells whether all is well.",
    4: "Nothing was changed. The hint says what prevents the operation. `zsnapdb doctor` lists everything at once.",
    5: "Check that the server runs, and that the account may connect and has its privileges (`zsnapdb grants`).",
    6: "Check the address, the credentials and the network of the repository. Try again: what was stored is not stored"
    " again.",
    7: "Run `zsnapdb verify`. It says what is damaged, what needs it, and what can still be restored. Then make a new"
    " backup, and copy what is whole to a second repository.",
    8: "Choose another name or target. zsnapdb overwrites nothing.",
    9: "The message has the output of the command. `zpool status` and the kernel log say whether the pool is well.",
    10: "The server was busy, or a long statement stood in the way. Try again, or see `lock.budget` and `lock.kill`.",
    11: "Look at the checks that failed before you use the result. `zsnapdb drills` keeps the evidence of drills.",
    12: "Look at the output of the hook in the message, and at its `timeout` and `on_failure`.",
    75: "Wait, or give `--wait`. A timer simply comes again.",
    130: "The command cleaned up after itself. Start it again: what can be continued is continued.",
    141: "Nothing, if it was intended, as with `| head`.",
}
"""Advice for each exit code."""

WHAT_TO_DO_AFTER = {
    "not-ours": "Look who made it: `zfs get -s local all NAME`. Who made it removes it; zsnapdb never will.",
    "not-allowed": "Run it as root. Clones can be had without root: `zsnapdb example sudoers.d/zsnapdb-clone`.",
    "lock-not-granted": "Find the statement that stands in the way (`SHOW PROCESSLIST`), or try again later.",
    "not-there": "`zsnapdb list` shows what there is. `zsnapdb init` makes a repository; the first backup does too.",
    "changed": "Somebody else wrote it at the same moment. Run the command again: it reads what is there now.",
    "unreachable": "Nothing that was stored is lost. Run the command again when the store answers; `patience` says how"
    " long a command waits by itself.",
    "archived": "Run `zsnapdb retrieve` for the point of the restore, and run the command again"
    " ([archive classes](../object-stores.md#archive-classes)).",
    "lease": "Two runs wrote backups of one instance, perhaps on two hosts. Let one host back it up, and run it again.",
    "damaged-backup": "`zsnapdb verify` names what needs this backup, and the next backup is a full one if it must be."
    " Restore an older backup, or use another repository.",
    "history": "The message names what is newer. `--accept-older` goes without it; a second repository may have it.",
    "ambiguous-point": "`zsnapdb binlog status` lists the histories. `--history ID` chooses one.",
    "command-timeout": "Look whether it still runs, and at `zpool status`: a pool that hangs answers nobody. Then try"
    " again.",
}
"""Advice for errors that is more specific than that for the exit code."""


def page() -> str:
    """Return the page as Markdown."""
    return "\n".join([_HEAD.replace("TABLE", _retries()), *_codes(), *_classes()]).rstrip() + "\n"


_MEANINGS = {
    RetryClass.AGAIN: "the cause passes: again, for as long as the result is wanted",
    RetryClass.NEVER: "until a person has changed something, it ends the same way",
    RetryClass.TWICE: "nobody knows: two attempts in all, then a person",
}


def _retries() -> str:
    """Return the rows of the table of retry classes."""
    rows = []
    for kind, meaning in _MEANINGS.items():
        codes = [f"[{code}](#{code})" for code in EXIT_CODES if code and retry_class(code) is kind]
        for error in error_classes():
            own = retry_class(error.exit_code, error.code)
            if own is kind and own is not retry_class(error.exit_code):
                codes.append(f"[{error.exit_code}](#{error.exit_code}) with [{error.code}](#{error.code})")
        rows.append(f"| `{kind.value}` | {meaning} | {', '.join(codes)} |")
    return "\n".join(rows)


def _codes() -> Iterator[str]:
    yield "## Exit codes"
    yield ""
    for code, meaning in EXIT_CODES.items():
        yield f"### {code}"
        yield ""
        yield f"{meaning[0].upper()}{meaning[1:]}."
        yield ""
        yield WHAT_TO_DO[code]
        yield ""
        names = ", ".join(f"[{error.code}](#{error.code})" for error in error_classes() if error.exit_code == code)
        if names:
            yield f"Errors: {names}."
            yield ""


def _classes() -> Iterator[str]:
    yield "## Errors"
    yield ""
    for error in error_classes():
        yield f"### {error.code}"
        yield ""
        parent = error.__mro__[1]
        kind = ""
        if issubclass(parent, ZsnapdbError) and parent is not ZsnapdbError:
            kind = f" It is a kind of [{parent.code}](#{parent.code})."
        yield f"{_first_paragraph(error)} Exit code [{error.exit_code}](#{error.exit_code}).{kind}"
        yield ""
        if error.code in WHAT_TO_DO_AFTER:
            yield WHAT_TO_DO_AFTER[error.code]
            yield ""


def _first_paragraph(error: type[ZsnapdbError]) -> str:
    return " ".join(inspect.cleandoc(error.__doc__ or "").split("\n\n")[0].split())


def error_classes() -> list[type[ZsnapdbError]]:
    """Return every class of `zsnapdb.base.errors`, in the order of the module."""
    return [kind for _, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, ZsnapdbError)]
