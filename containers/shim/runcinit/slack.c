#include <string.h>
#include <sys/prctl.h>

// The slack of the main thread before it was changed; 0 if it was not.
static unsigned long original;

// The name that runc's library gives the process that becomes that of the container, after it has entered its namespaces.
static const char init_name[] = "runc:[2:INIT]";

static void change_slack(void) {
	char name[16];
	if (prctl(PR_GET_NAME, name) || strcmp(name, init_name))
		return;
	int slack = prctl(PR_GET_TIMERSLACK);
	if (slack <= 0 || prctl(PR_SET_TIMERSLACK, 10 * 1000 * 1000UL))
		return;
	original = slack;
}

void runcinit_restore_slack(void) {
	if (original)
		prctl(PR_SET_TIMERSLACK, original);
}

void __real_x_cgo_init(void *, void *, void *, void *);

// Begins Go's own preparations, as the linker's option "wrap" makes it. Constructors have run, among them that of runc's library, which
// forks: if the slack changed before that, the kernel would keep it as the default of the container's process.
void __wrap_x_cgo_init(void *g, void *setg, void *tlsg, void *tlsbase) {
	change_slack();
	__real_x_cgo_init(g, setg, tlsg, tlsbase);
}
