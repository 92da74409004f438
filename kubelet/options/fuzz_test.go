package options

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	kubeletconfig "k8s.io/kubelet/config/v1beta1"

	"github.com/berth-dev/berth/kubelet/settings"
)

// FuzzConfiguration reads an arbitrary configuration file with an arbitrary drop-in file: an error names the file, and what is accepted is the
// same when it is written and read again.
func FuzzConfiguration(f *testing.F) {
	f.Add("evictionHard: {memory.available: 5%}\nreservedSystemCPUs: 0-1\n", "evictionHard: null\nmaxPods: 3\n")
	f.Add("reservedMemory: [{numaNode: 0, limits: {memory: 1e-99999999}}]\nmemoryManagerPolicy: Static\n", "reservedSystemCPUs: 0-4294967295\n")
	f.Add("kubeReserved: {cpu: 1e-99999999}\ncontainerLogMaxSize: 1e99999999\n", "evictionHard: {memory.available: 1e99999999}\n")
	f.Add("shutdownGracePeriod: 20s\nshutdownGracePeriodCriticalPods: 10s\nstaticPodPath: pods\nclusterDNS: [192.0.2.1]\n",
		"authentication: {x509: {clientCAFile: ca.pem}, webhook: null}\nfeatureGates: {A: true}\nlogging: {format: json}\n")
	f.Add("apiVersion: x", "- a\n---\nb: c\n")
	f.Add("shutdownGracePeriodByPodPriority: [{priority: 1, shutdownGracePeriodSeconds: 10000000000}]\n", "containerLogMaxWorkers: 2\n")
	f.Fuzz(func(t *testing.T, main, dropIn string) {
		if len(main)+len(dropIn) > 1<<13 {
			return
		}
		began := time.Now()
		dir := files(t, map[string]string{"main": header + main, "d/10.conf": header + dropIn})
		path := filepath.Join(dir, "main")
		if _, _, err := ReadFile(path); err != nil {
			require.ErrorContains(t, err, path)
			return
		}
		o, err := parse("--config="+path, "--config-dir="+filepath.Join(dir, "d"))
		if err != nil {
			require.ErrorContains(t, err, filepath.Join(dir, "d"))
			return
		}
		converted, err := settings.Convert(o.Configuration)
		require.Less(t, time.Since(began), 30*time.Second)
		if err != nil {
			return
		}
		for _, period := range converted.Agent.Shutdown.Periods {
			require.GreaterOrEqual(t, period.Grace, time.Duration(0))
		}
		source := converted.Source.DeepCopy()
		source.APIVersion, source.Kind = kubeletconfig.SchemeGroupVersion.String(), "KubeletConfiguration"
		data, err := encode(source)
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(path, data, 0o600))
		again, _, err := ReadFile(path)
		require.NoError(t, err)
		_, err = settings.Convert(again)
		require.NoError(t, err)
		if source.EvictionHard == nil { // a drop-in file has removed it: this is the default, too
			again.EvictionHard = nil
		}
		again.TypeMeta, source.TypeMeta = converted.Source.TypeMeta, converted.Source.TypeMeta
		require.True(t, equality.Semantic.DeepEqual(source, again), "%s", data)
	})
}

// TestDropInKeepsWhatIsEmpty has a file that switches off what is on by default, and a drop-in file about something else.
func TestDropInKeepsWhatIsEmpty(t *testing.T) {
	dir := files(t, map[string]string{"main": header + "enforceNodeAllocatable: []\nevictionHard: {}\n", "d/10.conf": header + "maxPods: 3\n"})
	o, err := parse("--config="+filepath.Join(dir, "main"), "--config-dir="+filepath.Join(dir, "d"))
	require.NoError(t, err)
	require.EqualValues(t, 3, o.Configuration.MaxPods)
	require.Empty(t, o.Configuration.EnforceNodeAllocatable)
	converted, err := settings.Convert(o.Configuration)
	require.NoError(t, err)
	require.Empty(t, converted.Agent.Eviction.WithDefaults().Hard)
}

// FuzzFlags sets flags whose values are parsed here: what is accepted is written as the flag has it, and is the same when it is read again.
func FuzzFlags(f *testing.F) {
	f.Add("a=b:NoSchedule,c:NoExecute", "0:memory=1Gi,hugepages-2Mi=4Mi;1:memory=1e3", "192.0.2.1", "a=b,c=")
	f.Add("::", "0:memory=1e-99999999", "::1%x", "=")
	f.Add(",a=b=c:d:e", ";-1:hugepages-=1", "010.1.1.1", "kubernetes.io/x=y")
	f.Fuzz(func(t *testing.T, taints, memory, address, labels string) {
		began := time.Now()
		var list, listAgain []corev1.Taint
		value, again := &taintsValue{&list}, &taintsValue{&listAgain}
		if value.Set(taints) == nil {
			require.NoError(t, again.Set(value.String()))
			require.Equal(t, list, listAgain)
		}
		var reserved, reservedAgain []kubeletconfig.MemoryReservation
		of, ofAgain := &reservedMemoryValue{list: &reserved}, &reservedMemoryValue{list: &reservedAgain}
		if of.Set(memory) == nil {
			require.NoError(t, ofAgain.Set(of.String()), of.String())
			require.True(t, equality.Semantic.DeepEqual(reserved, reservedAgain), "%v, %v", reserved, reservedAgain)
		}
		var ip string
		if (ipValue{&ip}).Set(address) == nil {
			require.Equal(t, address, ip)
		}
		o, err := parse("--register-with-taints="+taints, "--reserved-memory="+memory, "--node-ip="+address, "--node-labels="+labels)
		if err == nil {
			_, _ = settings.Convert(o.Configuration)
		}
		require.Less(t, time.Since(began), 30*time.Second)
	})
}
