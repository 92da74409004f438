package attacher

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
)

// pages is a driver whose pages have the same content, and tokens that go round.
type pages struct {
	content []byte
	tokens  []string
	calls   int
}

func (p *pages) ListVolumes(context.Context, *csi.ListVolumesRequest, ...grpc.CallOption) (*csi.ListVolumesResponse, error) {
	if p.calls > 200 { // a list without an end fails, and does not hang
		return nil, context.DeadlineExceeded
	}
	out := &csi.ListVolumesResponse{}
	err := proto.Unmarshal(p.content, out)
	out.NextToken = p.tokens[p.calls%len(p.tokens)]
	p.calls++
	return out, err
}

// FuzzPublished has a driver list its volumes with arbitrary bytes and tokens of pages: the list ends, and has the nodes that the driver names.
func FuzzPublished(f *testing.F) {
	data, err := proto.Marshal(&csi.ListVolumesResponse{Entries: []*csi.ListVolumesResponse_Entry{
		{Volume: &csi.Volume{VolumeId: "v"}, Status: &csi.ListVolumesResponse_VolumeStatus{PublishedNodeIds: []string{"n", "m"}}}, {},
	}})
	require.NoError(f, err)
	f.Add(data, "1,2,")
	f.Add(data, "1,2")
	f.Add([]byte{0xff}, "1")
	f.Fuzz(func(t *testing.T, content []byte, tokens string) {
		driver := &pages{content: content, tokens: strings.Split(tokens, ",")}
		if len(driver.tokens) > 100 {
			return
		}
		published, err := (&Attacher{config: Config{Timeout: time.Minute}}).listPublished(t.Context(), driver)
		require.LessOrEqual(t, driver.calls, len(driver.tokens)+1)
		if err != nil {
			require.ErrorContains(t, err, "list the driver's published volumes")
			return
		}
		for volume := range published {
			require.True(t, volume == "" || strings.Contains(string(content), volume))
		}
	})
}
