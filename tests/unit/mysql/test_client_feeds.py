"""A replay by a client runs every byte once, and the default engine changes where the plan stops."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zsnapdb.base.errors import CommandError
from zsnapdb.mysql.process import programs
from zsnapdb.mysql.process.programs import Feed
from zsnapdb.mysql.replication.replay import client_feeds
from zsnapdb.planning.binlog.created_tables import EngineStop

FILES = [Path(f"/r/relay.{number:06d}") for number in (1, 2, 3)]
SIZE = 1000


def ranges(argv: list[str]) -> list[tuple[int, int, int]]:
    """Return file, start and end of what the binlog tool reads."""
    words = dict(word.split("=", 1) for word in argv if word.startswith("--") and "=" in word)
    numbers = [1 + FILES.index(Path(word)) for word in argv if word.startswith("/r/")]
    result = [[number, 4, SIZE] for number in numbers]
    result[0][1] = int(words["--start-position"])
    result[-1][2] = int(words.get("--stop-position", SIZE))
    return [(number, start, end) for number, start, end in result if start < end]


places = st.lists(st.tuples(st.integers(1, 3), st.integers(4, SIZE - 1)), unique=True, max_size=5).map(sorted)


@given(places, st.integers(4, 500))
def test_every_byte_is_replayed_once_with_its_engine(found: list[tuple[int, int]], start: int) -> None:
    stops = [
        EngineStop(*place, place[1] + 1, f"E{at}", "dynamic") for at, place in enumerate(found) if place >= (1, start)
    ]
    feeds = client_feeds(Path("/bin/tool"), FILES, start, Path("/scratch"), stops)
    engine, seen = "", []
    for feed in feeds:
        engine = feed.text.decode().partition("'")[2].partition("'")[0] if feed.text else engine
        seen += [(*one, engine) for one in ranges(list(feed.argv))] if feed.argv is not None else []
    at = (1, start)
    for number, begin, end, used in seen:
        assert (number, begin) == at
        passed = [stop.engine for stop in stops if (stop.number, stop.offset) <= at]
        assert used == (passed[-1] if passed else "")
        assert not [stop for stop in stops if at < (stop.number, stop.offset) < (number, end)]
        at = (number + 1, 4) if end == SIZE else (number, end)
    assert at == (4, 4)


def test_the_feeds_go_into_one_program_in_order(tmp_path: Path) -> None:
    feeds = [Feed(b"", ["echo", "a"]), Feed(b"b\n", None), Feed(b"c\n", ["echo", "d"])]
    programs.feed(feeds, ["sh", "-c", f"cat > {tmp_path}/out"], timeout=30 * 86_400.0)
    assert (tmp_path / "out").read_text() == "a\nb\nc\nd\n"


def test_nothing_follows_a_feed_that_fails(tmp_path: Path) -> None:
    feeds = [Feed(b"", ["sh", "-c", "echo a; echo no >&2; exit 3"]), Feed(b"b\n", ["echo", "c"])]
    with pytest.raises(CommandError, match="exit status 3: no"):
        programs.feed(feeds, ["sh", "-c", f"cat > {tmp_path}/out"], timeout=60)
    assert (tmp_path / "out").read_text() == "a\n"


def test_the_failure_of_the_program_is_told() -> None:
    feeds = [Feed(b"", ["sh", "-c", "yes"]), Feed(b"b\n" * 100_000, None)]
    with pytest.raises(CommandError, match="exit status 4: broken"):
        programs.feed(feeds, ["sh", "-c", "echo broken >&2; exit 4"], timeout=60)


def test_program_that_stops_reading_ends_at_the_deadline() -> None:
    feeds = [Feed(b"b" * (1 << 20), ["true"])]
    began = time.monotonic()
    with pytest.raises(CommandError, match="did not end within"):
        programs.feed(feeds, ["sh", "-c", "head -c 10; exec sleep 60"], timeout=0.5)
    assert time.monotonic() - began < 30
