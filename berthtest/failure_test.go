package berthtest

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestEventsOfAFailedTestAreItsLatestInOrder(t *testing.T) {
	begin := time.Date(2026, time.March, 4, 5, 0, 0, 0, time.UTC)
	var items []corev1.Event
	for i := range maxEvents + 2 {
		event := corev1.Event{Reason: fmt.Sprint("r", i), Type: "Normal", InvolvedObject: corev1.ObjectReference{Kind: "Pod", Name: "a"}}
		switch at := begin.Add(time.Duration(i) * time.Second); i % 3 {
		case 0:
			event.LastTimestamp = metav1.NewTime(at)
		case 1:
			event.EventTime = metav1.NewMicroTime(at)
		default:
			event.CreationTimestamp = metav1.NewTime(at)
		}
		items = append([]corev1.Event{event}, items...)
	}
	lines := strings.Split(strings.TrimSuffix(eventLines(items), "\n"), "\n")
	require.Len(t, lines, maxEvents)
	require.Equal(t, "05:00:02 Normal pod/a r2: ", lines[0])
	require.Equal(t, "05:00:51 Normal pod/a r51: ", lines[maxEvents-1])
}
