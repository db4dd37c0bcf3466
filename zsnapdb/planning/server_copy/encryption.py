"""The options that a server on encrypted files needs in addition to those of every copy. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

KEY_VARIABLES = (
    "file_key_management_filename",
    "hashicorp_key_management_vault_url",
    "aws_key_management_master_key_id",
    "keyring_file_data",
    "keyring_encrypted_file_data",
    "keyring_okv_conf_dir",
    "keyring_vault_config",
)
"""Variables that exist only while a key plugin is loaded. A manifest records them, as they contain no secret.

Sources: MariaDB manual, "File Key Management Encryption Plugin" and related pages; refman 8.0, "Keyring System
Variables".
"""

_PLUGINS = {
    "file_key_management_filename": ("plugin_load_add", "file_key_management"),
    "hashicorp_key_management_vault_url": ("plugin_load_add", "hashicorp_key_management"),
    "aws_key_management_master_key_id": ("plugin_load_add", "aws_key_management"),
    "keyring_file_data": ("early_plugin_load", "keyring_file.so"),
    "keyring_encrypted_file_data": ("early_plugin_load", "keyring_encrypted_file.so"),
    "keyring_okv_conf_dir": ("early_plugin_load", "keyring_okv.so"),
    "keyring_vault_config": ("early_plugin_load", "keyring_vault.so"),
}
_MARIADB_KEY_FILE = "file_key_management_filename"
_SIGNS = ("encrypt", "keyring", "decrypt")


@dataclass(frozen=True)
class MissingOption:
    """An option line that the source had and the configuration lacks."""

    line: str


def missing_options(variables: Mapping[str, str], options: Sequence[str]) -> tuple[MissingOption, ...]:
    """Return the options of key plugins that the source had and `options` (server.options) lack.

    The values are those of the source; on another host the path of a file may differ.
    """
    given = [option.replace("-", "_") for option in options]
    missing: list[MissingOption] = []
    for variable in KEY_VARIABLES:
        if not variables.get(variable):
            continue
        plugin, name = _PLUGINS[variable]
        if not any(line.partition("=")[0].strip().endswith(plugin) and name.split(".")[0] in line for line in given):
            missing.append(MissingOption(f"{plugin}={name}"))
        if not any(variable in line.partition("=")[0] for line in given):
            missing.append(MissingOption(f"{variable}={variables[variable]}"))
    return tuple(missing)


def advice(missing: Sequence[MissingOption], log: str, absent: Sequence[str] = ()) -> str | None:
    """Return advice if a server on a copy did not start; None if its log and options show no encryption.

    `absent` are the key files of the source that this host lacks.
    """
    files = f"; the source read its keys from {', '.join(absent)}, and this host has no such file" if absent else ""
    if missing:
        lines = ", ".join(f'"{option.line}"' for option in missing)
        # It is not recorded whether the source had this option, as its value may be the passphrase itself.
        passphrase = (
            " (and file_key_management_filekey=FILE:PATH, if that file is encrypted)"
            if any(option.line.startswith(_MARIADB_KEY_FILE) for option in missing)
            else ""
        )
        return (
            f"the source loaded a key plugin: add {lines}{passphrase} to server.options, and give this host the"
            f" keys{files}"
        )
    errors = [line.lower() for line in log.splitlines() if "error" in line.lower()]
    if any(sign in line for line in errors for sign in _SIGNS):
        return (
            "files of the server are encrypted: give this host the keys, and the server program the keyring component"
            " or plugin of the source (mysqld.my next to the program, or server.options), and name the files outside"
            f" of it in server.sandbox_reads{files}"
        )
    return None
