"""`python3 tests/lab …`: build the lab; run the demo, the tests, a command or a shell in a guest."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

if __package__ in (None, ""):
    # Started as a folder: set the package name that the tests use.
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
    __package__ = "tests.lab"

from tests.lab import build, campaign, servers, shell, suite, zfs_releases
from tests.lab.cache import Cache
from tests.lab.folders import remove_own
from tests.lab.guest import ENCRYPTED, FLAVOURS, Guest, Lab
from tests.lab.host import LabError, complete_path


def _to_terminal(descriptor: int, data: bytes) -> None:
    stream = sys.stdout if descriptor == 1 else sys.stderr
    stream.buffer.write(data)
    stream.flush()


def _build(cache: Cache, options: argparse.Namespace) -> int:
    began = time.monotonic()
    names = [options.server] if options.server else []
    more = [make(name) for name in names for make in (servers.product, servers.image)]
    more += zfs_releases.needed(options.zfs, options.server) if options.zfs else []
    paths = build.build(cache, more)
    print(f"the lab is ready in {cache.top} ({time.monotonic() - began:.0f} s)")
    for name, path in paths.items():
        print(f"  {name:<14} {path.name}")
    return 0


def _demo(cache: Cache, options: argparse.Namespace) -> int:
    lab = Lab.ready(cache, is_whole=False)
    codes, steps, checks = [], [], []
    for flavour in [options.flavour] if options.flavour else ["mysql", "mariadb"]:
        began = time.monotonic()
        with Guest.boot(lab, flavour) as guest:
            print(f"{flavour}: a guest with its server is up after {guest.boot_seconds:.1f} s", flush=True)
            done = guest.run(
                ["/opt/venv/bin/python", "/checkout/tests/lab/inside/demo.py"], timeout=600, sink=_to_terminal
            )
            codes.append(done.code)
            written = guest.out / "demo.json"
            if written.exists():
                document = json.loads(written.read_text())
                steps.append({"flavour": flavour, "name": "boot a guest", "seconds": round(guest.boot_seconds, 2)})
                steps += [{"flavour": flavour, **step} for step in document["steps"]]
                checks += [{"flavour": flavour, **check} for check in document["checks"]]
        print(f"{flavour}: all in all {time.monotonic() - began:.0f} s", flush=True)
    if options.json:
        options.json.write_text(json.dumps({"steps": steps, "checks": checks}, indent=1) + "\n")
    return max(codes)


def _test(cache: Cache, options: argparse.Namespace) -> int:
    names = [word for word in options.arguments if "/" in word]
    if options.server is not None and not (names and all(word.startswith("tests/system/") for word in names)):
        raise LabError("name files of tests/system with --server: other tests have servers of their own")
    lab = Lab.ready(cache, server=options.server)
    return suite.run(lab, options.arguments, all_flavours=options.all_flavours)


def _campaign(cache: Cache, options: argparse.Namespace) -> int:
    lab = Lab.ready(cache, server=options.server)
    flavours = [options.flavour] if options.flavour and options.server is None else lab.flavours
    outcomes = campaign.run(lab, options.name, flavours, options.arguments, timeout=options.timeout, keep=options.out)
    for outcome in outcomes:
        print(
            f"{options.name}, {outcome.flavour}: {'ok' if outcome.code == 0 else 'FAILED'}, {outcome.seconds:.0f} s",
            flush=True,
        )
    return max(outcome.code for outcome in outcomes)


def _exec(cache: Cache, options: argparse.Namespace) -> int:
    command = options.command[1:] if options.command[:1] == ["--"] else options.command
    if not command:
        raise LabError("no command given: python3 tests/lab exec [options] -- CMD…")
    lab, flavour = _lab(cache, options)
    with Guest.boot(lab, flavour) as guest:
        code = guest.run(command, timeout=options.timeout, sink=_to_terminal).code
        if options.out:
            shutil.copytree(guest.out, options.out, dirs_exist_ok=True)
    return code


def _lab(cache: Cache, options: argparse.Namespace) -> tuple[Lab, str]:
    name = options.server
    return Lab.ready(cache, server=name), options.flavour if name is None else servers.SERVERS[name].flavour


def _shell(cache: Cache, options: argparse.Namespace) -> int:
    lab, flavour = _lab(cache, options)
    with Guest.boot(lab, flavour) as guest:
        return shell.attach(guest)


def _add_encrypted(parser: argparse.ArgumentParser) -> None:
    text = "the servers of guests lie on datasets that ZFS encrypts, and are sent in this form"
    parser.add_argument("--encrypted", choices=("plain", "raw"), help=text)


def _add_server(parser: argparse.ArgumentParser, what: str) -> None:
    parser.add_argument("--server", choices=list(servers.SERVERS), help=what)


def _add_zfs(parser: argparse.ArgumentParser) -> None:
    text = "guests have this release of OpenZFS"
    parser.add_argument("--zfs", choices=list(zfs_releases.RELEASES), help=text)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python3 tests/lab", description="Real OpenZFS, MySQL and MariaDB in User Mode Linux guests."
    )
    parser.add_argument(
        "--cache",
        type=Path,
        help="cache folder (default: $ZSNAPDB_LAB_CACHE, else zsnapdb-lab in the XDG cache folder)",
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    made = commands.add_parser("build", help="build what is missing; instant if nothing is")
    _add_server(made, "fetch and prepare this server too")
    made.set_defaults(run=_build)
    demo = commands.add_parser(
        "demo", help="the main job: backups under load, restores, clones, compared with the truth"
    )
    demo.add_argument("--flavour", choices=FLAVOURS[:2], help="only this one (default: both)")
    _add_encrypted(demo)
    demo.add_argument("--json", type=Path, metavar="FILE", help="write steps and checks there")
    demo.set_defaults(run=_demo)
    test = commands.add_parser(
        "test", help="lint, types, unit, system and fault tests; or only what the arguments name"
    )
    test.add_argument(
        "--all-flavours",
        action="store_true",
        help="run every test on both flavours, also the tests that a whole run starts on one (mark any_server)",
    )
    _add_server(test, "run these files of tests/system with this release instead of the lab's server")
    _add_encrypted(test)
    test.add_argument("arguments", nargs=argparse.REMAINDER, metavar="PYTEST-ARGUMENTS")
    test.set_defaults(run=_test)
    long = commands.add_parser("campaign", help="a long, seeded proof in guests: " + ", ".join(campaign.known()))
    long.add_argument("--flavour", choices=FLAVOURS[:2], help="only this one (default: both, side by side)")
    _add_server(long, "with this release instead of the lab's server; not for campaigns that run on the host")
    _add_encrypted(long)
    long.add_argument("--out", type=Path, metavar="DIR", help="its JSON goes there")
    long.add_argument("--timeout", type=float, default=7200.0, metavar="SECONDS")
    long.add_argument("name", metavar="NAME")
    long.add_argument(
        "arguments",
        nargs=argparse.REMAINDER,
        metavar="ARGUMENTS",
        help="the campaign's own, such as --rounds 100 --seed 1",
    )
    long.set_defaults(run=_campaign)
    run = commands.add_parser("exec", help="run a command as root in a fresh guest")
    run.add_argument("--flavour", choices=FLAVOURS, default="mysql")
    _add_server(run, "with this release instead of the lab's server")
    run.add_argument("--out", type=Path, metavar="DIR", help="what the command leaves in the guest's /out comes here")
    run.add_argument("--timeout", type=float, default=600.0, metavar="SECONDS")
    run.add_argument("command", nargs=argparse.REMAINDER, metavar="-- CMD…")
    run.set_defaults(run=_exec)
    inside = commands.add_parser("shell", help="an interactive shell in a fresh guest")
    inside.add_argument("--flavour", choices=FLAVOURS, default="mysql")
    _add_server(inside, "with this release instead of the lab's server")
    inside.set_defaults(run=_shell)
    for command in (made, demo, test, long, run, inside):
        _add_zfs(command)
    return parser


def _interrupt(number: int, frame: object) -> None:
    raise KeyboardInterrupt


def main() -> int:
    """Run one command of the lab and return its exit status. No process keeps running."""
    options = _parser().parse_args()
    complete_path()
    signal.signal(signal.SIGTERM, _interrupt)
    cache = Cache(options.cache.resolve()) if options.cache else Cache.default()
    os.environ["ZSNAPDB_LAB_CACHE"] = str(cache.top)
    if getattr(options, "encrypted", None) is not None:
        os.environ[ENCRYPTED] = options.encrypted
    if options.zfs is not None:
        os.environ[zfs_releases.CHOSEN] = options.zfs
    try:
        return int(options.run(cache, options))
    except LabError as error:
        print(f"lab: {error}", file=sys.stderr)
        return 1
    except subprocess.CalledProcessError as error:
        print(f"lab: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("lab: interrupted", file=sys.stderr)
        remove_own(cache.runs)
        return 130


if __name__ == "__main__":
    sys.exit(main())
