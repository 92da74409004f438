package page

import (
	"context"
	"strings"
	"time"

	"github.com/berth-dev/berth/page/waterfall"
	"github.com/berth-dev/berth/timeline"
)

// startHolders are whose colours the components of the cluster have.
var startHolders = map[string]string{
	"etcd": "API server", "kube-apiserver": "API server", "rbac": "API server", "kube-controller-manager": "controller",
	"kube-scheduler": "scheduler",
	"containerd":     "container runtime", "kube-proxy": "network", "dns": "network",
}

// startPicture draws the last start of the cluster; it is empty without a record of it.
func (h *hub) startPicture(ctx context.Context, now time.Time) (picture, error) {
	if h.records == nil {
		return picture{}, nil
	}
	records, err := h.records.Latest(ctx, timeline.KindCluster, 1)
	if err != nil || len(records) == 0 || len(records[0].Stages) == 0 {
		return picture{}, err
	}
	chart := waterfall.Chart{Title: "The start of the cluster"}
	begin := records[0].Stages[0].Start
	for _, stage := range records[0].Stages {
		end := stage.End
		if !stage.Done() {
			end = now
		}
		holder := startHolders[stage.Subject]
		if strings.HasPrefix(stage.Subject, "node ") {
			holder = "kubelet"
		}
		if holder == "" {
			holder = "other"
		}
		chart.Rows = append(chart.Rows, waterfall.Row{
			Label: stage.Subject, Holder: holder, At: millis(stage.Start.Sub(begin)), Took: millis(end.Sub(stage.Start)), Open: !stage.Done(),
			Failed: stage.Error != "", Note: stage.Error,
		})
	}
	return newPicture(chart, "start")
}

func millis(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
