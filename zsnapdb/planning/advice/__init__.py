"""Advice for MySQL and MariaDB on ZFS, from rules that evaluate gathered facts. Pure."""
