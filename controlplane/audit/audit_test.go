package audit_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	auditinternal "k8s.io/apiserver/pkg/apis/audit"
	"k8s.io/apiserver/pkg/audit/policy"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	"github.com/berth-dev/berth/controlplane/audit"
	"github.com/berth-dev/berth/controlplane/config"
)

func TestPolicyRecordsWhatPeopleDoAndNoBodies(t *testing.T) {
	loaded, err := policy.LoadPolicyFromBytes([]byte(audit.Policy))
	require.NoError(t, err)
	for _, rule := range loaded.Rules {
		require.Contains(t, []auditinternal.Level{auditinternal.LevelNone, auditinternal.LevelMetadata}, rule.Level,
			"a rule that records bodies would record Secrets, tokens and environment variables")
	}
	evaluator := policy.NewPolicyRuleEvaluator(loaded)
	tests := []struct {
		user     string
		groups   []string
		verb     string
		group    string
		resource string
		sub      string
		path     string
		recorded bool
	}{
		{user: "anna", verb: "get", resource: "secrets", recorded: true},
		{user: "anna", verb: "list", resource: "pods", recorded: true},
		{user: "anna", verb: "create", resource: "pods", sub: "exec", recorded: true},
		{user: "system:anonymous", verb: "get", path: "/metrics", recorded: true},
		{user: "system:anonymous", verb: "get", path: "/livez"},
		{user: "anna", verb: "get", path: "/apis/apps/v1"},
		{user: "system:node:a", groups: []string{"system:nodes"}, verb: "update", group: "coordination.k8s.io", resource: "leases"},
		{user: "system:node:a", groups: []string{"system:nodes"}, verb: "watch", resource: "pods"},
		{user: "system:node:a", groups: []string{"system:nodes"}, verb: "delete", resource: "pods", recorded: true},
		{user: "system:node:a", groups: []string{"system:nodes"}, verb: "get", resource: "secrets", recorded: true},
		{user: "berth:provision", groups: []string{"berth:components"}, verb: "list", resource: "persistentvolumes"},
		{user: "berth:provision", groups: []string{"berth:components"}, verb: "create", resource: "persistentvolumes", recorded: true},
		{user: "system:kube-controller-manager", verb: "create", resource: "events"},
		{user: "anna", verb: "impersonate", resource: "users", recorded: true},
	}
	for _, tt := range tests {
		got := evaluator.EvaluatePolicyRule(&authorizer.AttributesRecord{
			User: &user.DefaultInfo{Name: tt.user, Groups: tt.groups}, Verb: tt.verb, APIGroup: tt.group, Resource: tt.resource,
			Subresource: tt.sub, Path: tt.path, ResourceRequest: tt.path == "",
		})
		require.Equal(t, tt.recorded, got.Level == auditinternal.LevelMetadata, "%+v", tt)
		require.Contains(t, got.OmitStages, auditinternal.StageRequestReceived)
	}
}

func TestSomethingElseInThePlaceOfTheLogIsSetAside(t *testing.T) {
	dir := t.TempDir()
	c := &config.Config{DataDir: filepath.Join(dir, "data"), RunDir: dir}
	require.NoError(t, os.MkdirAll(c.AuditLogFile(), 0o700))
	require.NoError(t, audit.Prepare(c))
	require.NoDirExists(t, c.AuditLogFile())
	require.DirExists(t, c.AuditLogFile()+".damaged")
}
