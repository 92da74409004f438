#include <stddef.h>

// berth_seccomp_capture_begin makes the next export of a filter fail with ECANCELED, after its calls and its program are kept.
void berth_seccomp_capture_begin(void);

// berth_seccomp_capture_end ends that, and returns 1 if there is a result: the caller frees both parts.
int berth_seccomp_capture_end(void **calls, size_t *calls_size, void **program, size_t *program_size);

// berth_seccomp_known returns 1 if this process has read a file.
int berth_seccomp_known(void);

// berth_seccomp_used is how many filters came from the file.
int berth_seccomp_used(void);
