"""A server that does not start on encrypted files is told which options of the source it lacks."""

from __future__ import annotations

from zsnapdb.planning.server_copy.source_facts import advice, missing_options

SOURCE = {"file_key_management_filename": "/etc/mysql/keys.enc", "innodb_page_size": "16384"}


def test_the_options_of_a_key_plugin_that_the_configuration_lacks_are_named() -> None:
    lines = [option.line for option in missing_options(SOURCE, ())]
    assert lines == ["plugin_load_add=file_key_management", "file_key_management_filename=/etc/mysql/keys.enc"]
    words = advice(missing_options(SOURCE, ()), "")
    assert words is not None
    assert '"plugin_load_add=file_key_management"' in words


def test_options_that_are_there_are_not_missing_however_they_are_written() -> None:
    options = ("plugin-load-add = file_key_management.so", "loose-file-key-management-filename=/elsewhere")
    assert missing_options(SOURCE, options) == ()


def test_the_key_files_that_this_host_lacks_are_named() -> None:
    log = "[ERROR] InnoDB: Encryption can't find master key"
    for words in (advice((), log, ["/etc/keys"]), advice(missing_options(SOURCE, ()), "", ["/etc/keys"])):
        assert words is not None
        assert "read its keys from /etc/keys, and this host has no such file" in words
    assert advice((), "[ERROR] unknown variable", ["/etc/keys"]) is None


def test_a_log_that_speaks_of_encryption_leads_to_the_keyring_and_any_other_log_to_nothing() -> None:
    assert "keyring component" in (advice((), "[ERROR] InnoDB: Encryption can't find master key") or "")
    assert advice((), "[ERROR] unknown variable 'no_such_option=1'") is None


def test_the_passphrase_of_mariadbs_key_file_is_named_where_its_option_may_be_missing() -> None:
    words = advice(missing_options({"file_key_management_filename": "/etc/keys"}, ()), "") or ""
    assert "file_key_management_filekey=FILE:PATH" in words
    assert "filekey" not in (advice(missing_options({"keyring_file_data": "/etc/keys"}, ()), "") or "")
