"""What the field advises for MySQL and MariaDB on ZFS: rules over facts that were gathered. Pure."""
