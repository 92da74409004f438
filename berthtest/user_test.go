//go:build integration

package berthtest_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	envtest "github.com/berth-dev/berth/berthtest"
)

// withoutRoot is set for the process that TestWithoutRoot runs as an ordinary user.
const withoutRoot = "BERTHTEST_WITHOUT_ROOT"

// asOrdinaryUser runs the test program $2 as an ordinary user who can read it, and the programs in $1, at other paths.
const asOrdinaryUser = `set -e
mount --bind "$1" /mnt
mount --bind "$(dirname "$2")" /media
exec setpriv --reuid 65534 --regid 65534 --clear-groups /media/"$(basename "$2")" -test.run='^TestWithoutRoot$' -test.v`

// TestWithoutRoot starts an API server with a webhook and a user as an ordinary user does, in a user namespace; a whole cluster is refused with
// what it needs. Nothing is left of a process that does not stop it.
func TestWithoutRoot(t *testing.T) {
	if os.Getenv(withoutRoot) != "" {
		useAPIServerWithoutRoot(t)
		os.Exit(3) // without Stop
	}
	if _, err := os.Stat("/proc/self/ns/user"); err != nil {
		t.Skip("this kernel has no user namespaces")
	}
	t.Parallel()
	tmp, err := os.MkdirTemp("", "bt")
	require.NoError(t, err)
	defer os.RemoveAll(tmp)
	require.NoError(t, os.Chown(tmp, 65534, 65534))
	cmd := exec.Command("unshare", "--mount", "--propagation", "private", "sh", "-c", asOrdinaryUser, "sh", os.Getenv("BERTH_BIN"), os.Args[0])
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + tmp, "TMPDIR=" + tmp, "BERTH_BIN=/mnt", withoutRoot + "=1", "KUBEBUILDER_CONTROLPLANE_START_TIMEOUT=10m"}
	cmd.Dir = tmp
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	require.ErrorAs(t, err, &exit, "%s", out)
	require.Equal(t, 3, exit.ExitCode(), "%s", out)
	require.Contains(t, string(out), "all was seen")
	require.EventuallyWithT(t, func(c *assert.CollectT) { assert.Empty(c, processesOf(t, tmp)) }, time.Minute, 50*time.Millisecond)
	left, err := filepath.Glob(filepath.Join(tmp, "berthtest-65534", "c*"))
	require.NoError(t, err)
	require.Len(t, left, 1, "the files of the cluster that was not stopped, for the next start to remove")
}

// useAPIServerWithoutRoot stops one cluster and leaves another.
func useAPIServerWithoutRoot(t *testing.T) {
	whole := &envtest.Environment{}
	_, err := whole.Start()
	require.ErrorIs(t, err, envtest.ErrUnavailable)
	require.ErrorContains(t, err, "containers need root")
	require.ErrorContains(t, err, "BERTHTEST_API_ONLY=true")

	env := &envtest.Environment{APIOnly: true}
	greetingsWith(env)
	config, err := env.Start()
	require.NoError(t, err)
	serveWebhook(t, env.WebhookInstallOptions)
	require.NoError(t, createGreeting(t, config, "hello"), "the API server reaches the webhook")
	require.ErrorContains(t, createGreeting(t, config, "bad"), "no bad greetings")
	anna, err := env.AddUser(envtest.User{Name: "anna", Groups: []string{"testers"}}, nil)
	require.NoError(t, err)
	_, err = kubernetes.NewForConfigOrDie(anna.Config()).CoreV1().Pods("default").List(t.Context(), metav1.ListOptions{})
	require.True(t, apierrors.IsForbidden(err), "%v", err)
	require.NoError(t, env.Stop())

	left := &envtest.Environment{APIOnly: true}
	_, err = left.Start()
	require.NoError(t, err)
	_, _ = os.Stdout.WriteString("\nall was seen\n")
}
