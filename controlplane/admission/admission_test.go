package admission_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/apis/apiserver"
	apiserverv1 "k8s.io/apiserver/pkg/apis/apiserver/v1"
	"k8s.io/kubernetes/plugin/pkg/admission/eventratelimit"
	"k8s.io/kubernetes/plugin/pkg/admission/security/podsecurity"
	podsecurityload "k8s.io/pod-security-admission/admission/api/load"

	own "github.com/berth-dev/berth/controlplane/admission"
	"github.com/berth-dev/berth/controlplane/config"
)

func TestPluginsReadTheirConfiguration(t *testing.T) {
	for _, hardened := range []bool{false, true} {
		c := &config.Config{RunDir: t.TempDir(), Hardened: hardened}
		require.NoError(t, own.Prepare(c))
		scheme := runtime.NewScheme()
		require.NoError(t, apiserver.AddToScheme(scheme))
		require.NoError(t, apiserverv1.AddToScheme(scheme))
		provider, err := admission.ReadAdmissionConfiguration([]string{podsecurity.PluginName, eventratelimit.PluginName}, c.AdmissionConfigFile(), scheme)
		require.NoError(t, err)

		plugins := admission.NewPlugins()
		eventratelimit.Register(plugins)
		limits, err := provider.ConfigFor(eventratelimit.PluginName)
		require.NoError(t, err)
		_, err = plugins.InitPlugin(eventratelimit.PluginName, limits, admission.PluginInitializers{})
		require.NoError(t, err)

		security, err := provider.ConfigFor(podsecurity.PluginName)
		require.NoError(t, err)
		levels, err := podsecurityload.LoadFromReader(security)
		require.NoError(t, err)
		want := "privileged"
		if hardened {
			want = "restricted"
		}
		require.Equal(t, want, levels.Defaults.Enforce)
		require.Equal(t, want, levels.Defaults.Warn)
		require.Equal(t, []string{"kube-system"}, levels.Exemptions.Namespaces)

		enabled := slices.ContainsFunc(own.Args(c), func(arg string) bool { return strings.Contains(arg, "DenyServiceExternalIPs") })
		require.Equal(t, hardened, enabled)
	}
}
