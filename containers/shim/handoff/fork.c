#define _GNU_SOURCE
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

// last_argument copies the last argument of this process into buf. Constructors get no arguments with every C library.
static int last_argument(char *buf, size_t size) {
	static char line[16384];
	int fd = open("/proc/self/cmdline", O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return -1;
	ssize_t n = read(fd, line, sizeof(line));
	close(fd);
	if (n < 2 || n == (ssize_t)sizeof(line) || line[n - 1] != 0)
		return -1;
	const char *last = line + n - 1;
	while (last > line && last[-1] != 0)
		last--;
	if (strlen(last) >= size)
		return -1;
	strcpy(buf, last);
	return 0;
}

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

__attribute__((constructor)) static void fork_shim(void) {
	char action[8];
	if (getenv("_LIBCONTAINER_INITPIPE") || last_argument(action, sizeof(action)) || strcmp(action, "start"))
		return;
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
