package up

import (
	"slices"
	"strings"
)

// inherited are the variables that child processes get of the environment of the user who starts the cluster: those that say
// how to reach the network, how to write, and how to trace. Credentials of clouds and tools are not among them.
var inherited = []string{
	"PATH", "HOME", "LANG", "TZ", "TMPDIR", "SSL_CERT_FILE", "SSL_CERT_DIR",
	"HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "no_proxy", "all_proxy",
	"GODEBUG", "GOGC", "GOMEMLIMIT", "GOMAXPROCS", "GOTRACEBACK", "GOCOVERDIR",
}

// inheritedPrefixes are beginnings of such variables.
var inheritedPrefixes = []string{"LC_", "OTEL_", "BERTH_"}

// cleanEnvironment returns those of the variables that child processes get.
func cleanEnvironment(environment []string) []string {
	var clean []string
	for _, variable := range environment {
		name, _, _ := strings.Cut(variable, "=")
		if isInherited(name) {
			clean = append(clean, variable)
		}
	}
	return clean
}

func isInherited(name string) bool {
	for _, known := range inherited {
		if name == known {
			return true
		}
	}
	for _, prefix := range inheritedPrefixes {
		if strings.HasPrefix(name, prefix) {
			return true
		}
	}
	return false
}

// watchdogPID says to systemd's library which process has to show that it works.
const watchdogPID = "WATCHDOG_PID"

// withoutNotification returns the variables without those by which a service notifies systemd (sd_notify(3)): that is the
// supervisor's to do.
func withoutNotification(environment []string) []string {
	return withoutVariables(environment, "NOTIFY_SOCKET", "WATCHDOG_USEC", watchdogPID)
}

func withoutVariables(environment []string, names ...string) []string {
	return slices.DeleteFunc(slices.Clone(environment), func(variable string) bool {
		name, _, _ := strings.Cut(variable, "=")
		return slices.Contains(names, name)
	})
}
