-- What zsnapdb's account needs on MariaDB 10.5 and newer.
-- RELOAD: BACKUP STAGE. PROCESS: long statements and tablespace files. BINLOG MONITOR: the binlog position.
-- REPLICA MONITOR: whether it is a replica. SELECT: information_schema shows only what an account may read.
-- Without a password: root@localhost with unix_socket (the default since 10.4) is for the operating system's root alone, as
-- which zsnapdb runs; then set user = "root", and no account is needed. With a password: put your own here, and in a
-- password_file that only its owner may read.
CREATE USER zsnapdb@localhost IDENTIFIED BY 'change me';
GRANT RELOAD, PROCESS, BINLOG MONITOR, REPLICA MONITOR, SELECT ON *.* TO zsnapdb@localhost;
-- Only with lock.kill: GRANT CONNECTION ADMIN ON *.* TO zsnapdb@localhost;
-- Only with lock.stop_applier on a replica: GRANT REPLICATION SLAVE ADMIN ON *.* TO zsnapdb@localhost;
-- Only for `binlog purge`: GRANT BINLOG ADMIN ON *.* TO zsnapdb@localhost;
