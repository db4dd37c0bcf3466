-- What zsnapdb's account needs on MySQL 8.0 and newer.
-- BACKUP_ADMIN: LOCK INSTANCE FOR BACKUP. RELOAD: the global read lock, where other engines need it.
-- PROCESS: long statements and tablespace files. REPLICATION CLIENT: the binlog position.
-- XA_RECOVER_ADMIN: whether prepared XA transactions would come back with a restore.
-- SELECT: information_schema shows only what an account may read.
-- The account has no password: on the socket it is for the operating system's root alone, as which zsnapdb runs. That needs
-- the plugin: INSTALL PLUGIN auth_socket SONAME 'auth_socket.so'. Over TCP: IDENTIFIED BY RANDOM PASSWORD, and password_file.
CREATE USER zsnapdb@localhost IDENTIFIED WITH auth_socket AS 'root';
GRANT BACKUP_ADMIN, RELOAD, PROCESS, REPLICATION CLIENT, XA_RECOVER_ADMIN, SELECT ON *.* TO zsnapdb@localhost;
-- Only with lock.kill: GRANT CONNECTION_ADMIN ON *.* TO zsnapdb@localhost;
-- Only with lock.stop_applier on a replica: GRANT REPLICATION_SLAVE_ADMIN ON *.* TO zsnapdb@localhost;
-- Only for `binlog purge`: GRANT BINLOG_ADMIN ON *.* TO zsnapdb@localhost;
-- Only for `undo`: GRANT TRIGGER ON *.* TO zsnapdb@localhost;
-- Only where the performance schema is off, to name replicas by UUID: GRANT REPLICATION SLAVE ON *.* TO zsnapdb@localhost;
