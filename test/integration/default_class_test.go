//go:build integration

package integration

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestTheUsersDefaultClassStays has a user who wants no default StorageClass, and starts the cluster again. What else the user changed is set back.
func TestTheUsersDefaultClassStays(t *testing.T) {
	const annotation, expandable = "storageclass.kubernetes.io/is-default-class", "berth-loop"
	c := newCluster(t)
	// applied waits until `berth up` has applied its classes, and returns which are the default.
	applied := func() (defaults []string) {
		require.NoError(t, c.poll(func(ctx context.Context) bool {
			classes, err := c.client().StorageV1().StorageClasses().List(ctx, metav1.ListOptions{})
			require.NoError(t, err)
			defaults = nil
			isApplied := false
			for _, class := range classes.Items {
				if class.Annotations[annotation] == "true" {
					defaults = append(defaults, class.Name)
				}
				isApplied = isApplied || class.Name == expandable && *class.AllowVolumeExpansion
			}
			return isApplied
		}), "the class %s is not what `berth up` applies", expandable)
		return defaults
	}
	c.up("--unsafe-no-fsync")
	require.NotEmpty(t, applied())
	for range 2 { // the second one finds what the first one left
		c.mustRun("kubectl", "annotate", "sc", "--all", annotation+"=false", "--overwrite")
		c.mustRun("kubectl", "patch", "sc", expandable, "--type=merge", "-p", `{"allowVolumeExpansion": false}`)
		c.stop()
		c.up("--unsafe-no-fsync")
		require.Empty(t, applied())
	}
}
