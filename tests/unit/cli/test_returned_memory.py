"""What the threads of a service have freed, the next thread uses."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.unit.support.command_line import ENVIRONMENT

THREADS, EACH = 12, 8 << 20
READS = f"""
import sys, threading
if sys.argv[1] == "gives back":
    from zsnapdb.cli.process_attributes import give_back_memory
    give_back_memory()
together, turn, kept = threading.Barrier({THREADS}), threading.Lock(), []

def read():
    together.wait()
    with turn:
        parts = [bytes(4096) for _ in range({EACH} // 4096)]
        # What is kept lies behind what is freed, so that the heap cannot shrink.
        kept.append(parts.pop())
        del parts
    together.wait()

threads = [threading.Thread(target=read) for _ in range({THREADS})]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
(line,) = (line for line in open("/proc/self/smaps_rollup") if line.startswith("Anonymous:"))
print(line.split()[1])
"""


def anonymous_bytes(way: str) -> int:
    """Return the memory of a process whose threads each read something large, one after the other."""
    done = subprocess.run(
        [sys.executable, "-c", READS, way], env=ENVIRONMENT, capture_output=True, text=True, check=True
    )
    return int(done.stdout) << 10


@pytest.mark.skipif("CS_GNU_LIBC_VERSION" not in os.confstr_names, reason="this is not the GNU C library")
def test_a_service_has_as_much_memory_as_one_thread_needed_not_as_all_did() -> None:
    kept, given_back = anonymous_bytes("keeps"), anonymous_bytes("gives back")
    assert kept > THREADS // 2 * EACH, "threads have heaps of their own"
    assert given_back < 4 * EACH
