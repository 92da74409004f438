// The first process of every Pod's sandbox: it holds the Pod's namespaces open, collects the processes that the Pod's containers leave
// behind when they share a process namespace, and ends at SIGTERM or SIGINT. It is C because every Pod starts it: a Go program needs a
// millisecond of CPU and two megabytes before its main function runs.
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>

int main(int argc, char **argv) {
	if (argc == 2 && (!strcmp(argv[1], "-v") || !strcmp(argv[1], "--version")))
		return puts("pause " VERSION) < 0;
	if (argc > 1) {
		fprintf(stderr, "pause: unknown argument \"%s\": it takes none but -v\n", argv[1]);
		return 2;
	}
	// The signals are blocked and fetched one by one. As the first process of its namespace this one gets no signal that has neither a
	// handler nor is blocked. SIGCHLD is not ignored either, so a child waits until it is collected.
	sigset_t signals;
	sigemptyset(&signals);
	sigaddset(&signals, SIGTERM);
	sigaddset(&signals, SIGINT);
	sigaddset(&signals, SIGCHLD);
	if (sigprocmask(SIG_BLOCK, &signals, NULL) < 0) {
		perror("pause: block signals");
		return 1;
	}
	signal(SIGCHLD, SIG_DFL);
	for (;;) {
		int got = sigwaitinfo(&signals, NULL);
		if (got == SIGTERM || got == SIGINT)
			return 0;
		// One SIGCHLD may stand for several children.
		while (waitpid(-1, NULL, WNOHANG) > 0)
			;
	}
}
