#include <stddef.h>

// The name of a process that has a file is this and the file's path.
#define PREFIX "berth-seccomp:"

// MAGIC begins a file, LARGEST bounds its size.
#define MAGIC "berthsc1"
#define LARGEST (1 << 20)

struct blob {
	unsigned char *data;
	size_t size;
};

// The calls and the program of the file that this process has been given; empty without.
extern struct blob berth_known_calls, berth_known_program;
