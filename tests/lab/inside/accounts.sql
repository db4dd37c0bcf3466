-- both
CREATE USER zsnapdb@localhost IDENTIFIED BY 'lab-zsnapdb';
CREATE USER app@localhost IDENTIFIED BY 'lab-app';
CREATE DATABASE ledger;
GRANT ALL ON ledger.* TO app@localhost;
-- end
-- mysql
GRANT BACKUP_ADMIN, RELOAD, PROCESS, REPLICATION CLIENT, XA_RECOVER_ADMIN, SELECT ON *.* TO zsnapdb@localhost;
-- end
-- mariadb
GRANT RELOAD, PROCESS, BINLOG MONITOR, REPLICA MONITOR, SELECT ON *.* TO zsnapdb@localhost;
-- end
-- mysql-5.7
GRANT RELOAD, PROCESS, REPLICATION CLIENT, SELECT ON *.* TO zsnapdb@localhost;
-- end
