// Command commits writes to a PostgreSQL and keeps a log of what PostgreSQL has acknowledged, and later checks that nothing of that
// is lost. Tests run it while everything below the database dies.
//
//	commits write -url URL -log FILE [-from N]    commit one row after the other until SIGTERM
//	commits check -url URL -log FILE [-lines N]   check that the database has the log's first N commits, and is sound
//
// A line of the log is the number of an acknowledged commit. It is on the disk before the next commit of the same session begins. With
// "-log -" the lines go to standard output, and come from standard input. A check ends with 1 if the database is not sound, and with
// 75 if it could not be checked.
//
// It is a module of its own, because nothing of Berth's needs a client of PostgreSQL.
package main
