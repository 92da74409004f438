package runcinit

/*
#cgo CFLAGS: -Wall
#cgo LDFLAGS: -Wl,--wrap=x_cgo_init
void runcinit_restore_slack(void);
*/
import "C"

// restoreSlack gives the main thread, which becomes the process of the container, the timer slack that it had before Go started.
//
// Go has a thread that looks every 20 µs whether another one has to be preempted, as long as anything runs. That thread inherits the
// slack of 10 ms that the main thread has in the meantime (slack.c), so that it wakes some hundred times less often in the short life of
// this process. Where many containers start at once its wake-ups are a tenth of the process's CPU time.
func restoreSlack() { C.runcinit_restore_slack() }
