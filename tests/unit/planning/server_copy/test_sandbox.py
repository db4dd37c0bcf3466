"""What of the host exists for a server on a copy, and what tells that it is not in its sandbox."""

from __future__ import annotations

from dataclasses import replace

import pytest

from zsnapdb.planning.server_copy.sandbox import MountSeen, ProcessSeen, Sandbox, breaches, is_shown, sandbox_of

COPY = "/var/lib/zsnapdb/clones/one"
MADE = sandbox_of(
    f"{COPY}/.zsnapdb", (COPY, f"{COPY}/data"), ("/var/lib/mysql", "/var/lib/mysql/data"), ("/usr/sbin/mysqld",), (), ()
)
INSIDE = ProcessSeen(
    shares_mounts=False,
    mounts=(
        MountSeen("/", "tmpfs", is_writable=False),
        MountSeen("/usr", "ext4", is_writable=False),
        MountSeen("/tmp", "tmpfs", is_writable=True),
        MountSeen(COPY, "zfs", is_writable=True),
        MountSeen(f"{COPY}/data", "zfs", is_writable=True),
    ),
    rights={
        "Uid": "100 100 100 100",
        "CapPrm": "0000000000000000",
        "CapEff": "0000000000000000",
        "CapBnd": "0000000000000000",
        "CapAmb": "0000000000000000",
        "NoNewPrivs": "1",
        "Seccomp": "2",
    },
)


def test_a_server_writes_to_its_own_volumes_alone() -> None:
    assert MADE.writable == (COPY, f"{COPY}/data")
    assert MADE.hidden == ("/var/lib/mysql", "/var/lib/mysql/data")
    assert not {"/", "/etc", "/run", "/var", "/proc", "/home", "/root", "/var/lib"} & set(MADE.readable)
    assert MADE.base == "/var/lib/zsnapdb/clones"


def test_volumes_side_by_side_have_their_private_folder_above_them() -> None:
    made = sandbox_of(f"{COPY}/.zsnapdb", (f"{COPY}/a", f"{COPY}/b"), ("/a", "/b"), ("/usr/sbin/mysqld",), (), ())
    assert set(made.writable) == {f"{COPY}/a", f"{COPY}/b", f"{COPY}/.zsnapdb"}


def test_a_server_reads_its_program_and_what_the_configuration_names() -> None:
    options = ("file_key_management_filename=/srv/keys/file", "innodb_buffer_pool_size=1G", "skip_name_resolve")
    made = sandbox_of(
        f"{COPY}/.zsnapdb", (COPY,), ("/var/lib/mysql",), ("/srv/10.11/bin/mariadbd",), options, ("/more",)
    )
    assert {"/srv/10.11", "/srv/keys/file", "/more", "/usr"} <= set(made.readable)
    assert "1G" not in made.readable


def test_a_program_at_the_top_does_not_open_the_whole_host() -> None:
    made = sandbox_of(f"{COPY}/.zsnapdb", (COPY,), ("/var/lib/mysql",), ("/bin/mysqld",), (), ())
    assert "/" not in made.readable


def test_a_server_in_its_sandbox_breaches_nothing() -> None:
    assert breaches(INSIDE, MADE) == ()


def seen(*mounts: MountSeen, **rights: str) -> ProcessSeen:
    return replace(INSIDE, mounts=(*INSIDE.mounts, *mounts), rights={**INSIDE.rights, **rights})


@pytest.mark.parametrize(
    ("process", "words"),
    [
        (replace(INSIDE, shares_mounts=True), "mount namespace of zsnapdb"),
        (replace(INSIDE, mounts=INSIDE.mounts[1:]), "its root is not an empty file system"),
        (seen(MountSeen("/", "ext4", is_writable=False)), "its root is not an empty file system"),
        (seen(MountSeen("/srv", "ext4", is_writable=True)), "it can write to /srv"),
        (seen(MountSeen("/var/lib/mysql", "zfs", is_writable=True)), "it can write to /var/lib/mysql"),
        (seen(MountSeen("/var/lib/mysql/data", "zfs", is_writable=False)), "it sees /var/lib/mysql/data of the source"),
        (seen(CapEff="0000000000000002"), "CapEff is 0000000000000002"),
        (seen(CapBnd="000001ffffffffff"), "CapBnd is"),
        (seen(NoNewPrivs="0"), "more rights"),
        (seen(Seccomp="0"), "connect to other servers"),
        (seen(Uid="0 0 0 0"), "it is root"),
        (replace(INSIDE, rights={}), "NoNewPrivs"),
    ],
)
def test_each_gap_in_the_sandbox_is_named(process: ProcessSeen, words: str) -> None:
    assert words in "; ".join(breaches(process, MADE))


def test_a_replica_of_a_set_may_connect() -> None:
    open_sandbox: Sandbox = replace(MADE, connects=True)
    assert breaches(seen(Seccomp="0"), open_sandbox) == ()


def test_a_key_file_is_shown_only_where_the_configuration_names_it() -> None:
    keys = "/etc/keyring/keys"
    assert not is_shown(keys, ("early_plugin_load=keyring_file.so",), ())
    assert is_shown(keys, (f"keyring_file_data={keys}",), ())
    assert is_shown(keys, (), ("/etc/keyring/",))
    assert not is_shown("/etc/keyring-2/keys", (), ("/etc/keyring",))
