// Package faulttest fails the system calls of a step one at a time, with each error that the kernel may return for them, and checks what the
// step leaves. It is for tests.
//
// The step runs in a process of its own, on its first thread, under strace, which counts the calls of that thread and makes the nth one
// fail: the same call in each run. A package that uses it calls [Main] in TestMain and [Run] in a test.
package faulttest
