// The command line of this process, as the kernel has it: constructors get no arguments with every C library.
struct arguments {
	char line[16384]; // the arguments, each with a zero after it
	const char *last, *end;
};

// read_arguments returns 0 if it has read a complete command line.
int read_arguments(struct arguments *a);

// argument_after returns the argument after one, or 0.
const char *argument_after(const struct arguments *a, const char *flag);
