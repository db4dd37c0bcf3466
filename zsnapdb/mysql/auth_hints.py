"""Hints for accounts with an authentication plugin that the client library does not support. Pure."""

from __future__ import annotations

import re

from zsnapdb.base.errors import how_to_install

_PACKAGES = {"pynacl": "PyNaCl", "cryptography": "cryptography"}
_PACKAGE = re.compile(r"'(\w+)' package is required for (\w+)")
_PLUGIN = re.compile(r"Authentication plugin '(?:b')?\"?([A-Za-z0-9_]{1,64})")
_ANOTHER = (
    "let zsnapdb's account log in another way, on MariaDB ALTER USER ... IDENTIFIED VIA unix_socket OR"
    " mysql_native_password USING PASSWORD('...'), on MySQL ALTER USER ... IDENTIFIED WITH caching_sha2_password BY"
    " '...'"
)


def auth_hint(text: str) -> str:
    """Return the hint for a login error of the client library; "" if no authentication plugin caused it."""
    package, plugin = _PACKAGE.search(text), _PLUGIN.search(text)
    if package is not None and package[1] in _PACKAGES:
        own = _PACKAGES[package[1]]
        return f"the account has the plugin {package[2]}: {how_to_install(own)}, or {_ANOTHER}"
    if plugin is not None:
        return f"zsnapdb cannot log in with the plugin {plugin[1]}: {_ANOTHER}"
    return ""
