package replicaset_test

import (
	"testing"

	"github.com/berth-dev/berth/internal/testleak"
)

func TestMain(m *testing.M) { testleak.Verify(m) }
