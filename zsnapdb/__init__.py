"""zsnapdb: backup, restore and clones of MySQL and MariaDB servers whose files live on ZFS."""

__version__ = "0.1.0"
