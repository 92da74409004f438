package main

import (
	"math"

	"github.com/spf13/pflag"
	kubeletconfig "k8s.io/kubelet/config/v1beta1"
	"k8s.io/utils/ptr"

	"github.com/berth-dev/berth/kubelet/settings"
)

// imageFlags are the flags of images, with the upstream kubelet's defaults.
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
		"percent of disk usage above which unused images are removed; 0: never")
	flags.IntVar(&f.low, "image-gc-low-threshold", 80, "percent of disk usage down to which unused images are removed")
	flags.IntVar(&f.parallel, "max-parallel-image-pulls", 4, "maximum number of concurrent image pulls")
	flags.Float32Var(&f.qps, "registry-qps", 5, "average limit of image pulls per second; 0: unlimited")
	flags.IntVar(&f.burst, "registry-burst", 10, "maximum burst of image pulls, if --registry-qps is above 0")
	flags.StringVar(&f.providers, "image-credential-provider-config", "",
		"a CredentialProviderConfig, or a directory of them: plugins that provide registry credentials")
	flags.StringVar(&f.binDir, "image-credential-provider-bin-dir", "", "directory of the credential provider plugins")
	flags.StringVar(&f.verification, "image-pull-credentials-verification-policy",
		string(kubeletconfig.NeverVerifyPreloadedImages),
		"which present images may be used without credentials that pulled them: NeverVerify (all),\nNeverVerifyPreloadedImages, "+
			"NeverVerifyAllowlistedImages or AlwaysVerify (none)")
	flags.StringSliceVar(&f.preloadedAllowlist, "preloaded-images-verification-allowlist", nil,
		"images of NeverVerifyAllowlistedImages: names without tag, or ending in /*")
}

// set copies the flags into the configuration.
func (f *imageFlags) set(c *settings.Configuration) {
	high := f.high
	if high == 0 {
		high = 100 // which is how Kubernetes writes never
	}
	c.ImageGCHighThresholdPercent, c.ImageGCLowThresholdPercent = ptr.To(int32(high)), ptr.To(int32(f.low))
	c.SerializeImagePulls, c.MaxParallelImagePulls = ptr.To(false), ptr.To(int32(f.parallel))
	c.RegistryPullQPS, c.RegistryBurst = ptr.To(int32(math.Ceil(float64(f.qps)))), int32(f.burst)
	c.ImagePullCredentialsVerificationPolicy = kubeletconfig.ImagePullCredentialsVerificationPolicy(f.verification)
	c.PreloadedImagesVerificationAllowlist = f.preloadedAllowlist
}
