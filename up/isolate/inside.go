package isolate

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// variable is the environment variable in which the cluster's process receives an Inside.
const variable = "BERTH_ISOLATED"

// insideLock, insideListener and insidePage are the descriptors of the cluster's process.
const insideLock, insideListener, insidePage = 3, 4, 5

// Inside is what the cluster's process knows of its isolation.
type Inside struct {
	// Address is the namespace's end of the link to the machine. The machine reaches node ports there.
	Address netip.Addr `json:"address"`
	// Address6 is the same of IPv6; invalid if the link has none.
	Address6 netip.Addr `json:"address6"`
	// StartedAt is when the start began.
	StartedAt time.Time `json:"startedAt"`
	// HasPage says that there is a Page.
	HasPage bool `json:"hasPage,omitempty"`
	// Lock is the lock of the data directory, Listener the API server's listening socket on the machine's loopback, Page the
	// page's; nil if there is none.
	Lock     *os.File `json:"-"`
	Listener *os.File `json:"-"`
	Page     *os.File `json:"-"`
}

// FromEnvironment returns the isolation of this process, nil if it is not isolated. Call it once: child processes of this one
// do not inherit it.
func FromEnvironment() (*Inside, error) {
	text, ok := os.LookupEnv(variable)
	if !ok {
		return nil, nil
	}
	var inside Inside
	if err := json.Unmarshal([]byte(text), &inside); err != nil {
		return nil, fmt.Errorf("read the environment variable %s, which only %s sets: %w", variable, Program, err)
	}
	inherited := []int{insideLock, insideListener}
	if inside.HasPage {
		inherited = append(inherited, insidePage)
	}
	for _, fd := range inherited {
		if _, err := unix.FcntlInt(uintptr(fd), unix.F_SETFD, unix.FD_CLOEXEC); err != nil {
			return nil, fmt.Errorf("use descriptor %d, which %s passes: %w", fd, Program, err)
		}
	}
	inside.Lock, inside.Listener = os.NewFile(insideLock, "lock"), os.NewFile(insideListener, "listener")
	if inside.HasPage {
		inside.Page = os.NewFile(insidePage, "page")
	}
	return &inside, os.Unsetenv(variable)
}

// environment returns the environment of the cluster's process.
func (c Config) environment(inner addresses) ([]string, error) {
	inside, err := json.Marshal(Inside{Address: inner.V4, Address6: inner.V6, StartedAt: time.Unix(0, c.StartedAt), HasPage: c.Page != 0})
	if err != nil {
		return nil, err
	}
	return append(os.Environ(), variable+"="+string(inside),
		"XTABLES_LOCKFILE="+c.RunDir+"/xtables.lock"), nil // the rules of another namespace need not wait for ours
}
