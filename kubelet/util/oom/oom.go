// Package oom sets oom_score_adj, by which the kernel chooses the process to kill when memory runs out.
package oom

import (
	"errors"
	"fmt"
	"os"
	"strconv"
)

// The range of a score: the process with the highest one goes first, and at MinScore never.
const (
	MinScore = -1000
	MaxScore = 1000
)

// OOMAdjuster sets out-of-memory scores. Its fields may be replaced in tests.
type OOMAdjuster struct {
	// ApplyOOMScoreAdj sets the score of one process; 0 is this one.
	ApplyOOMScoreAdj func(pid, oomScoreAdj int) error
}

// NewOOMAdjuster returns an OOMAdjuster that writes the kernel's files.
func NewOOMAdjuster() *OOMAdjuster { return &OOMAdjuster{ApplyOOMScoreAdj: apply} }

func apply(pid, score int) error {
	if pid < 0 {
		return fmt.Errorf("set oom score: pid %d is negative", pid)
	}
	if score < MinScore || score > MaxScore {
		return fmt.Errorf("set oom score of process %d: %d is not between %d and %d", pid, score, MinScore, MaxScore)
	}
	who := "self"
	if pid != 0 {
		who = strconv.Itoa(pid)
	}
	err := os.WriteFile("/proc/"+who+"/oom_score_adj", []byte(strconv.Itoa(score)), 0)
	if errors.Is(err, os.ErrPermission) {
		return fmt.Errorf("set oom score of process %s to %d (a lower one needs CAP_SYS_RESOURCE): %w", who, score, err)
	}
	if err != nil {
		return fmt.Errorf("set oom score of process %s to %d: %w", who, score, err)
	}
	return nil
}
