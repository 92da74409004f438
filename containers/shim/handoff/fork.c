#define _GNU_SOURCE
#include "arguments.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

// The child's end of the pipe on which the parent waits; -1 if this process has not been forked.
static int status_fd = -1;

int handoff_status_fd(void) { return status_fd; }

void handoff_forget(void) { status_fd = -1; }

// wait_for_child exits with the status that the child writes.
static void wait_for_child(int fd, pid_t child) {
	unsigned char status;
	ssize_t n;
	do {
		n = read(fd, &status, 1);
	} while (n < 0 && errno == EINTR);
	if (n == 1)
		_exit(status);
	int ended = 0;
	waitpid(child, &ended, 0);
	fprintf(stderr, "the shim's process ended before it served (wait status %d)\n", ended);
	_exit(1);
}

// print_deleted ends the process with the content of deleted.pb in the bundle, if there is one.
static void print_deleted(const char *bundle) {
	char path[4096], content[4096];
	if (!bundle || snprintf(path, sizeof(path), "%s/deleted.pb", bundle) >= (int)sizeof(path))
		return;
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return;
	ssize_t n = read(fd, content, sizeof(content));
	close(fd);
	if (n <= 0 || n == (ssize_t)sizeof(content))
		return;
	_exit(write(STDOUT_FILENO, content, n) == n ? 0 : 1);
}

static void fork_shim(void) {
	int fds[2];
	if (pipe2(fds, O_CLOEXEC)) {
		fprintf(stderr, "start the shim: pipe2: %s\n", strerror(errno));
		_exit(1);
	}
	pid_t parent = getpid();
	pid_t child = fork();
	if (child < 0) {
		fprintf(stderr, "start the shim: fork: %s\n", strerror(errno));
		_exit(1);
	}
	if (child > 0) {
		close(fds[1]);
		wait_for_child(fds[0], child);
	}
	if (prctl(PR_SET_PDEATHSIG, SIGKILL) || getppid() != parent)
		_exit(1);
	setpgid(0, 0);
	close(fds[0]);
	status_fd = fds[1];
}

__attribute__((constructor)) static void before_go(void) {
	static struct arguments arguments;
	if (getenv("_LIBCONTAINER_INITPIPE") || read_arguments(&arguments)) // a process of a container, or no call of containerd
		return;
	if (!strcmp(arguments.last, "start"))
		fork_shim();
	else if (!strcmp(arguments.last, "delete"))
		print_deleted(argument_after(&arguments, "-bundle"));
}
