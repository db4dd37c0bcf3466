"""The walker and OpenZFS's own tool agree on real send streams."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from zsnapdb.base.errors import DamagedError
from zsnapdb.stream.raw_stream_key import FIRST_BYTES, wrapped_key
from zsnapdb.stream.send_stream_checks import DatasetKind, ExpectedStream, Senders, Walker
from zsnapdb.zfs import datasets

from .in_guest import run

pytestmark = pytest.mark.any_server

TOP = "tank/walked"


def zfs(*argv: str) -> None:
    done = run("zfs", *argv)
    assert done.code == 0, done.stderr


def files(folder: Path, generation: int) -> None:
    """Files that make records of all kinds: holes, tails, tiny ones, many attributes (spill blocks), removed ones."""
    (folder / "large").write_bytes(os.urandom(3 << 20) + bytes(2 << 20) + b"tail")
    (folder / f"tiny-{generation}").write_bytes(b"embedded?" * 5)
    with (folder / "sparse").open("wb") as file:
        file.seek(50 << 20)
        file.write(b"end" * generation)
    for number in range(30):
        (folder / f"small-{number}").write_text(f"{generation} {number} " * (number * 40))
    attributed = folder / "attributed"
    attributed.write_text("x")
    for number in range(12):
        os.setxattr(attributed, f"user.attribute{number}", b"v" * 500 * generation)
    for number in range(generation * 5, generation * 5 + 5):
        (folder / f"small-{number}").unlink()


@pytest.fixture(scope="module")
def walked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A plain and an encrypted dataset with two snapshots and a bookmark each."""
    key = tmp_path_factory.mktemp("key") / "key"
    key.write_bytes(os.urandom(32))
    zfs("create", "-o", "recordsize=1M", "-o", "compression=lz4", "-o", "xattr=sa", "-o", "dnodesize=auto", TOP)
    try:
        zfs("create", "-o", "encryption=on", "-o", "keyformat=raw", "-o", f"keylocation=file://{key}", f"{TOP}/secret")
        for name in (TOP, f"{TOP}/secret"):
            folder = (
                Path(f"/{name}")
                if Path(f"/{name}").is_dir()
                else Path(run("zfs", "get", "-H", "-o", "value", "mountpoint", name).stdout.strip())
            )
            if not folder.is_dir():
                folder = tmp_path_factory.mktemp("mount")
                zfs("set", f"mountpoint={folder}", name)
            files(folder, 1)
            zfs("snapshot", f"{name}@1")
            zfs("bookmark", f"{name}@1", f"{name}#1")
            files(folder, 2)
            zfs("snapshot", f"{name}@2")
        yield TOP
    finally:
        zfs("destroy", "-r", TOP)


@pytest.mark.parametrize(
    "argv",
    [
        ("-L", "{}@1"),
        ("-L", "-c", "{}@1"),
        ("-L", "-e", "{}@1"),
        ("{}@1",),
        ("-L", "-i", "@1", "{}@2"),
        ("-L", "-c", "-i", "#1", "{}@2"),
        ("-L", "-e", "-c", "-i", "@1", "{}@2"),
        ("-w", "{}/secret@1"),
        ("-w", "-i", "#1", "{}/secret@2"),
        ("-L", "{}/secret@1"),
    ],
    ids=" ".join,
)
def test_the_walker_sees_what_zstream_sees(walked: str, argv: tuple[str, ...]) -> None:
    words = [word.format(walked) for word in argv]
    data = subprocess.run(["zfs", "send", *words], capture_output=True, check=True).stdout
    dumped = subprocess.run(["zstream", "dump"], input=data, capture_output=True, check=True).stdout.decode()
    total = re.search(r"Total records = (\d+)", dumped)
    assert total is not None, dumped
    base = 0 if len(words) < 3 or "-i" not in words else datasets.guid(f"{words[-1][:-2]}@1")
    for size in (1 << 20, 4099):
        walker = Walker(senders=Senders.ANY)
        for start in range(0, len(data), size):
            walker.feed(memoryview(data)[start : start + size])
        begin = walker.finish()
        assert walker.records == int(total.group(1))
        ExpectedStream(words[-1], DatasetKind.FILESYSTEM, datasets.guid(words[-1]), base, begin.features).check(begin)
    for cut in (1, 312, len(data) // 2):
        walker = Walker(senders=Senders.ANY)
        walker.feed(memoryview(data)[:-cut])
        with pytest.raises(DamagedError, match="before its END"):
            walker.finish()


@pytest.mark.parametrize(
    ("argv", "accepted"),
    [
        *((("-L", *more, *of), True) for more in ((), ("-c",)) for of in (("{}@1",), ("-i", "#1", "{}@2"))),
        (("-L", "-e", "{}@1"), False),
        (("-L", "-p", "{}@1"), False),
        (("-R", "-w", "{}@1"), False),
        (("-w", "{}/secret@1"), False),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_only_the_streams_of_our_own_sends_are_accepted(walked: str, argv: tuple[str, ...], accepted: bool) -> None:
    words = [word.format(walked) for word in argv]
    data = subprocess.run(["zfs", "send", *words], capture_output=True, check=True).stdout
    walker = Walker()
    if accepted:
        walker.feed(memoryview(data))
        assert walker.finish().to_guid == datasets.guid(words[-1])
    else:
        with pytest.raises(DamagedError, match=r"not accepted|package|payload"):
            walker.feed(memoryview(data))


def test_a_raw_stream_is_accepted_where_one_is_expected_and_proves_the_key(walked: str, tmp_path: Path) -> None:
    volume = f"{walked}/secret/volume"
    zfs("create", "-V", "8M", "-s", volume)
    zfs("snapshot", f"{volume}@1")
    words = run("zfs", "get", "-H", "-o", "value", "keylocation", f"{walked}/secret").stdout.strip()
    key = Path(words.removeprefix("file://")).read_bytes()
    for name, kind in ((f"{walked}/secret", DatasetKind.FILESYSTEM), (volume, DatasetKind.ZVOL)):
        data = sent_raw(f"{name}@1", kind)
        wrapped = wrapped_key(data[:FIRST_BYTES])
        assert wrapped is not None
        assert (wrapped.is_opened_by(key), wrapped.is_opened_by(bytes(32))) == (True, False)
    assert sent_raw(f"{walked}/secret@2", base=f"{walked}/secret#1") == sent_raw(
        f"{walked}/secret@2", base=f"{walked}/secret@1"
    )
    other = tmp_path / "other"
    other.write_bytes(os.urandom(32))
    zfs("change-key", "-o", f"keylocation=file://{other}", f"{walked}/secret")
    zfs("snapshot", f"{walked}/secret@3")
    wrapped = wrapped_key(sent_raw(f"{walked}/secret@3", base=f"{walked}/secret#1")[:FIRST_BYTES])
    assert wrapped is not None
    assert (wrapped.is_opened_by(key), wrapped.is_opened_by(other.read_bytes())) == (False, True)


def sent_raw(name: str, kind: DatasetKind = DatasetKind.FILESYSTEM, *, base: str | None = None) -> bytes:
    """Return a raw stream of our form, every record of which was accepted."""
    step = [] if base is None else ["-i", base]
    data = subprocess.run(["zfs", "send", "-L", "-w", *step, name], capture_output=True, check=True).stdout
    from_guid = 0 if base is None else datasets.guid(base.replace("#", "@"))
    walker = Walker(ExpectedStream(name, kind, datasets.guid(name), from_guid, is_raw=True))
    walker.feed(memoryview(data))
    walker.finish()
    return data
