"""Data keys open for their recipients alone.

Manifests are believed only from those who may sign; secrets are never overwritten.
"""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from tests.unit.support.command_line import zsnapdb
from tests.unit.support.manifests import encrypted, manifest
from zsnapdb.base.errors import ConfigError, DamagedError, ExistsError, NotFound
from zsnapdb.config.repository import EncryptionSettings
from zsnapdb.config.settings import parse
from zsnapdb.jobs.repository import init as init_job
from zsnapdb.repository import crypto_keys, layout
from zsnapdb.repository.keyring import Keyring
from zsnapdb.repository.repository import Repository
from zsnapdb.store.local import LocalStore

BACKUP = "20261120T101112Z-7f3a"


def identity(folder: Path, name: str = "identity") -> tuple[Path, str]:
    new = crypto_keys.AgeIdentity.new()
    crypto_keys.write_secret(folder / name, new.file())
    return folder / name, new.recipient


def signing_key(folder: Path, name: str = "signing") -> tuple[Path, str]:
    new = crypto_keys.SigningKey.new()
    crypto_keys.write_secret(folder / name, new.file())
    return folder / name, new.public


def test_a_data_key_opens_for_each_of_its_recipients_and_nobody_else(tmp_path: Path) -> None:
    (one, first), (two, second), (three, _) = (identity(tmp_path, name) for name in "abc")
    made = Keyring(recipients=(first, second)).new_key("1")
    for file in (one, two):
        assert Keyring(identity_file=file).open_keys([made.part], "b") == {"1": made.secret}
    with pytest.raises(ConfigError, match="was wrapped to other recipients"):
        Keyring(identity_file=three).open_keys([made.part], "b")
    with pytest.raises(ConfigError, match="no identity is configured"):
        Keyring(recipients=(first,)).open_keys([made.part], "b")


def test_a_host_without_identity_makes_keys_that_differ_each_time(tmp_path: Path) -> None:
    _, public = identity(tmp_path)
    ring = Keyring.of(EncryptionSettings(recipients=(public,)))
    assert ring.new_key("1").secret != ring.new_key("1").secret
    assert len(ring.new_key("1").secret) == 32


def test_an_altered_wrapped_key_is_damage(tmp_path: Path) -> None:
    file, public = identity(tmp_path)
    part = Keyring(recipients=(public,)).new_key("1").part
    broken = part.model_copy(update={"wrapped": part.wrapped.replace(part.wrapped[-60:-50], "A" * 10)})
    with pytest.raises(DamagedError, match="data key 1 of b"):
        Keyring(identity_file=file).open_keys([broken], "b")


def test_an_identity_file_may_hold_several_and_a_bad_line_is_not_shown(tmp_path: Path) -> None:
    one, two = crypto_keys.AgeIdentity.new(), crypto_keys.AgeIdentity.new()
    file = tmp_path / "ids"
    file.write_text(f"# old\n{one.secret}\n\n# new\n{two.secret}\n")
    file.chmod(0o600)
    assert [identity.recipient for identity in crypto_keys.read_identities(file)] == [one.recipient, two.recipient]
    file.write_text(f"{one.secret[:-1]}\n")
    with pytest.raises(ConfigError) as caught:
        crypto_keys.read_identities(file)
    assert one.secret[20:40] not in str(caught.value)


def test_a_malformed_public_key_is_refused_before_anything_is_written() -> None:
    with pytest.raises(ConfigError, match="not an age recipient"):
        Keyring.of(EncryptionSettings(recipients=("age1qqqq",)))


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    (tmp_path / "r").mkdir()
    return LocalStore(tmp_path / "r")


@pytest.fixture
def signed(tmp_path: Path, store: LocalStore) -> Repository:
    """A repository with one manifest, signed."""
    file, public = signing_key(tmp_path)
    repository = Repository.open_or_create(store, "", "id-1", Keyring(signing_key_file=file, signers=(public,)))
    repository.commit(manifest())
    return repository


KEY = layout.manifest("main", BACKUP)


def test_a_signed_manifest_reads_back_and_its_first_line_is_the_manifest_alone(
    store: LocalStore, signed: Repository
) -> None:
    assert signed.manifest("main", BACKUP) == manifest()
    first, second, rest = store.get(KEY).split(b"\n")
    assert (json.loads(first)["backup_id"], set(json.loads(second)), rest) == (BACKUP, {"signature"}, b"")


def test_a_manifest_that_was_altered_is_damaged_even_where_no_signer_is_known(
    store: LocalStore, signed: Repository
) -> None:
    body = store.get(KEY)
    store.put(KEY, body.replace(b'"createtxg":2', b'"createtxg":3'))
    for ring in (signed.keyring, Keyring()):
        with pytest.raises(DamagedError, match="the signature does not match the content"):
            replace(signed, keyring=ring).manifest("main", BACKUP)


def test_an_unsigned_or_foreign_manifest_is_refused_and_never_absent(
    store: LocalStore, signed: Repository, tmp_path: Path
) -> None:
    line = store.get(KEY).split(b"\n")[0]
    store.put(KEY, line + b"\n")
    with pytest.raises(DamagedError, match="is not signed"):
        signed.manifest("main", BACKUP)
    stranger, _ = signing_key(tmp_path, "stranger")
    store.put(KEY, Keyring(signing_key_file=stranger).signed(line))
    with pytest.raises(DamagedError, match="is not among the signers"):
        signed.manifest("main", BACKUP)
    assert signed.backup_ids("main") == [BACKUP]


@pytest.mark.parametrize(
    "second",
    [b"{}", b"[]", b"null", b"x", b'{"signature":{"key":"","value":""}}', b'{"signature":{"key":"!","value":"?"}}'],
)
def test_a_second_line_that_is_no_signature_is_damage(store: LocalStore, signed: Repository, second: bytes) -> None:
    line = store.get(KEY).split(b"\n")[0]
    store.put(KEY, line + b"\n" + second + b"\n")
    with pytest.raises(DamagedError):
        replace(signed, keyring=Keyring()).manifest("main", BACKUP)


def test_a_host_that_would_not_trust_itself_is_refused_before_a_backup(tmp_path: Path) -> None:
    file, _ = signing_key(tmp_path)
    _, other = signing_key(tmp_path, "other")
    for ring in (Keyring(signing_key_file=file, signers=(other,)), Keyring(signers=(other,))):
        with pytest.raises(ConfigError):
            Repository.open_or_create(LocalStore(tmp_path), "", "id", ring)
    assert not (tmp_path / layout.MARKER).exists()


def test_a_host_without_recipients_does_not_write_in_the_clear_beside_encrypted_backups(tmp_path: Path) -> None:
    _, public = identity(tmp_path)
    store = LocalStore(tmp_path)
    Repository.open_or_create(store, "", "id", Keyring(recipients=(public,)))
    with pytest.raises(ConfigError, match="no recipients are configured here"):
        Repository.open_or_create(store, "", "id", Keyring())
    assert Repository.open(store, "").id == "id"


def test_a_lost_marker_loses_nothing(tmp_path: Path) -> None:
    _, public = identity(tmp_path)
    store, ring = LocalStore(tmp_path), Keyring(recipients=(public,))
    repository = Repository.open_or_create(store, "", "id-1", ring)
    repository.commit(encrypted(manifest(), ring.new_key("1").part))
    store.delete(layout.MARKER)
    repository = Repository.open(store, "", instances=("other", "main"))
    assert (repository.id, repository.recipients) == ("id-1", (public,))
    assert "is missing" in repository.note
    with pytest.raises(NotFound):
        Repository.open(store, "", instances=("other",))
    assert Repository.open_or_create(store, "", "id-2", ring, instances=("main",)).id == "id-1"
    assert Repository.open(store, "").note == ""


CONFIG = """
[instance.main]
socket = "/x"
volumes = {{ data = "t/d" }}
repository = "r"
[repository.r]
url = "file://{folder}"
[repository.r.encryption]
recipients = {recipients}
"""


def config(folder: Path, *recipients: str) -> str:
    (folder / "store").mkdir(exist_ok=True)
    file = folder / "zsnapdb.toml"
    file.write_text(CONFIG.format(folder=folder / "store", recipients=json.dumps(recipients)))
    return str(file)


def test_keys_are_written_once_for_their_owner_alone_and_shown_by_their_public_parts(tmp_path: Path) -> None:
    words = ("--identity", str(tmp_path / "i"), "--signing-key", str(tmp_path / "s"))
    planned = zsnapdb("key", "generate", *words, "--plan")
    assert planned.stdout.count("mode 0600") == 2
    assert not (tmp_path / "i").exists()
    made = zsnapdb("key", "generate", *words, "--json")
    assert made.returncode == 0, made.stderr
    assert {file.stat().st_mode & 0o777 for file in (tmp_path / "i", tmp_path / "s")} == {0o600}
    assert "SECRET" not in made.stdout
    shown = zsnapdb("key", "show", *words, "--json")
    assert json.loads(shown.stdout) == json.loads(made.stdout)
    before = (tmp_path / "i").read_bytes()
    (tmp_path / "s").unlink()
    again = zsnapdb("key", "generate", *words)
    assert (again.returncode, (tmp_path / "i").read_bytes(), (tmp_path / "s").exists()) == (8, before, False)


@pytest.mark.skipif(
    not all(map(shutil.which, ("age", "age-keygen", "openssl"))), reason="install age and openssl: they read our files"
)
def test_the_tools_of_the_formats_read_our_files(tmp_path: Path) -> None:
    file, public = identity(tmp_path)
    pem, signer = signing_key(tmp_path)
    recipient = subprocess.run(["age-keygen", "-y", str(file)], capture_output=True, text=True, check=True)
    assert recipient.stdout.strip() == public
    secret = crypto_keys.new_data_key()
    unwrapped = subprocess.run(
        ["age", "-d", "-i", str(file)],
        input=crypto_keys.wrap(secret, [public]).encode(),
        capture_output=True,
        check=True,
    )
    assert unwrapped.stdout == secret
    derived = subprocess.run(
        ["openssl", "pkey", "-in", str(pem), "-pubout", "-outform", "DER"], capture_output=True, check=True
    )
    assert derived.stdout.endswith(base64.b64decode(signer))


def test_a_secret_is_never_overwritten(tmp_path: Path) -> None:
    file, _ = identity(tmp_path)
    with pytest.raises(ExistsError):
        crypto_keys.write_secret(file, b"x")
    assert file.read_bytes().startswith(b"# public key: age1")


def test_init_makes_rebuilds_and_updates_the_marker(tmp_path: Path) -> None:
    (_, one), (_, two) = identity(tmp_path, "a"), identity(tmp_path, "b")
    assert json.loads(zsnapdb("init", "--plan", "--json", config=config(tmp_path, one)).stdout)["step"] == "create"
    assert not (tmp_path / "store" / layout.MARKER).exists()
    made = json.loads(zsnapdb("init", "--json", config=config(tmp_path, one)).stdout)
    assert (made["step"], made["marker"]["recipients"]) == ("create", [one])
    assert json.loads(zsnapdb("init", "--json", config=config(tmp_path, one)).stdout)["step"] == "nothing"
    updated = json.loads(zsnapdb("init", "--json", config=config(tmp_path, one, two)).stdout)
    assert (updated["step"], updated["marker"]) == (
        "recipients",
        {"format": 1, "id": made["marker"]["id"], "recipients": [one, two]},
    )
    assert json.loads((tmp_path / "store" / layout.MARKER).read_text().splitlines()[0]) == updated["marker"]
    store = LocalStore(tmp_path / "store")
    key = Keyring(recipients=(one,)).new_key("1").part
    Repository.open(store, "").commit(
        encrypted(manifest(), key).model_copy(update={"repository_id": made["marker"]["id"]})
    )
    store.delete(layout.MARKER)
    rebuilt = json.loads(zsnapdb("init", "--json", config=config(tmp_path, one)).stdout)
    assert (rebuilt["step"], rebuilt["marker"]["id"]) == ("rebuild", made["marker"]["id"])
    assert zsnapdb("init", config=config(tmp_path, one)).returncode == 0


def test_who_signs_believes_its_own_key_alone_where_no_signers_are_configured(
    store: LocalStore, tmp_path: Path
) -> None:
    file, _ = signing_key(tmp_path)
    stranger, _ = signing_key(tmp_path, "stranger")
    repository = Repository.open_or_create(store, "", "id-1", Keyring(signing_key_file=file))
    repository.commit(manifest())
    line = store.get(KEY).split(b"\n")[0]
    for forged, why in ((line + b"\n", "is not signed"), (Keyring(signing_key_file=stranger).signed(line), "signers")):
        store.put(KEY, forged)
        with pytest.raises(DamagedError, match=why):
            repository.manifest("main", BACKUP)


def test_who_encrypts_or_decrypts_refuses_a_backup_in_the_clear_unless_it_says_so(
    store: LocalStore, tmp_path: Path
) -> None:
    file, public = identity(tmp_path)
    repository = Repository.open_or_create(store, "", "id-1")
    repository.commit(manifest())
    for ring in (Keyring(recipients=(public,)), Keyring(identity_file=file)):
        with pytest.raises(DamagedError, match="is not encrypted"):
            replace(repository, keyring=ring).manifest("main", BACKUP)
        accepting = replace(ring, accepts_plain=True)
        assert replace(repository, keyring=accepting).manifest("main", BACKUP) == manifest()


def test_a_signed_manifest_of_another_repository_is_refused_in_this_one(signed: Repository) -> None:
    with pytest.raises(DamagedError, match="belongs to repository id-1, this is repository id-2"):
        replace(signed, id="id-2").manifest("main", BACKUP)


def test_init_makes_the_configured_signing_key_of_a_new_repository_alone(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    key = tmp_path / "signing-key"
    text = f'[instance.main]\nsocket = "/x"\nrepository = "a"\n[repository.a]\nurl = "file://{tmp_path}/store"\n'
    settings = parse(f'{text}encryption = {{ signing_key_file = "{key}" }}\n', "test")
    planned = init_job.plan(settings, None)
    assert (planned.new_key, planned.signer, key.exists()) == (key, None, False)
    done = init_job.init(settings, None)
    assert (crypto_keys.SigningKey.read(key).public, key.stat().st_mode & 0o777) == (done.signer, 0o600)
    assert init_job.init(settings, None).new_key is None
    key.unlink()
    with pytest.raises(ConfigError, match="signing_key_file"):
        init_job.init(settings, None)
    assert not key.exists()
