//go:build panicinjection

package contain

import (
	"math/rand/v2"
	"os"
	"regexp"
	"strconv"
)

// The environment of a binary that was built with the tag panicinjection says where it panics: BERTH_PANIC_RATE is the
// probability of each step, BERTH_PANIC_SITES and BERTH_PANIC_OBJECTS are regular expressions that the step has to match.
var injection = readInjection()

type injectionConfig struct {
	rate           float64
	sites, objects *regexp.Regexp
}

func readInjection() injectionConfig {
	rate, _ := strconv.ParseFloat(os.Getenv("BERTH_PANIC_RATE"), 64)
	return injectionConfig{
		rate:  rate,
		sites: regexp.MustCompile(os.Getenv("BERTH_PANIC_SITES")), objects: regexp.MustCompile(os.Getenv("BERTH_PANIC_OBJECTS")),
	}
}

// inject panics at random where the environment says so.
func inject(site, object string) {
	if injection.rate > 0 && injection.sites.MatchString(site) && injection.objects.MatchString(object) && rand.Float64() < injection.rate {
		panic("injected at " + site)
	}
}
