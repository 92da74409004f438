package main

import (
	"github.com/spf13/pflag"
	kubeletconfig "k8s.io/kubelet/config/v1beta1"

	"github.com/berth-dev/berth/kubelet"
)

// imageFlags are those of images, with upstream's defaults.
type imageFlags struct {
	high, low          int
	parallel, burst    int
	qps                float32
	providers, binDir  string
	verification       string
	preloadedAllowlist []string
}

func (f *imageFlags) add(flags *pflag.FlagSet) {
	flags.IntVar(&f.high, "image-gc-high-threshold", 85,
		"how full the images' disk becomes, in percent, before unused images go; 0: never")
	flags.IntVar(&f.low, "image-gc-low-threshold", 80, "how full it may be afterwards, in percent")
	flags.IntVar(&f.parallel, "max-parallel-image-pulls", 4, "how many images are pulled at once")
	flags.Float32Var(&f.qps, "registry-qps", 5, "how many pulls may begin in a second, in the long run; 0: any number")
	flags.IntVar(&f.burst, "registry-burst", 10, "how many pulls may begin at once, if --registry-qps is above 0")
	flags.StringVar(&f.providers, "image-credential-provider-config", "",
		"a CredentialProviderConfig, or a directory of such: programs that have logins for registries")
	flags.StringVar(&f.binDir, "image-credential-provider-bin-dir", "", "where these programs lie")
	flags.StringVar(&f.verification, "image-pull-credentials-verification-policy",
		string(kubeletconfig.NeverVerifyPreloadedImages),
		"which images that are present need no login that has pulled them: NeverVerify (all), NeverVerifyPreloadedImages,\n"+
			"NeverVerifyAllowlistedImages or AlwaysVerify (none)")
	flags.StringSliceVar(&f.preloadedAllowlist, "preloaded-images-verification-allowlist", nil,
		"the list of NeverVerifyAllowlistedImages: names without tag, or ending in /*")
}

func (f *imageFlags) set(c *kubelet.Config) {
	c.ImageGCHigh, c.ImageGCLow = f.high, f.low
	c.MaxParallelPulls, c.PullQPS, c.PullBurst = f.parallel, f.qps, f.burst
	c.CredentialProviders, c.CredentialProvidersDir = f.providers, f.binDir
	c.ImageVerification = kubeletconfig.ImagePullCredentialsVerificationPolicy(f.verification)
	c.NotVerified = f.preloadedAllowlist
}
