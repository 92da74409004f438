//go:build panicinjection

package contain

import (
	"math/rand/v2"
	"os"
	"regexp"
	"strconv"
	"strings"
)

// The environment of a binary that was built with the tag panicinjection says where it panics: BERTH_PANIC_RATE is the
// probability of each step, BERTH_PANIC_SITES and BERTH_PANIC_OBJECTS are regular expressions that the step has to match. If
// BERTH_PANIC_EXCEPT names a file, it panics only while the file exists, and spares objects that contain one of its lines.
var injection = readInjection()

type injectionConfig struct {
	rate           float64
	sites, objects *regexp.Regexp
	except         string
}

func readInjection() injectionConfig {
	rate, _ := strconv.ParseFloat(os.Getenv("BERTH_PANIC_RATE"), 64)
	return injectionConfig{
		rate:  rate,
		sites: regexp.MustCompile(os.Getenv("BERTH_PANIC_SITES")), objects: regexp.MustCompile(os.Getenv("BERTH_PANIC_OBJECTS")),
		except: os.Getenv("BERTH_PANIC_EXCEPT"),
	}
}

// inject panics at random where the environment says so.
func inject(site, object string) {
	if injection.rate > 0 && injection.sites.MatchString(site) && injection.objects.MatchString(object) &&
		rand.Float64() < injection.rate && !spares(object) {
		panic("injected at " + site)
	}
}

// spares reports whether the file of exceptions spares the object now.
func spares(object string) bool {
	if injection.except == "" {
		return false
	}
	data, err := os.ReadFile(injection.except)
	if err != nil {
		return true
	}
	for _, line := range strings.Fields(string(data)) {
		if strings.Contains(object, line) {
			return true
		}
	}
	return false
}
