package hostports

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// plugins has a program in the place of the plugin, whose rules are files.
type plugins struct {
	t     *testing.T
	dir   string
	cache string
}

func newPlugins(t *testing.T) *plugins {
	p := &plugins{t: t, dir: t.TempDir(), cache: t.TempDir()}
	script := `#!/bin/sh
cd ` + p.dir + `
echo $CNI_COMMAND $CNI_CONTAINERID $CNI_IFNAME $CNI_NETNS >> calls
cat > input.$CNI_CONTAINERID
case $CNI_COMMAND in
CHECK) [ -e rules.$CNI_CONTAINERID ] || { echo '{"cniVersion": "1.0.0", "code": 100, "msg": "missing"}'; exit 1; } ;;
ADD) > rules.$CNI_CONTAINERID ;;
DEL) rm -f rules.$CNI_CONTAINERID ;;
esac
`
	require.NoError(t, os.WriteFile(filepath.Join(p.dir, plugin), []byte(script), 0o755))
	return p
}

// pod writes the file of a Pod whose network interface has the name, and returns its path.
func (p *plugins) pod(id, port, mappings string) string {
	file := filepath.Join(p.cache, id)
	// {"cniVersion": "1.0.0", "plugins": [{"type": "berth", "backend": "nftables", "capabilities": {"portMappings": true}}]}
	const config = "eyJjbmlWZXJzaW9uIjogIjEuMC4wIiwgInBsdWdpbnMiOiBbeyJ0eXBlIjogImJlcnRoIiwgImJhY2tlbmQiOiAibmZ0YWJsZXMiLCAiY2FwYWJpbGl0aWVzIjogeyJwb3J0TWFwcGluZ3MiOiB0cnVlfX1dfQ=="
	require.NoError(p.t, os.WriteFile(file, fmt.Appendf(nil, `{"kind": "cniCacheV1", "containerId": %q, "config": %q, "ifName": "eth0",
		"networkName": "br0", "netns": "/run/netns/x", "capabilityArgs": {"portMappings": %s}, "result": {"cniVersion": "1.0.0",
		"interfaces": [{"name": "br0"}, {"name": %q}, {"name": "eth0", "sandbox": "/run/netns/x"}]}}`, id, config, mappings, port), 0o600))
	return file
}

func (p *plugins) calls() []string {
	data, _ := os.ReadFile(filepath.Join(p.dir, "calls")) // which no call has written
	require.NoError(p.t, os.RemoveAll(filepath.Join(p.dir, "calls")))
	return strings.FieldsFunc(string(data), func(r rune) bool { return r == '\n' })
}

// TestHostPortsOfRunningPodsAreForwardedAgain has the loopback interface in the place of a Pod's.
func TestHostPortsOfRunningPodsAreForwardedAgain(t *testing.T) {
	p := newPlugins(t)
	const mappings = `[{"hostPort": 80, "containerPort": 8080, "protocol": "tcp"}]`
	files := []string{
		p.pod("ended", "berth-no-such0", mappings), p.pod("without", "lo", "null"), filepath.Join(p.cache, "missing"), p.pod("one", "lo", mappings),
	}
	require.NoError(t, Ensure(t.Context(), p.dir, files))
	require.Equal(t, []string{"CHECK one eth0 /run/netns/x", "DEL one eth0 /run/netns/x", "ADD one eth0 /run/netns/x"}, p.calls())
	input, err := os.ReadFile(filepath.Join(p.dir, "input.one"))
	require.NoError(t, err)
	require.JSONEq(t, `{"cniVersion": "1.0.0", "name": "br0", "type": "portmap", "backend": "nftables", "capabilities": {"portMappings": true},
		"runtimeConfig": {"portMappings": `+mappings+`}, "prevResult": {"cniVersion": "1.0.0",
		"interfaces": [{"name": "br0"}, {"name": "lo"}, {"name": "eth0", "sandbox": "/run/netns/x"}]}}`, string(input))

	require.NoError(t, Ensure(t.Context(), p.dir, files))
	require.Equal(t, []string{"CHECK one eth0 /run/netns/x"}, p.calls(), "nothing is missing")

	damaged := filepath.Join(p.cache, "damaged")
	require.NoError(t, os.WriteFile(damaged, []byte(`{"kind"`), 0o600))
	require.NoError(t, os.Remove(filepath.Join(p.dir, "rules.one")))
	require.ErrorContains(t, Ensure(t.Context(), p.dir, append([]string{damaged}, files...)), damaged)
	require.FileExists(t, filepath.Join(p.dir, "rules.one"), "what is wrong with one file does not concern the others")
}

// TestAPodThatEndsMeanwhileKeepsNoHostPorts has the Pod's network interface disappear before the plugin has made the rules.
func TestAPodThatEndsMeanwhileKeepsNoHostPorts(t *testing.T) {
	p := newPlugins(t)
	a, err := read(p.pod("one", "lo", `[{"hostPort": 80}]`))
	require.NoError(t, err)
	a.port = "berth-no-such0"
	require.NoError(t, a.ensure(t.Context(), filepath.Join(p.dir, plugin)))
	require.NoFileExists(t, filepath.Join(p.dir, "rules.one"))
}
