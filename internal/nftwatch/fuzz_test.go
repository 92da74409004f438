package nftwatch

import (
	"encoding/binary"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// FuzzMessages reads arbitrary messages of the kernel: each change has a table, and one message is one change. A message that is well-formed is
// understood, whatever stands behind it.
func FuzzMessages(f *testing.F) {
	f.Add([]byte{}, "filter", "FORWARD", uint8(unix.NFPROTO_IPV4))
	f.Add(message(unix.NFT_MSG_DELTABLE, unix.NFPROTO_INET, map[uint16]string{attributeTable: "t"}), "t", "c", uint8(0))
	f.Add([]byte{16, 0, 0, 0, 0, 10, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}, "a", "b", uint8(255))
	f.Fuzz(func(t *testing.T, messages []byte, table, chain string, family uint8) {
		count := func(messages []byte, each func(Change)) (n int) {
			anyConcerns(messages, func(one Change) bool {
				n++
				each(one)
				return false
			})
			return n
		}
		n := count(messages, func(one Change) {
			require.NotEmpty(t, one.Table)
			require.LessOrEqual(t, len(one.Table)+len(one.Chain), len(messages))
		})
		require.LessOrEqual(t, n, len(messages)/unix.SizeofNlMsghdr)
		if table == "" || chain == "" || len(table)+len(chain) > 1<<12 || strings.Contains(table+chain, "\x00") {
			return
		}
		for kind, want := range map[int]Change{
			unix.NFT_MSG_DELTABLE: {Family: family, Table: table},
			unix.NFT_MSG_DELCHAIN: {Family: family, Table: table, Chain: chain},
			unix.NFT_MSG_NEWRULE:  {Family: family, Table: table, Chain: chain, Added: true},
			unix.NFT_MSG_DELRULE:  {Family: family, Table: table, Chain: chain},
		} {
			attributes := map[uint16]string{attributeTable: table}
			if kind == unix.NFT_MSG_DELCHAIN {
				attributes[attributeChainName] = chain
			} else if kind != unix.NFT_MSG_DELTABLE {
				attributes[attributeRuleChain] = chain
			}
			var found []Change
			count(append(message(kind, family, attributes), messages...), func(one Change) { found = append(found, one) })
			require.Equal(t, want, found[0])
			require.Len(t, found, n+1)
		}
	})
}

// message encodes a message of nf_tables.
func message(kind int, family uint8, attributes map[uint16]string) []byte {
	body := []byte{family, 0, 0, 0}
	for id, value := range attributes {
		attribute := binary.NativeEndian.AppendUint16(nil, uint16(unix.SizeofNlAttr+len(value)+1))
		attribute = append(append(binary.NativeEndian.AppendUint16(attribute, id), value...), 0)
		body = append(body, append(attribute, make([]byte, align(len(attribute))-len(attribute))...)...)
	}
	header := binary.NativeEndian.AppendUint32(nil, uint32(unix.SizeofNlMsghdr+len(body)))
	header = binary.NativeEndian.AppendUint16(header, uint16(unix.NFNL_SUBSYS_NFTABLES<<8|kind))
	return append(append(header, make([]byte, 10)...), body...)
}
