package rbac

import rbacv1 "k8s.io/api/rbac/v1"

// Users: the common names of the certificates of Berth's components. Each is also
// the name of the component's cluster role, its role in kube-system and the bindings.
const (
	ProvisionUser    = "berth:provision"
	AttachDetachUser = "berth:attachdetach"
	AttacherUser     = "berth:attacher"
	ReplicaSetUser   = "berth:replicaset"
	DNSUser          = "berth:dns"
	// KubeletClientUser is the API server towards kubelets (logs, exec, proxy).
	KubeletClientUser = "kube-apiserver-kubelet-client"
	// KubeletProxyRole is what the API server may request from kubelets beside upstream's role for it.
	KubeletProxyRole = "berth:apiserver-kubelet-proxy"
)

type component struct {
	name  string
	rules []rbacv1.PolicyRule
}

var (
	read  = []string{"get", "list", "watch"}
	write = []string{"get", "list", "watch", "create", "update", "patch", "delete"}
)

func components() []component {
	return []component{
		{ProvisionUser, []rbacv1.PolicyRule{
			rule("", write, "persistentvolumes"),
			rule("", []string{"get", "list", "watch", "update", "patch"}, "persistentvolumeclaims"),
			rule("", []string{"patch"}, "persistentvolumeclaims/status"), // the progress of an expansion
			rule("", read, "nodes", "pods"),
			rule("storage.k8s.io", read, "storageclasses", "csinodes", "csidrivers"),
			rule("storage.k8s.io", []string{"list", "watch"}, "volumeattachments"),
			// What a class or a claim can refer to for its driver.
			rule("", []string{"get"}, "secrets"),
			rule("storage.k8s.io", []string{"get"}, "volumeattributesclasses"),
			rule("snapshot.storage.k8s.io", []string{"get"}, "volumesnapshots", "volumesnapshotcontents"),
			eventRule("", "events"), eventRule("events.k8s.io", "events"),
		}},
		{AttachDetachUser, []rbacv1.PolicyRule{
			rule("", read, "persistentvolumes", "persistentvolumeclaims", "nodes", "pods"),
			rule("", []string{"patch", "update"}, "nodes/status"),
			rule("storage.k8s.io", []string{"get", "list", "watch", "create", "delete"}, "volumeattachments"),
			rule("storage.k8s.io", read, "csidrivers"),
			eventRule("", "events"), eventRule("events.k8s.io", "events"),
		}},
		{AttacherUser, []rbacv1.PolicyRule{
			rule("", read, "persistentvolumes"),
			// The Secrets that volumes name in controllerPublishSecretRef, which may be any: single ones, never a list.
			rule("", []string{"get"}, "secrets"),
			rule("storage.k8s.io", []string{"get", "list", "watch", "patch"}, "volumeattachments"),
			rule("storage.k8s.io", []string{"patch"}, "volumeattachments/status"),
			rule("storage.k8s.io", read, "csinodes"),
		}},
		{ReplicaSetUser, []rbacv1.PolicyRule{
			rule("apps", []string{"get", "list", "watch", "update", "patch"}, "replicasets"),
			rule("apps", []string{"get", "update", "patch"}, "replicasets/status"),
			rule("apps", []string{"update"}, "replicasets/finalizers"),
			rule("", []string{"get", "list", "watch", "create", "delete", "patch"}, "pods"),
			eventRule("", "events"), eventRule("events.k8s.io", "events"),
		}},
		{DNSUser, []rbacv1.PolicyRule{
			rule("", []string{"list", "watch"}, "services", "namespaces"),
			rule("discovery.k8s.io", []string{"list", "watch"}, "endpointslices"),
		}},
	}
}

// systemRules apply in kube-system only: leader election, and what components publish there.
func systemRules(part string) []rbacv1.PolicyRule {
	if part == DNSUser {
		return nil
	}
	rules := []rbacv1.PolicyRule{rule("coordination.k8s.io", write[:6], "leases")}
	if part == ProvisionUser {
		rules = append(rules, rule("storage.k8s.io", write, "csistoragecapacities"))
	}
	return rules
}

func rule(group string, verbs []string, resources ...string) rbacv1.PolicyRule {
	return rbacv1.PolicyRule{APIGroups: []string{group}, Verbs: verbs, Resources: resources}
}

func eventRule(group, resource string) rbacv1.PolicyRule {
	return rule(group, []string{"create", "patch", "update"}, resource)
}
