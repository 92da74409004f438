//go:build integration

package integration

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// asOrdinaryUser runs berth as a user without rights on a machine whose /etc/berth is closed to that user, in a mount namespace of its own.
// $1 is the directory of the programs, $2 one for the changed /etc; the others are the arguments.
const asOrdinaryUser = `set -e
mount --bind "$1" /mnt
mount -t tmpfs tmpfs "$2"
mkdir "$2/upper" "$2/work"
mount -t overlay overlay -o "lowerdir=/etc,upperdir=$2/upper,workdir=$2/work" /etc
rm -rf /etc/berth
mkdir -m 700 /etc/berth
echo "data-dir: /srv/elsewhere" > /etc/berth/config.yaml
shift 2
cd /
exec setpriv --reuid 65534 --regid 65534 --clear-groups /mnt/berth "$@"`

// TestOrdinaryUserWhereTheConfigurationIsClosed runs commands of a user who may not read the configuration: what needs nothing of it works,
// and everything else says what to do.
func TestOrdinaryUserWhereTheConfigurationIsClosed(t *testing.T) {
	bin := filepath.Dir(berthBinary(t))
	kubeconfig := filepath.Join(shortDir(t), "kubeconfig")
	require.NoError(t, os.Chmod(filepath.Dir(kubeconfig), 0o755))
	require.NoError(t, os.WriteFile(kubeconfig, []byte(`{"apiVersion": "v1", "kind": "Config", "current-context": "c",
		"clusters": [{"name": "c", "cluster": {"server": "https://127.0.0.1:1"}}], "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
		"users": [{"name": "u", "user": {"token": "t"}}]}`), 0o644))
	for _, test := range []struct{ command, wants string }{
		{"kubectl version --client", "Client Version"},
		{"kubectl --kubeconfig " + kubeconfig + " config current-context", "c\n"},
		{"kubectl --kubeconfig " + kubeconfig + " get pods", "127.0.0.1:1"},
		{"explain pod/web --kubeconfig " + kubeconfig, "127.0.0.1:1"},
		{"doctor", "machine"},
		{"kubectl get pods", "use sudo"},
		{"explain pod/web", "use sudo"},
		{"images list", "use sudo"},
		{"upgrade --check", "use sudo"},
		{"--data-dir /srv/named kubectl get pods", "no cluster found in /srv/named"},
		{"version", "berth "},
	} {
		t.Run(test.command, func(t *testing.T) {
			args := append([]string{"--mount", "--propagation", "private", "sh", "-c", asOrdinaryUser, "sh", bin, t.TempDir()}, strings.Fields(test.command)...)
			cmd := exec.CommandContext(t.Context(), "unshare", args...)
			cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=/nonexistent"}
			out, err := cmd.CombinedOutput()
			require.Contains(t, string(out), test.wants, "%v", err)
			if test.wants != "use sudo" {
				require.NotContains(t, string(out), "/etc/berth")
			}
		})
	}
}
