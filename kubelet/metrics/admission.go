package metrics

import (
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/kubelet/podworker"
	"github.com/berth-dev/berth/kubelet/status"
)

// InstrumentAdmitter returns an Admitter whose rejections are counted by reason.
func InstrumentAdmitter(registry prometheus.Registerer, admitter podworker.Admitter) podworker.Admitter {
	rejections := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "kubelet_admission_rejections_total", Help: "Cumulative number of pod admission rejections by the kubelet.",
	}, []string{"reason"})
	registry.MustRegister(rejections)
	return &instrumentedAdmitter{admitter, rejections}
}

type instrumentedAdmitter struct {
	podworker.Admitter
	rejections *prometheus.CounterVec
}

// Admit implements podworker.Admitter.
func (a *instrumentedAdmitter) Admit(pod *corev1.Pod, others []*corev1.Pod) *status.Failure {
	return a.count(a.Admitter.Admit(pod, others))
}

// Readmit implements podworker.Admitter.
func (a *instrumentedAdmitter) Readmit(pod *corev1.Pod) *status.Failure {
	return a.count(a.Admitter.Readmit(pod))
}

func (a *instrumentedAdmitter) count(failure *status.Failure) *status.Failure {
	if failure != nil {
		a.rejections.WithLabelValues(failure.Reason).Inc()
	}
	return failure
}
