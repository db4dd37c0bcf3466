"""Advice for MySQL and MariaDB on ZFS: rules over gathered facts. Pure."""
