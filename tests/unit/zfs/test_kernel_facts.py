"""What the kernel shows becomes facts; what it does not show is not known."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from zsnapdb.planning.advice.facts import MemoryFacts
from zsnapdb.zfs import kernel_facts


def write(root: Path, name: str, text: str) -> None:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_memory_arc_and_parameters_are_read(tmp_path: Path) -> None:
    write(tmp_path, "proc/meminfo", "MemTotal:        3068516 kB\nMemFree:  1 kB\n")
    write(
        tmp_path,
        "proc/spl/kstat/zfs/arcstats",
        "9 1 0x01 147 39984 1 2\nname                            type data\nc_min  4 67108864\nc_max  4 536870912\n",
    )
    write(tmp_path, "sys/module/zfs/parameters/zfs_nocacheflush", "1\n")
    assert kernel_facts.read_memory(root=tmp_path) == MemoryFacts(3068516 << 10, 536870912, {"zfs_nocacheflush": "1"})


def test_what_the_kernel_does_not_show_is_not_known(tmp_path: Path) -> None:
    assert kernel_facts.read_memory(root=tmp_path) == MemoryFacts(None, None, {})
    assert not kernel_facts.uses_selinux(tmp_path)


@pytest.mark.parametrize(
    ("files", "free"),
    [
        ({"proc/meminfo": "MemTotal:  8000 kB\nMemAvailable:  4000 kB\n"}, 4000 << 10),
        (
            {
                "proc/meminfo": "MemAvailable:  4000 kB\n",
                "proc/self/cgroup": "0::/system.slice/zsnapdb.service\n",
                "sys/fs/cgroup/system.slice/memory.max": "1048576\n",
                "sys/fs/cgroup/system.slice/zsnapdb.service/memory.max": "max\n",
            },
            1 << 20,
        ),
        (
            {
                "proc/meminfo": "MemAvailable:  4000 kB\n",
                "proc/self/cgroup": "0::/x\n",
                "sys/fs/cgroup/x/memory.max": "1048576\n",
                "sys/fs/cgroup/x/memory.current": "1000000\n",
            },
            48576,
        ),
        # A container sees its own group as the top.
        (
            {
                "proc/meminfo": "MemAvailable: 4000 kB\n",
                "proc/self/cgroup": "0::/\n",
                "sys/fs/cgroup/memory.max": "9\n",
            },
            9,
        ),
        # Before version 2 a group is not named like this.
        ({"proc/meminfo": "MemAvailable: 4000 kB\n", "proc/self/cgroup": "5:memory:/x\n"}, 4000 << 10),
        ({"proc/meminfo": "MemTotal: 4000 kB\n"}, None),
        ({}, None),
    ],
)
def test_a_program_can_have_what_the_kernel_and_its_control_groups_leave(
    tmp_path: Path, files: Mapping[str, str], free: int | None
) -> None:
    for name, text in files.items():
        write(tmp_path, name, text)
    assert kernel_facts.free_memory(tmp_path) == free
