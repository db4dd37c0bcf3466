"""A secret that another account may read or change is refused, with a hint; it is never shown."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from zsnapdb.base.errors import ConfigError
from zsnapdb.base.files import open_regular, password_in, secret_in
from zsnapdb.repository.crypto_keys import AgeIdentity, SigningKey, read_identities
from zsnapdb.store.s3_client import credentials_of

NOBODY = 65534
READERS: dict[str, tuple[bytes, Callable[[Path], object]]] = {
    "password_file": (b"hunter2\n", lambda file: password_in(file, "password_file").get_secret_value()),
    "credentials_file": (
        b"[default]\naws_access_key_id = AKIA\naws_secret_access_key = hunter2\n",
        lambda file: credentials_of(file).secret,
    ),
    "identity_file": (AgeIdentity.new().file(), read_identities),
    "signing_key_file": (SigningKey.new().file(), SigningKey.read),
}
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")


def secret(folder: Path, body: bytes, mode: int = 0o600) -> Path:
    file = folder / "secret"
    file.write_bytes(body)
    file.chmod(mode)
    return file


@pytest.mark.parametrize("option", READERS)
@pytest.mark.parametrize("mode", [0o644, 0o604, 0o602, 0o660, 0o620, 0o666])
def test_a_secret_that_others_may_read_or_change_is_refused_with_a_hint(tmp_path: Path, option: str, mode: int) -> None:
    body, read = READERS[option]
    file = secret(tmp_path, body, mode)
    with pytest.raises(ConfigError, match="other accounts may read or change it") as refused:
        read(file)
    assert option in refused.value.message
    assert f"chmod 600 {file}" in refused.value.hint
    assert "hunter2" not in str(refused.value)


@pytest.mark.parametrize("option", READERS)
@pytest.mark.parametrize("mode", [0o600, 0o400])
def test_a_secret_that_only_its_owner_may_read_is_read(tmp_path: Path, option: str, mode: int) -> None:
    body, read = READERS[option]
    assert read(secret(tmp_path, body, mode))


@as_root
def test_a_group_may_read_a_secret_that_root_owns(tmp_path: Path) -> None:
    assert secret_in(secret(tmp_path, b"x", 0o640), "s", "") == b"x"


@as_root
def test_a_secret_of_another_account_is_refused(tmp_path: Path) -> None:
    file = secret(tmp_path, b"x")
    os.chown(file, NOBODY, NOBODY)
    with pytest.raises(ConfigError, match=f"belongs to uid {NOBODY}"):
        secret_in(file, "s", "")


@as_root
def test_a_link_of_another_account_is_not_followed_and_an_own_link_is(tmp_path: Path) -> None:
    file, link = secret(tmp_path, b"x"), tmp_path / "link"
    link.symlink_to(file)
    assert secret_in(link, "s", "") == b"x"
    os.chown(link, NOBODY, NOBODY, follow_symlinks=False)
    with pytest.raises(ConfigError, match=f"it is a link of uid {NOBODY}"):
        secret_in(link, "s", "")


def test_a_secret_that_is_no_file_is_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(ConfigError):
        secret_in(tmp_path, "s", "")
    with pytest.raises(ConfigError, match="neither a file nor a pipe"):
        secret_in(Path("/dev/null"), "s", "")


def test_a_secret_comes_through_a_pipe_of_this_account_and_a_pipe_without_a_writer_is_refused_at_once(
    tmp_path: Path,
) -> None:
    reading, writing = os.pipe()
    os.write(writing, b"x")
    os.close(writing)
    assert secret_in(Path(f"/proc/self/fd/{reading}"), "s", "") == b"x"
    os.close(reading)
    os.mkfifo(tmp_path / "pipe", 0o600)
    with pytest.raises(ConfigError, match="nothing writes to it"):
        secret_in(tmp_path / "pipe", "s", "")


def test_what_must_be_a_regular_file_is_refused_at_once_if_it_is_none(tmp_path: Path) -> None:
    file, link, pipe = (tmp_path / name for name in ("file", "link", "pipe"))
    file.write_bytes(b"x")
    link.symlink_to(file)
    os.mkfifo(pipe)
    for path in (file, link):
        with open_regular(path) as opened:
            assert opened.read() == b"x"
    for path in (pipe, tmp_path, Path("/dev/zero")):
        with pytest.raises(OSError, match="not a regular file"):
            open_regular(path)
