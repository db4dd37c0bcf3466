"""The commands of a page are found, run and compared without what differs from run to run."""

from __future__ import annotations

from tests.lab import guides

PAGE = """# Page

<!-- tried: bare host -->
```sh
apt-get install -y x    # a remark

ls
```

```console
# not marked
```

<!-- tried: guest -->
```console
# zsnapdb list main
BACKUP                 POSITION
20261122T031136Z-23f7  binlog.000003:30130554

# zsnapdb reset
# zsnapdb show
one

two
```
"""


def test_only_marked_blocks_of_the_place_are_found() -> None:
    assert [block.lines for block in guides.blocks(PAGE, "bare host")] == [["apt-get install -y x    # a remark", "ls"]]
    (block,) = guides.blocks(PAGE, "guest")
    assert [exchange.command for exchange in block.exchanges] == ["zsnapdb list main", "zsnapdb reset", "zsnapdb show"]
    assert [len(exchange.answer) for exchange in block.exchanges] == [2, 0, 3]


def test_a_page_that_is_written_anew_with_the_same_answers_is_the_same() -> None:
    answers = {e.command: "\n".join(e.answer) for block in guides.blocks(PAGE, "guest") for e in block.exchanges}
    said = guides.written_anew(PAGE, "guest", lambda command: answers[command])
    assert said == PAGE.replace("# zsnapdb reset\n# zsnapdb show", "# zsnapdb reset\n\n# zsnapdb show")
    other = guides.written_anew(PAGE, "guest", lambda command: "something else")
    assert other.count("something else") == 3
    assert "# not marked\n```" in other


def test_a_command_names_what_the_commands_before_it_made_in_this_run() -> None:
    page = PAGE.replace("# zsnapdb reset\n", "# zsnapdb show main 20261122T031136Z-23f7\n").replace("one\n\ntwo\n", "")
    asked: list[str] = []

    def answer(command: str) -> str:
        asked.append(command)
        return "a line more\n20270101T000000Z-0001  binlog.000007:5" if "list" in command else ""

    anew = guides.written_anew(page, "guest", answer)
    assert asked[1] == "zsnapdb show main 20270101T000000Z-0001"
    assert "# zsnapdb show main 20270101T000000Z-0001\n" in anew
    assert "23f7" not in anew


def test_lines_of_two_runs_are_equal_and_lines_that_say_something_else_are_not() -> None:
    pairs = [
        ("  lock      instance, held 9.4 ms", "  lock instance, held 12 ms"),
        ("a  20261122T031136Z-23f7  89.3 MiB", "a  20261123T131136Z-ffff  1 GiB"),
        (
            "x 8052f436-e612-11f1-8960-52466732c33f:1-23 y",
            "x 11111111-e612-11f1-8960-52466732c33f:1,3-7 y",
        ),
        ("tank/mysql-replaced-20261123t114319z-710a", "tank/mysql-replaced-20270101t000000z-ffff"),
        ("in 1 h 59 min", "in 2 h"),
        ("mysql 9.7.4-2, server_id 1", "mysql 9.8.0-1, server_id 1"),
        ("mysql://zsnapdb_clone:RkQNM-2s@127.0.0.1:23070/", "mysql://zsnapdb_clone:x_x@127.0.0.1:23071/"),
        ("zfs-2.3.9-0+deb13u1 zfs-kmod-2.3.9-0+deb13u1", "zfs-2.4.1-1 zfs-kmod-2.4.1-1"),
        ('signers = ["HN3hdq/iHPNcfV9pCNqUbX8pCFLNIUFHZN6NMgQfn1A="]', f'signers = ["{"+/x" * 14}a="]'),
        (f'["age1{"q7" * 29}"]', f'["age1{"0z" * 29}"]'),
        ("2026-11-22T05:12:48Z, owner", "2027-01-02 05:12:48 UTC, owner"),
    ]
    assert [pair for pair in pairs if guides.general(pair[0]) != guides.general(pair[1])] == []
    assert guides.general("lock instance, held 9 ms") != guides.general("lock stage, held 9 ms")
