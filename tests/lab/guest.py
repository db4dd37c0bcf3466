"""Guests: boot, commands, power cuts, reboots on the same disks, and complete removal."""

from __future__ import annotations

import base64
import contextlib
import ctypes
import itertools
import json
import os
import shutil
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType

from .cache import Cache
from .folders import new_folder, wait_unused
from .host import Bind, LabError, in_root

CHECKOUT = Path(__file__).resolve().parents[2]
POOL_BYTES = 12 << 30
MAPPINGS = 1 << 20
MODULES = "lib/modules/lab"
"""Path of the OpenZFS modules in a guest."""
FLAVOURS = ("mysql", "mariadb", "none")
# Messages of the boot script after a failed step.
BOOT_FAILURES = ("no zfs module", "no pool", "server did not start")
LAB_INIT, SYSTEMD = "lab", "systemd"
"""Process 1 of a guest: the agent, or systemd with the agent as a service."""

LINE_ROOM, LINE_PIECE = 3072, 1024
"""Limit of unread bytes on the line to the agent, and size in bytes of one write.

A guest's kernel stops reading a line with more than 3,968 unread bytes: `line_throttle` of arch/um/drivers/line.c
removes it from the polled files, and `line_unthrottle` reads once and does not add it again.
"""

Sink = Callable[[int, bytes], None]


ENCRYPTED = "ZSNAPDB_LAB_ENCRYPTED"
"""Environment variable with the send form of encrypted servers, for fault tests, which start guests themselves."""


@dataclass(frozen=True)
class Lab:
    """The built products, and the number of processors of a guest.

    - `modules`: the kernel's modules and their files (None: they are in the root)
    - `server`: the tree of another release, which replaces the lab's server in a guest
    - `form`: the server is on datasets that ZFS encrypts, and its backups are sent in this form (plain or raw). None:
      no encryption.
    """

    kernel: Path
    base: Path
    root: Path
    images: Mapping[str, Path]
    cache: Cache
    processors: int = 1
    modules: Path | None = None
    server: Path | None = None
    form: str | None = None

    @property
    def flavours(self) -> tuple[str, ...]:
        """The possible flavours of its guests. Another release has one."""
        return tuple(sorted(self.images)) if self.server is not None else FLAVOURS[:2]

    @classmethod
    def ready(
        cls, cache: Cache | None = None, *, processors: int = 1, server: str | None = None, is_whole: bool = True
    ) -> Lab:
        """Build the missing products and return the lab. Its guests have one or two processors.

        `server` names another release (servers.py) for guests of its flavour. Unless `is_whole`, only the products for
        guests with a server are built.
        """
        from . import zfs_releases
        from .build import SMP_KERNEL, SMP_ZFS, build, several_processors
        from .servers import SERVERS, image, product

        if processors not in (1, 2):
            raise LabError(f"a guest has 1 or 2 processors, not {processors}")
        cache = cache or Cache.default()
        more = several_processors() if processors > 1 else []
        zfs = os.environ.get(zfs_releases.CHOSEN)
        if zfs is not None:
            if processors > 1:
                raise LabError("another release of OpenZFS is built for guests with one processor alone")
            more = zfs_releases.needed(zfs, server)
        if server is not None:
            more = [product(server), image(server), *more]
        paths = build(cache, more, is_whole=is_whole)
        of_server = {"mysql": "mysql", "mariadb": "mariadb"} if server is None else {SERVERS[server].flavour: server}
        images = {flavour: paths[zfs_releases.image_of(zfs, name)] for flavour, name in of_server.items()}
        _compile(paths["guest"])
        lab = cls(
            kernel=paths[zfs_releases.kernel_of(zfs)] / "linux",
            base=paths["base"],
            root=paths["guest"],
            images=images,
            cache=cache,
            server=None if server is None else paths[f"server-{server}"],
            modules=None if zfs is None else paths[f"zfs-{zfs}"],
            form=os.environ.get(ENCRYPTED),
        )
        if processors == 1:
            return lab
        return replace(lab, kernel=paths[SMP_KERNEL] / "linux", modules=paths[SMP_ZFS], processors=processors)


@dataclass(frozen=True)
class Outcome:
    """The result of a command in the guest: exit status (128 + signal if killed) and output."""

    code: int
    stdout: str
    stderr: str

    def check(self) -> Outcome:
        """Return self, or raise LabError with both outputs if the command failed."""
        if self.code != 0:
            raise LabError(
                f"command in the guest ended with exit status {self.code}\n{self.stdout[-4000:]}\n{self.stderr[-4000:]}"
            )
        return self


@dataclass
class Running:
    guest: Guest
    id: int
    sink: Sink | None
    collected: dict[int, bytearray] = field(default_factory=lambda: {1: bytearray(), 2: bytearray()})
    done: threading.Event = field(default_factory=threading.Event)
    code: int | None = None

    def receive(self, descriptor: int, data: bytes) -> None:
        if self.sink is not None:
            self.sink(descriptor, data)
        else:
            self.collected[descriptor] += data

    def write(self, data: bytes) -> None:
        """Send input to the command."""
        for start in range(0, len(data), 2048):
            self.guest.send(op="stdin", id=self.id, data=base64.b64encode(data[start : start + 2048]).decode())

    def signal(self, number: int) -> None:
        self.guest.send(op="signal", id=self.id, signal=number)

    def wait(self, timeout: float | None = None) -> Outcome:
        """Return the outcome.

        LabError after `timeout` seconds (the command is then killed), or if the guest ended.
        """
        if not self.done.wait(timeout):
            self.signal(signal.SIGKILL)
            self.done.wait(10)
            raise LabError(
                f"no end of the command within {timeout:.0f} s\n" + self.output(1)[-4000:] + self.output(2)[-4000:]
            )
        if self.code is None:
            raise LabError("the guest went away while the command ran\n" + self.guest.console_tail())
        return Outcome(self.code, self.output(1), self.output(2))

    def output(self, descriptor: int) -> str:
        """Return the output of one descriptor so far."""
        return self.collected[descriptor].decode(errors="replace")


class Guest:
    """One guest: its folder (disk, bucket, console log, /out) and, while it is on, its process.

    `bucket` is the data folder of its S3 server. It is outside the guest, so a power cut does not affect it.
    """

    def __init__(
        self, lab: Lab, flavour: str, folder: Path, folder_lock: int, memory_mib: int, init: str, bucket: Path | None
    ) -> None:
        self.lab = lab
        self.flavour = flavour
        self.folder = folder
        self.bucket = bucket or folder / "bucket"
        self.memory_mib = memory_mib
        self.init = init
        self._folder_lock = folder_lock
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None
        self._commands: dict[int, Running] = {}
        self._numbers = itertools.count(1)
        self._ready = threading.Event()
        self._sending = threading.Lock()
        self._unread = 0
        self._is_heard = False
        self._was_read = threading.Condition()
        self.boot_seconds = 0.0

    @classmethod
    def boot(
        cls,
        lab: Lab,
        flavour: str,
        *,
        memory_mib: int = 3072,
        blank_pool: bool = False,
        log: Path | None = None,
        init: str = LAB_INIT,
        bucket: Path | None = None,
    ) -> Guest:
        """Return a new guest that accepts commands; its server (if any) accepts queries.

        `flavour` is mysql, mariadb or none. `init` is its process 1, LAB_INIT or SYSTEMD. `bucket` of another guest
        shares that guest's repository. LabError with the console's last lines if it does not boot.
        """
        if flavour not in FLAVOURS:
            raise LabError(f"unknown flavour {flavour!r}; one of {', '.join(FLAVOURS)}")
        folder, lock = new_folder(lab.cache.runs, flavour)
        guest = cls(lab, flavour, folder, lock, memory_mib, init, bucket)
        try:
            guest.out.mkdir()
            guest.bucket.mkdir(exist_ok=True)
            guest._make_disks(blank_pool)
            guest.start(blank_pool=blank_pool)
        except BaseException:
            if log is not None and guest.console.exists():
                log.write_text(log.read_text() + guest.console.read_text(errors="replace"))
            guest.close()
            raise
        return guest

    def _make_disks(self, blank: bool) -> None:
        if blank:
            with self.pool.open("wb") as file:
                file.truncate(POOL_BYTES)
            return
        name = self.flavour if self.flavour != "none" else "mariadb"
        subprocess.run(
            ["cp", "--sparse=always", str(self.lab.images[name] / self.pool.name), str(self.pool)], check=True
        )

    @property
    def pool(self) -> Path:
        """The disk image of the guest's pool."""
        return self.folder / "pool.img"

    @property
    def out(self) -> Path:
        """The folder that the guest sees as /out."""
        return self.folder / "out"

    @property
    def console(self) -> Path:
        """The log of the guest's kernel and boot script."""
        return self.folder / "console.log"

    @property
    def is_on(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def console_tail(self) -> str:
        return "\n".join(self.console.read_text(errors="replace").splitlines()[-25:]) if self.console.exists() else ""

    def start(self, *, blank_pool: bool = False, timeout: float = 600.0) -> None:
        """Boot on the guest's current disks and wait until it accepts commands."""
        ours, theirs = socket.socketpair()
        descriptor = theirs.fileno()
        words = [
            f"mem={self.memory_mib}M seccomp=auto",
            f"root=/dev/root rootfstype=hostfs rootflags={self.lab.root} ro init=/usr/sbin/lab-init quiet",
            f"ubdb={self.pool}",
            f"uml_dir={self.folder / 'uml'} umid=guest panic=-1 con=null ssl=null",
            f"con0=null,fd:1 ssl0=fd:{descriptor},fd:{descriptor}",
            (
                f"lab.checkout={CHECKOUT} lab.out={self.out} lab.bucket={self.bucket} lab.flavour={self.flavour}"
                f" lab.pool={'none' if blank_pool else 'tank'}"
            ),
            f"lab.init={self.init}",
        ]
        if self.lab.server is not None:
            words.append(f"lab.server={self.lab.server}")
        if self.lab.form is not None and self.flavour != "none" and not blank_pool:
            words.append(f"lab.form={self.lab.form}")
        if self.lab.processors > 1:
            words.append(f"ncpus={self.lab.processors}")
        # The kernel is linked against the libc of its build tree, so it runs chrooted there.
        binds = [Bind(path, str(path)) for path in (self.lab.cache.top, CHECKOUT)]
        if self.lab.modules is not None:
            binds.append(Bind(self.lab.modules, f"{self.lab.root}/{MODULES}"))
        argv = in_root(self.lab.base, [str(self.lab.kernel), *" ".join(words).split()], binds, own_processes=True)
        _allow_many_mappings()
        started = time.monotonic()
        self._ready.clear()
        with self.console.open("ab") as console:
            self._process = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=console,
                stderr=console,
                pass_fds=[descriptor],
                start_new_session=True,
                preexec_fn=die_with_parent,
            )
        theirs.close()
        self._socket = ours
        self._unread, self._is_heard = 0, True
        threading.Thread(target=self._listen, args=(ours,), daemon=True).start()
        deadline = started + timeout
        while not self._ready.wait(0.05):
            if not self.is_on or time.monotonic() > deadline:
                state = "it ended" if not self.is_on else f"not ready after {timeout:.0f} s"
                self.power_cut()
                raise LabError(f"the guest did not boot: {state}\n{self.console_tail()}")
        output = self.console_tail().rpartition("loading modules")[2]
        if any(words in output for words in BOOT_FAILURES):
            raise LabError(f"the guest came up without its pool or its server\n{output}")
        self.boot_seconds = time.monotonic() - started

    def send(self, **message: object) -> None:
        """Send one message to the guest's agent, as fast as the agent reads."""
        line = self._socket
        if line is None:
            raise LabError("the guest is off")
        data = (json.dumps(message) + "\n").encode()
        with self._sending, contextlib.suppress(OSError):
            for start in range(0, len(data), LINE_PIECE):
                piece = data[start : start + LINE_PIECE]
                self._wait_for_room(len(piece))
                line.sendall(piece)

    def _wait_for_room(self, length: int) -> None:
        """Wait until the line has room for `length` more bytes, or has no reader."""
        with self._was_read:
            self._was_read.wait_for(lambda: not self._is_heard or self._unread + length <= LINE_ROOM)
            self._unread += length

    def _note_read(self, length: int, *, is_heard: bool = True) -> None:
        """Record that the agent has read `length` more bytes, and whether it continues to read."""
        with self._was_read:
            self._unread, self._is_heard = self._unread - length, is_heard
            self._was_read.notify_all()

    def _listen(self, line: socket.socket) -> None:
        pending = b""
        while True:
            try:
                data = line.recv(1 << 16)
            except OSError:
                data = b""
            if not data:
                break
            *lines, pending = (pending + data).split(b"\n")
            for text in lines:
                self._handle(json.loads(text))
        if line is self._socket:
            self._note_read(0, is_heard=False)
        for command in list(self._commands.values()):
            command.done.set()

    def _handle(self, message: dict[str, object]) -> None:
        if message["op"] == "ready":
            self._ready.set()
            return
        if message["op"] == "read":
            self._note_read(int(str(message["bytes"])))
            return
        command = self._commands.get(int(str(message["id"])))
        if command is None:
            return
        if message["op"] == "out":
            command.receive(int(str(message["fd"])), base64.b64decode(str(message["data"])))
        elif message["op"] == "exit":
            command.code = int(str(message["code"]))
            del self._commands[command.id]
            command.done.set()

    def spawn(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: str = "/root",
        sink: Sink | None = None,
        terminal: tuple[int, int] | None = None,
        keep_stdin: bool = False,
    ) -> Running:
        """Start a command as root in the guest. Output goes to `sink(descriptor, bytes)`, or is collected."""
        command = Running(self, next(self._numbers), sink)
        self._commands[command.id] = command
        self.send(op="run", id=command.id, argv=list(argv), env=dict(env or {}), cwd=cwd, pty=terminal)
        if not keep_stdin and terminal is None:
            self.send(op="eof", id=command.id)
        return command

    def run(
        self,
        argv: Sequence[str],
        *,
        timeout: float = 600.0,
        env: Mapping[str, str] | None = None,
        cwd: str = "/root",
        sink: Sink | None = None,
    ) -> Outcome:
        return self.spawn(argv, env=env, cwd=cwd, sink=sink).wait(timeout)

    def power_cut(self) -> None:
        """End the guest as a power cut does: nothing is flushed, and the disks keep the guest's earlier writes."""
        process = self._process
        if process is not None:
            if process.poll() is None:
                # When the unshare process dies, the kernel kills its child, process 1 of a PID namespace, and so all
                # processes of the guest.
                process.kill()
            process.wait()
            wait_unused(self.pool)
        self._process = None
        if self._socket is not None:
            self._socket.close()
            self._socket = None
            self._note_read(0, is_heard=False)

    def end(self) -> None:
        """Kill the guest, from any thread. Its waiting commands raise LabError. The owner closes the guest."""
        process = self._process
        if process is not None:
            process.kill()

    def power_off(self, timeout: float = 300.0) -> None:
        """Shut the guest down cleanly (server, pool, disks) and keep its disks."""
        if self.is_on:
            self.spawn(["/checkout/tests/lab/inside/halt"])
            assert self._process is not None
            try:
                self._process.wait(timeout)
            except subprocess.TimeoutExpired as error:
                raise LabError(f"the guest did not power off within {timeout:.0f} s\n{self.console_tail()}") from error
        self.power_cut()

    def close(self) -> None:
        self.power_cut()
        shutil.rmtree(self.folder, ignore_errors=True)
        with contextlib.suppress(OSError):
            os.close(self._folder_lock)

    def __enter__(self) -> Guest:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _compile(root: Path) -> None:
    """Compile the package into Python's cache folders. Otherwise each command in a guest compiles it again (0.6 s).

    A read-only checkout does not change.
    """
    argv = ["/opt/venv/bin/python", "-m", "compileall", "-q", "zsnapdb"]
    subprocess.run(
        in_root(root, argv, [Bind(CHECKOUT, str(CHECKOUT))], cwd=str(CHECKOUT), own_processes=True), capture_output=True
    )


def die_with_parent() -> None:
    """Let the kernel kill this process when the thread that started it ends (prctl(2), PR_SET_PDEATHSIG)."""
    pr_set_pdeathsig = 1
    ctypes.CDLL(None, use_errno=True).prctl(pr_set_pdeathsig, signal.SIGKILL, 0, 0, 0)


def _allow_many_mappings() -> None:
    """Raise the limit of memory mappings: a guest maps its memory page by page, and 65530 are too few."""
    limit = Path("/proc/sys/vm/max_map_count")
    if int(limit.read_text()) < MAPPINGS:
        limit.write_text(str(MAPPINGS))
