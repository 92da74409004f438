/* /bin/sh of the stub images: busybox's shell, except where the environment holds a name that is no shell variable.
 * Upstream's busybox hands such names on to the programs it starts, Debian's drops them, and bash hands them on but words
 * its errors otherwise; so each does what it does right.
 *
 * It is written in C because a container's first line of output waits for it: a program in Go takes a tenth of a second to
 * start on an emulated machine, and some specs read what a container has written as soon as it is ready. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

extern char **environ;

/* is_variable says whether a shell can hold the name that begins an entry of the environment. */
static int is_variable(const char *entry)
{
	static const char first[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_";
	static const char all[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_0123456789";
	size_t length = strspn(entry, all);

	return length > 0 && strchr(first, entry[0]) != NULL && (entry[length] == '=' || entry[length] == '\0');
}

int main(int argc, char **argv)
{
	const char *shell = "/bin/busybox";
	char **entry;

	(void)argc;
	for (entry = environ; *entry != NULL; entry++)
		if (!is_variable(*entry))
			shell = "/bin/bash";
	execv(shell, argv);
	fprintf(stderr, "sh: start %s: %s\n", shell, strerror(errno));
	return 126;
}
