package harness

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"runtime"
	"runtime/pprof"
	"strconv"
)

// Child takes the one sample that the arguments after ChildFlag name and writes it to the file that the last one names.
func Child(ctx context.Context, benchmarks []Benchmark, args []string) error {
	if len(args) != 5 {
		return fmt.Errorf("take sample: %d arguments instead of 5", len(args))
	}
	c, variant, err := find(benchmarks, args[0], args[1], args[2])
	if err != nil {
		return err
	}
	round, err := strconv.Atoi(args[3])
	if err != nil {
		return fmt.Errorf("take sample: round: %w", err)
	}
	sample := &Sample{Round: round,
		Paths: Paths{Bin: os.Getenv("BERTH_BENCH_BIN"), Dir: os.Getenv("BERTH_BENCH_DIR")}}
	stop, err := profile(os.Getenv("BERTH_BENCH_PROFILE"))
	if err != nil {
		return err
	}
	if err := variant.Run(ctx, sample); err != nil {
		return err
	}
	if err := stop(); err != nil {
		return err
	}
	if err := sample.check(c.Metrics); err != nil {
		return err
	}
	text, err := json.Marshal(SampleData{Variant: variant.Name, Round: round,
		Values: sample.values, Series: sample.series})
	if err != nil {
		return fmt.Errorf("take sample: %w", err)
	}
	return os.WriteFile(args[4], text, 0o600)
}

func find(benchmarks []Benchmark, name, caseName, variant string) (*Case, *Variant, error) {
	for _, b := range benchmarks {
		if b.Name != name {
			continue
		}
		for i := range b.Cases {
			c := &b.Cases[i]
			if c.Name != caseName {
				continue
			}
			for j := range c.Variants {
				if c.Variants[j].Name == variant {
					return c, &c.Variants[j], nil
				}
			}
		}
	}
	return nil, nil, fmt.Errorf("take sample: no variant %q of case %q of benchmark %q", variant, caseName, name)
}

// profile starts a CPU profile at path.cpu; the function it returns stops it and writes path.heap.
func profile(path string) (func() error, error) {
	if path == "" {
		return func() error { return nil }, nil
	}
	cpu, err := os.Create(path + ".cpu")
	if err != nil {
		return nil, fmt.Errorf("profile: %w", err)
	}
	if err := pprof.StartCPUProfile(cpu); err != nil {
		return nil, fmt.Errorf("profile: %w", err)
	}
	return func() error {
		pprof.StopCPUProfile()
		if err := cpu.Close(); err != nil {
			return fmt.Errorf("profile: %w", err)
		}
		heap, err := os.Create(path + ".heap")
		if err != nil {
			return fmt.Errorf("profile: %w", err)
		}
		defer heap.Close() //nolint:errcheck // the write below reports its error
		runtime.GC()
		return pprof.WriteHeapProfile(heap)
	}, nil
}
