"""Errors of the client library at a login, and their hints."""

from __future__ import annotations

import pytest

from zsnapdb.mysql.session import auth_hint


@pytest.mark.parametrize("plugin", ["parsec", "auth_gssapi_client", "authentication_ldap_sasl_client", "dialog"])
def test_plugin_that_the_library_does_not_know_is_named(plugin: str) -> None:
    assert f"plugin {plugin}:" in auth_hint(f"Authentication plugin 'b'{plugin}'' not configured")


def test_package_that_the_library_lacks_is_named() -> None:
    text = "'pynacl' package is required for ed25519_password auth method"
    assert "pip install 'PyNaCl'" in auth_hint(text)
    text = "'cryptography' package is required for sha256_password or caching_sha2_password auth methods"
    assert "pip install 'cryptography'" in auth_hint(text)


@pytest.mark.parametrize("text", ["Access denied for user 'a'@'b'", "", "'evil' package is required for x"])
def test_other_error_has_no_hint(text: str) -> None:
    assert auth_hint(text) == ""
