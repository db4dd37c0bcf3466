"""The client of a clone goes to the clone, whatever words a person adds."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zsnapdb.base.errors import UsageError
from zsnapdb.planning.clone.client_commands import client_arguments

ADDRESS = ["--host=127.0.0.1", "--port=23070", "--protocol=tcp"]


def of(*words: str) -> list[str]:
    return client_arguments("/usr/bin/mysql", "/proc/self/fd/3", "127.0.0.1", 23070, words)


@pytest.mark.parametrize(
    "words",
    [
        ("-h", "prod"),
        ("-hprod",),
        ("-Bhprod",),
        ("-NBS/run/mysqld/mysqld.sock",),
        ("-P", "3306"),
        ("--host=prod",),
        ("--ho=prod",),
        ("--loose-host=prod",),
        ("--socket", "/run/mysqld/mysqld.sock"),
        ("--soc=/x",),
        ("--protocol=socket",),
        ("--login-path=prod",),
        ("--login_path=prod",),
        ("--defaults-file=/root/.my.cnf",),
        ("--defaults-extra-file=/x",),
        ("--no-defaults",),
        ("--dns-srv-name=_mysql._tcp.prod",),
        ("--init-command=SELECT 1",),
        ("shop", "-e", "SELECT 1", "-h", "prod"),
    ],
)
def test_words_that_lead_elsewhere_are_refused(words: tuple[str, ...]) -> None:
    with pytest.raises(UsageError, match="the client connects only to the clone"):
        of(*words)


@pytest.mark.parametrize(
    "words",
    [
        (),
        ("shop",),
        ("-e", "-h is no option here"),
        ("-e", "--host=x"),
        ("-NBe", "-Sx"),
        ("-uapp", "-pShPW"),
        ("-u", "-h"),
        ("--user=app", "--password=x", "-N", "-B", "-t", "-v"),
        ("--execute=SELECT 1", "--show-warnings", "--html", "--pager=less", "--ssl-mode=REQUIRED"),
        (
            "--skip-ssl",
            "--compress",
            "--database=shop",
            "--prompt=x",
            "--i-am-a-dummy",
            "--default-character-set=utf8mb4",
        ),
    ],
)
def test_other_words_stay_and_the_address_is_last(words: tuple[str, ...]) -> None:
    assert of(*words) == ["/usr/bin/mysql", "--defaults-file=/proc/self/fd/3", *words, *ADDRESS]


def test_the_address_stands_before_the_end_of_options() -> None:
    assert of("-N", "--", "-h")[2:] == ["-N", *ADDRESS, "--", "-h"]


@given(st.lists(st.text("-hPSepu=x", min_size=1, max_size=6)))
def test_whatever_is_accepted_has_the_address_after_every_option(words: list[str]) -> None:
    try:
        made = of(*words)
    except UsageError:
        return
    last = made.index("--") if "--" in made else len(made)
    assert made[last - len(ADDRESS) : last] == ADDRESS
    assert made[:2] == ["/usr/bin/mysql", "--defaults-file=/proc/self/fd/3"]
