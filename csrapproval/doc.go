// Package csrapproval approves the certificate signing requests of the nodes of `berth up` that Kubernetes itself approves
// for no one: the serving certificate of a kubelet, for the names and addresses of its own Node, and the client certificate
// of a node's kube-proxy. It leaves every other request to the administrator.
package csrapproval
