package envvars

import (
	"cmp"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// apiServerService is the Service of the API server; every container gets its variables.
const apiServerService = "kubernetes"

// FromServices returns the environment variables for Services of a Pod in the namespace: always those of the API
// server, and with links also those of every Service in the namespace. Services without a cluster IP are skipped. The
// result is ordered by Service name.
func FromServices(services []*corev1.Service, namespace string, links bool) []Var {
	chosen := map[string]*corev1.Service{}
	for _, s := range services {
		if s.Spec.ClusterIP == "" || s.Spec.ClusterIP == corev1.ClusterIPNone || len(s.Spec.Ports) == 0 {
			continue
		}
		apiServer := s.Namespace == metav1.NamespaceDefault && s.Name == apiServerService
		if !apiServer && (s.Namespace != namespace || !links) {
			continue
		}
		// A Service of the Pod's namespace with the name of the API server's replaces it.
		if have := chosen[s.Name]; have == nil || !apiServer {
			chosen[s.Name] = s
		}
	}
	sorted := make([]*corev1.Service, 0, len(chosen))
	for _, s := range chosen {
		sorted = append(sorted, s)
	}
	slices.SortFunc(sorted, func(a, b *corev1.Service) int { return cmp.Compare(a.Name, b.Name) })
	var env []Var
	for _, s := range sorted {
		env = append(env, fromService(s)...)
	}
	return env
}

// fromService returns the variables of one Service: the Kubernetes ones and those of Docker's container links.
func fromService(s *corev1.Service) []Var {
	name, ip := variableName(s.Name), s.Spec.ClusterIP
	env := []Var{
		{name + "_SERVICE_HOST", ip},
		{name + "_SERVICE_PORT", strconv.Itoa(int(s.Spec.Ports[0].Port))},
	}
	for _, p := range s.Spec.Ports {
		if p.Name != "" {
			env = append(env, Var{name + "_SERVICE_PORT_" + variableName(p.Name), strconv.Itoa(int(p.Port))})
		}
	}
	for i, p := range s.Spec.Ports {
		protocol := cmp.Or(string(p.Protocol), string(corev1.ProtocolTCP))
		port := strconv.Itoa(int(p.Port))
		url := strings.ToLower(protocol) + "://" + net.JoinHostPort(ip, port)
		if i == 0 {
			env = append(env, Var{name + "_PORT", url})
		}
		prefix := fmt.Sprintf("%s_PORT_%s_%s", name, port, strings.ToUpper(protocol))
		env = append(env,
			Var{prefix, url},
			Var{prefix + "_PROTO", strings.ToLower(protocol)},
			Var{prefix + "_PORT", port},
			Var{prefix + "_ADDR", ip})
	}
	return env
}

func variableName(name string) string {
	return strings.ToUpper(strings.ReplaceAll(name, "-", "_"))
}
