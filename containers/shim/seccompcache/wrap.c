//go:build cgo && seccomp

#define _GNU_SOURCE
#include "wrap.h"
#include "known.h"

#include <errno.h>
#include <seccomp.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

// The functions of libseccomp, and those that its callers reach instead.
#define WRAPPED(result, name, ...) \
	result __real_##name(__VA_ARGS__); \
	result __wrap_##name(__VA_ARGS__)

enum mode {
	OFF,	 // all calls go to libseccomp, and nothing is recorded
	CAPTURE, // all calls go to libseccomp, and are recorded
	DEFER	 // rules are recorded only: the filter may be known
};

enum call { CALL_INIT = 1, CALL_ARCH, CALL_ATTRIBUTE, CALL_RULE, CALL_EXACT_RULE };

// The filter that is being made; there is one at a time.
static enum mode mode;
static scmp_filter_ctx current;
static struct blob calls, captured;
static int failed; // a call was not recorded, or libseccomp refused it
static unsigned int rules; // recorded ones
static int used;

int berth_seccomp_known(void) { return berth_known_calls.size > 0; }
int berth_seccomp_used(void) { return used; }

static void append(const void *data, size_t size) {
	unsigned char *grown = realloc(calls.data, calls.size + size);
	if (!grown) {
		failed = 1;
		return;
	}
	memcpy(grown + calls.size, data, size);
	calls.data = grown;
	calls.size += size;
}

static void append_number(uint64_t number) { append(&number, sizeof(number)); }

static void forget(struct blob *b) {
	free(b->data);
	b->data = NULL;
	b->size = 0;
}

struct recorded_rule {
	uint64_t action, syscall, count;
};

static int add_rule(enum call call, scmp_filter_ctx ctx, uint32_t action, int syscall, unsigned int count, const struct scmp_arg_cmp *args);

// replay gives libseccomp the rules that were recorded only.
static int replay(void) {
	const unsigned char *at = calls.data, *end = calls.data + calls.size;
	mode = OFF;
	if (failed)
		return -ENOMEM;
	while (at < end) {
		uint64_t call;
		struct recorded_rule rule;
		memcpy(&call, at, sizeof(call));
		at += sizeof(call);
		if (call != CALL_RULE && call != CALL_EXACT_RULE) { // libseccomp has it
			uint64_t numbers;
			memcpy(&numbers, at, sizeof(numbers));
			at += sizeof(numbers) * (1 + numbers);
			continue;
		}
		memcpy(&rule, at, sizeof(rule));
		at += sizeof(rule);
		struct scmp_arg_cmp args[6];
		memset(args, 0, sizeof(args));
		for (unsigned int i = 0; i < rule.count; i++) {
			uint64_t numbers[4];
			memcpy(numbers, at, sizeof(numbers));
			at += sizeof(numbers);
			args[i] = (struct scmp_arg_cmp){numbers[0], numbers[1], numbers[2], numbers[3]};
		}
		int rc = add_rule(call, current, rule.action, (int)rule.syscall, rule.count, args);
		if (rc)
			return rc;
	}
	return 0;
}

// other is called before a call of the current filter that is not recorded.
static int other(scmp_filter_ctx ctx) {
	if (mode == OFF || ctx != current)
		return 0;
	if (mode == DEFER)
		return replay();
	failed = 1;
	return 0;
}

WRAPPED(scmp_filter_ctx, seccomp_init, uint32_t action) {
	scmp_filter_ctx ctx = __real_seccomp_init(action);
	if (mode == OFF && berth_seccomp_known() && !current)
		mode = DEFER;
	if (mode == OFF || current || !ctx)
		return ctx;
	const struct scmp_version *version = seccomp_version();
	current = ctx;
	rules = 0;
	append_number(CALL_INIT);
	append_number(5);
	append_number(action);
	append_number(version->major);
	append_number(version->minor);
	append_number(version->micro);
	append_number(seccomp_api_get());
	return ctx;
}

WRAPPED(void, seccomp_release, scmp_filter_ctx ctx) {
	__real_seccomp_release(ctx);
	if (ctx != current)
		return;
	current = NULL;
	forget(&calls);
	if (mode == DEFER)
		mode = OFF;
}

// in_order is called before a call that libseccomp gets at once: rules that were made before it must be there.
static int in_order(scmp_filter_ctx ctx) { return mode == DEFER && ctx == current && rules ? replay() : 0; }

WRAPPED(int, seccomp_arch_add, scmp_filter_ctx ctx, uint32_t arch) {
	int rc = in_order(ctx);
	if (rc)
		return rc;
	rc = __real_seccomp_arch_add(ctx, arch);
	if (mode != OFF && ctx == current) {
		append_number(CALL_ARCH);
		append_number(2);
		append_number(arch);
		append_number(rc);
	}
	return rc;
}

WRAPPED(int, seccomp_attr_set, scmp_filter_ctx ctx, enum scmp_filter_attr attribute, uint32_t value) {
	int rc = in_order(ctx);
	if (rc)
		return rc;
	rc = __real_seccomp_attr_set(ctx, attribute, value);
	if (mode != OFF && ctx == current) {
		append_number(CALL_ATTRIBUTE);
		append_number(3);
		append_number(attribute);
		append_number(value);
		append_number(rc);
	}
	return rc;
}

int __real_seccomp_rule_add_array(scmp_filter_ctx, uint32_t, int, unsigned int, const struct scmp_arg_cmp *);
int __real_seccomp_rule_add_exact_array(scmp_filter_ctx, uint32_t, int, unsigned int, const struct scmp_arg_cmp *);

static int add_rule(enum call call, scmp_filter_ctx ctx, uint32_t action, int syscall, unsigned int count, const struct scmp_arg_cmp *args) {
	int rc = 0;
	if (mode != DEFER || ctx != current || count > 6) {
		if (mode == DEFER && ctx == current && (rc = replay()))
			return rc;
		rc = call == CALL_RULE ? __real_seccomp_rule_add_array(ctx, action, syscall, count, args)
				       : __real_seccomp_rule_add_exact_array(ctx, action, syscall, count, args);
	}
	if (mode == OFF || ctx != current)
		return rc;
	if (rc || count > 6) {
		failed = 1;
		return rc;
	}
	struct recorded_rule rule = {action, (uint64_t)(int64_t)syscall, count};
	rules++;
	append_number(call);
	append(&rule, sizeof(rule));
	for (unsigned int i = 0; i < count; i++) {
		uint64_t numbers[4] = {args[i].arg, args[i].op, args[i].datum_a, args[i].datum_b};
		append(numbers, sizeof(numbers));
	}
	return 0;
}

int __wrap_seccomp_rule_add_array(scmp_filter_ctx ctx, uint32_t action, int syscall, unsigned int count, const struct scmp_arg_cmp *args) {
	return add_rule(CALL_RULE, ctx, action, syscall, count, args);
}

int __wrap_seccomp_rule_add_exact_array(scmp_filter_ctx ctx, uint32_t action, int syscall, unsigned int count, const struct scmp_arg_cmp *args) {
	return add_rule(CALL_EXACT_RULE, ctx, action, syscall, count, args);
}

// write_known writes the known program as libseccomp would.
static int write_known(int fd) {
	const unsigned char *at = berth_known_program.data;
	size_t left = berth_known_program.size;
	while (left > 0) {
		ssize_t n = write(fd, at, left);
		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return -errno;
		at += n;
		left -= n;
	}
	used++;
	return 0;
}

int __real_seccomp_export_bpf(scmp_filter_ctx, int);

// capture keeps the program of the current filter.
static int capture(void) {
	struct stat st;
	int rc, fd = memfd_create("filter", MFD_CLOEXEC);
	if (fd < 0)
		return -errno;
	rc = __real_seccomp_export_bpf(current, fd);
	if (!rc && (fstat(fd, &st) || !st.st_size || !(captured.data = malloc(st.st_size)) ||
		    pread(fd, captured.data, st.st_size, 0) != st.st_size))
		rc = -EIO;
	close(fd);
	if (rc) {
		forget(&captured);
		return rc;
	}
	captured.size = st.st_size;
	return -ECANCELED;
}

int __wrap_seccomp_export_bpf(scmp_filter_ctx ctx, int fd) {
	if (ctx == current && mode == CAPTURE)
		return capture();
	if (ctx == current && mode == DEFER) {
		if (!failed && calls.size == berth_known_calls.size && !memcmp(calls.data, berth_known_calls.data, calls.size))
			return write_known(fd);
		int rc = replay();
		if (rc)
			return rc;
	}
	return __real_seccomp_export_bpf(ctx, fd);
}

void berth_seccomp_capture_begin(void) {
	mode = CAPTURE;
	failed = 0;
}

int berth_seccomp_capture_end(void **out_calls, size_t *calls_size, void **program, size_t *program_size) {
	int ok = !failed && captured.size && calls.size;
	mode = OFF;
	current = NULL; // runc's library leaves its end to the garbage collector
	failed = 0;
	if (!ok) {
		forget(&calls);
		forget(&captured);
		return 0;
	}
	*out_calls = calls.data, *calls_size = calls.size;
	*program = captured.data, *program_size = captured.size;
	calls = (struct blob){0};
	captured = (struct blob){0};
	return 1;
}

// Calls that runc's library does not make for a filter that is recorded. Before such a call libseccomp gets all that was deferred.
#define OTHER(name, parameters, ctx, ...) \
	int __real_##name parameters; \
	int __wrap_##name parameters { \
		int rc = other(ctx); \
		return rc ? rc : __real_##name(__VA_ARGS__); \
	}

OTHER(seccomp_reset, (scmp_filter_ctx ctx, uint32_t action), ctx, ctx, action)
OTHER(seccomp_arch_remove, (scmp_filter_ctx ctx, uint32_t arch), ctx, ctx, arch)
OTHER(seccomp_syscall_priority, (scmp_filter_ctx ctx, int syscall, uint8_t priority), ctx, ctx, syscall, priority)
OTHER(seccomp_load, (const scmp_filter_ctx ctx), ctx, ctx)
OTHER(seccomp_export_pfc, (const scmp_filter_ctx ctx, int fd), ctx, ctx, fd)

int __real_seccomp_merge(scmp_filter_ctx to, scmp_filter_ctx from);
int __wrap_seccomp_merge(scmp_filter_ctx to, scmp_filter_ctx from) {
	int rc = other(to);
	if (!rc)
		rc = other(from);
	return rc ? rc : __real_seccomp_merge(to, from);
}
