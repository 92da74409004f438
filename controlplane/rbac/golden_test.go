package rbac_test

import (
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/berth-dev/berth/controlplane/rbac"
)

var update = flag.Bool("update", false, "write testdata/rights.txt")

// TestRightsOfAllIdentities compares every role and binding that Berth creates with testdata/rights.txt, so that no identity gets a right
// that was not reviewed.
func TestRightsOfAllIdentities(t *testing.T) {
	client := fake.NewClientset()
	require.NoError(t, rbac.Ensure(t.Context(), client))
	var lines []string
	add := func(role, namespace string, subjects []rbacv1.Subject, rules []rbacv1.PolicyRule) {
		for _, subject := range subjects {
			who := strings.ToLower(subject.Kind) + " " + subject.Name
			if len(rules) == 0 {
				lines = append(lines, fmt.Sprintf("%s: %s: the role %s of Kubernetes", who, namespace, role))
			}
			for _, rule := range rules {
				for _, group := range rule.APIGroups {
					for _, resource := range rule.Resources {
						lines = append(lines, fmt.Sprintf("%s: %s: %s %s", who, namespace, qualified(resource, group, rule.ResourceNames),
							strings.Join(rule.Verbs, ",")))
					}
				}
				require.Empty(t, rule.NonResourceURLs)
			}
		}
	}
	whole, err := client.RbacV1().ClusterRoleBindings().List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	for _, binding := range whole.Items {
		var rules []rbacv1.PolicyRule
		if role, err := client.RbacV1().ClusterRoles().Get(t.Context(), binding.RoleRef.Name, metav1.GetOptions{}); err == nil {
			rules = role.Rules
		}
		add(binding.RoleRef.Name, "all namespaces", binding.Subjects, rules)
	}
	parts, err := client.RbacV1().RoleBindings(metav1.NamespaceAll).List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	for _, binding := range parts.Items {
		role, err := client.RbacV1().Roles(binding.Namespace).Get(t.Context(), binding.RoleRef.Name, metav1.GetOptions{})
		require.NoError(t, err)
		add(binding.RoleRef.Name, binding.Namespace, binding.Subjects, role.Rules)
	}
	slices.Sort(lines)
	got := strings.Join(slices.Compact(lines), "\n") + "\n"
	const golden = "testdata/rights.txt"
	if *update {
		require.NoError(t, os.MkdirAll("testdata", 0o755))
		require.NoError(t, os.WriteFile(golden, []byte(got), 0o644))
	}
	want, err := os.ReadFile(golden)
	require.NoError(t, err)
	require.Equal(t, string(want), got, "read the difference, then run the test with -update")
}

func qualified(resource, group string, names []string) string {
	if group != "" {
		resource += "." + group
	}
	if len(names) > 0 {
		resource += " (" + strings.Join(names, ", ") + ")"
	}
	return resource
}
