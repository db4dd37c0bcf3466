"""Advice for MySQL and MariaDB on ZFS. The rules evaluate facts that other modules gather. Pure."""
