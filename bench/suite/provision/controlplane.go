package provision

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"k8s.io/client-go/kubernetes"
)

// controlPlaneCPU is the CPU time that the control plane has used so far, by its own metrics: it is one process.
func controlPlaneCPU(ctx context.Context, client kubernetes.Interface) (time.Duration, error) {
	text, err := client.CoreV1().RESTClient().Get().AbsPath("/metrics").Do(ctx).Raw()
	if err != nil {
		return 0, fmt.Errorf("read the API server's metrics: %w", err)
	}
	lines := bufio.NewScanner(bytes.NewReader(text))
	lines.Buffer(nil, len(text)+1)
	for lines.Scan() {
		value, found := strings.CutPrefix(lines.Text(), "process_cpu_seconds_total ")
		if !found {
			continue
		}
		seconds, err := strconv.ParseFloat(value, 64)
		if err != nil {
			return 0, fmt.Errorf("read the CPU time of the control plane: %w", err)
		}
		return time.Duration(seconds * float64(time.Second)), nil
	}
	return 0, errors.Join(errors.New("the API server's metrics lack process_cpu_seconds_total"), lines.Err())
}
