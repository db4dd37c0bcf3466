-- What zsnapdb's account needs on MariaDB 10.5 and newer.
-- RELOAD: BACKUP STAGE. PROCESS: long statements and tablespace files. BINLOG MONITOR: the binlog position.
-- REPLICA MONITOR: whether it is a replica. SELECT: information_schema shows only what an account may read.
-- The account has no password: unix_socket lets in the user of the operating system that has the same name. zsnapdb runs as
-- root, and root@localhost with unix_socket exists since 10.4: set user = "root", and none of this is needed. As another
-- user, or with a password of your own (IDENTIFIED BY, and password_file): take these statements.
CREATE USER zsnapdb@localhost IDENTIFIED VIA unix_socket;
GRANT RELOAD, PROCESS, BINLOG MONITOR, REPLICA MONITOR, SELECT ON *.* TO zsnapdb@localhost;
-- Only with lock.kill: GRANT CONNECTION ADMIN ON *.* TO zsnapdb@localhost;
-- Only with lock.stop_applier on a replica: GRANT REPLICATION SLAVE ADMIN ON *.* TO zsnapdb@localhost;
-- Only for `binlog purge`: GRANT BINLOG ADMIN ON *.* TO zsnapdb@localhost;
-- Only for `undo`: GRANT TRIGGER ON *.* TO zsnapdb@localhost;
-- Only to name replicas by server_id: GRANT REPLICATION MASTER ADMIN ON *.* TO zsnapdb@localhost;
