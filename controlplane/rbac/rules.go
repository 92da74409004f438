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
	ApproverUser     = "berth:approver"
	LoadBalancerUser = "berth:load-balancer"
	TimelineUser     = "berth:timeline"
	// ComponentsGroup has all components of Berth. No role is bound to it: the audit log omits what its members read.
	ComponentsGroup = "berth:components"
	// KubeletClientUser is the API server towards kubelets (logs, exec, proxy).
	KubeletClientUser = "kube-apiserver-kubelet-client"
	// KubeletProxyRole is what the API server may request from kubelets beside upstream's role for it.
	KubeletProxyRole = "berth:apiserver-kubelet-proxy"

	// MetricsReaderRole may read the metrics of all processes.
	MetricsReaderRole = "berth:metrics-reader"
	// metricsPath is where package clustermetrics serves them.
	metricsPath = "/metrics/cluster"

	// JoinersGroup has the bootstrap tokens of `berth token create`.
	JoinersGroup = "system:bootstrappers:berth"
	// nodesGroup has all nodes.
	nodesGroup = "system:nodes"
	// ClusterInfoRole allows a node to read how the cluster of `berth up` is set up.
	ClusterInfoRole = "berth:cluster-info"
	// clusterInfoName is the ConfigMap in kube-system; package up/join of the root module reads and writes it.
	clusterInfoName = "berth-cluster"
)

// joinBindings are the cluster roles of upstream's that machines need to join with a token, and nodes to renew their
// certificates, by the name of the binding.
var joinBindings = []struct{ name, role, group string }{
	{"berth:node-bootstrapper", "system:node-bootstrapper", JoinersGroup},
	{"berth:approve-node-client", "system:certificates.k8s.io:certificatesigningrequests:nodeclient", JoinersGroup},
	{"berth:approve-node-renewal", "system:certificates.k8s.io:certificatesigningrequests:selfnodeclient", nodesGroup},
}

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
			rule("", []string{"patch"}, "persistentvolumeclaims/status"), // the progress of an expansion or a modification
			rule("", read, "nodes", "pods"),
			rule("storage.k8s.io", read, "storageclasses", "csinodes", "csidrivers"),
			rule("storage.k8s.io", []string{"list", "watch"}, "volumeattachments"),
			// What a class or a claim can refer to for its driver.
			rule("", []string{"get"}, "secrets"),
			rule("storage.k8s.io", read, "volumeattributesclasses"),
			rule("snapshot.storage.k8s.io", []string{"get", "list", "watch", "create", "patch", "delete"}, "volumesnapshots"),
			rule("snapshot.storage.k8s.io", []string{"get", "list", "watch", "create", "patch", "delete"}, "volumesnapshotcontents"),
			rule("snapshot.storage.k8s.io", []string{"patch"}, "volumesnapshots/status", "volumesnapshotcontents/status"),
			rule("snapshot.storage.k8s.io", read, "volumesnapshotclasses"),
			rule("groupsnapshot.storage.k8s.io", []string{"get", "list", "watch", "patch"}, "volumegroupsnapshots"),
			rule("groupsnapshot.storage.k8s.io", []string{"get", "list", "watch", "create", "patch", "delete"}, "volumegroupsnapshotcontents"),
			rule("groupsnapshot.storage.k8s.io", []string{"patch"}, "volumegroupsnapshots/status", "volumegroupsnapshotcontents/status"),
			rule("groupsnapshot.storage.k8s.io", read, "volumegroupsnapshotclasses"),
			rule("apiextensions.k8s.io", read, "customresourcedefinitions"), // to wait for those of snapshots
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
			rule("", []string{"get", "list", "watch", "patch"}, "persistentvolumes"), // to remove the finalizers of another attacher
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
		{ApproverUser, []rbacv1.PolicyRule{
			rule("certificates.k8s.io", []string{"get", "list", "watch"}, "certificatesigningrequests"),
			rule("certificates.k8s.io", []string{"update"}, "certificatesigningrequests/approval"),
			{APIGroups: []string{"certificates.k8s.io"}, Verbs: []string{"approve"}, Resources: []string{"signers"}, ResourceNames: []string{
				"kubernetes.io/kubelet-serving", "kubernetes.io/kube-apiserver-client",
			}},
			rule("", []string{"list", "watch"}, "nodes"),
		}},
		{TimelineUser, []rbacv1.PolicyRule{
			rule("", []string{"list", "watch"}, "pods", "persistentvolumeclaims"),
		}},
		{LoadBalancerUser, []rbacv1.PolicyRule{
			// The annotation with the node that announces an address is metadata.
			rule("", []string{"get", "list", "watch", "patch"}, "services"),
			rule("", []string{"patch", "update"}, "services/status"),
			rule("", []string{"list", "watch"}, "nodes"),
			rule("discovery.k8s.io", []string{"list", "watch"}, "endpointslices"),
			eventRule("", "events"), eventRule("events.k8s.io", "events"),
		}},
	}
}

// systemRules apply in kube-system only: leader election, and what components publish there.
func systemRules(part string) []rbacv1.PolicyRule {
	if part == DNSUser || part == ApproverUser || part == LoadBalancerUser || part == TimelineUser {
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
