-- What zsnapdb's account needs on MariaDB 10.5 and newer.
-- RELOAD: BACKUP STAGE. PROCESS: long statements and tablespace files. BINLOG MONITOR: the binlog position.
-- REPLICA MONITOR: whether it is a replica. SELECT: information_schema shows only what an account may read.
CREATE USER zsnapdb@localhost IDENTIFIED BY 'change me';
GRANT RELOAD, PROCESS, BINLOG MONITOR, REPLICA MONITOR, SELECT ON *.* TO zsnapdb@localhost;
-- Only with lock.kill: GRANT CONNECTION ADMIN ON *.* TO zsnapdb@localhost;
-- Only with lock.stop_applier on a replica: GRANT REPLICATION SLAVE ADMIN ON *.* TO zsnapdb@localhost;
-- Only for `binlog purge`: GRANT BINLOG ADMIN ON *.* TO zsnapdb@localhost;
