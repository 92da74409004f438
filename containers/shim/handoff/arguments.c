#define _GNU_SOURCE
#include "arguments.h"

#include <fcntl.h>
#include <string.h>
#include <unistd.h>

int read_arguments(struct arguments *a) {
	int fd = open("/proc/self/cmdline", O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return -1;
	ssize_t n = read(fd, a->line, sizeof(a->line));
	close(fd);
	if (n < 2 || n == (ssize_t)sizeof(a->line) || a->line[n - 1] != 0)
		return -1;
	a->end = a->line + n;
	a->last = a->end - 1;
	while (a->last > a->line && a->last[-1] != 0)
		a->last--;
	return 0;
}

const char *argument_after(const struct arguments *a, const char *flag) {
	for (const char *at = a->line; at < a->last; at += strlen(at) + 1)
		if (!strcmp(at, flag))
			return at + strlen(at) + 1;
	return 0;
}
