"""Campaign: every parser of untrusted data, with many corrupted documents and a memory limit.

`python3 tests/lab campaign fuzz` runs it in a guest. It needs no guest: `python tests/campaigns/fuzz.py` does the same
on any host. The parsers are those of tests/unit/support/foreign_parsers.py. A parser fails if it raises anything other
than an error of the package, is slow, or exceeds the memory limit; its example is printed.
"""

from __future__ import annotations

import argparse
import resource
import sys
import time
import traceback
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from tests.unit.support.foreign_parsers import PARSERS, ForeignParser, check

ANY_SERVER = True
MEMORY = 3 << 30
"""Address space of the whole process in bytes."""


def _fuzz(parser: ForeignParser, examples: int, number: int) -> bool:
    last = [b""]

    @seed(number)
    @settings(
        max_examples=examples,
        deadline=None,
        database=None,
        phases=(Phase.generate,),
        suppress_health_check=list(HealthCheck),
    )
    @given(st.data())
    def spoil(data: st.DataObject) -> None:
        last[0] = data.draw(parser.examples)
        check(parser, last[0])

    began = time.monotonic()
    try:
        spoil()
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        print(f"{parser.name}: {type(error).__name__}: {str(error)[:200]}", flush=True)
        print("".join(traceback.format_tb(error.__traceback__)[-4:]), repr(last[0][:400]), flush=True)
        return False
    print(f"{parser.name}: {examples} examples in {time.monotonic() - began:.0f} s", flush=True)
    return True


def main() -> int:
    options = argparse.ArgumentParser()
    options.add_argument("--examples", type=int, default=10_000)
    options.add_argument("--seed", type=int, default=1)
    options.add_argument("--only", default="", help="a part of the names of parsers")
    given_options = options.parse_args()
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    chosen = [parser for parser in PARSERS if given_options.only in parser.name]
    wrong = [parser.name for parser in chosen if not _fuzz(parser, given_options.examples, given_options.seed)]
    print(f"{len(chosen)} parsers, {given_options.examples} examples each; wrong: {', '.join(wrong) or 'none'}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
