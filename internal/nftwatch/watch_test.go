package nftwatch

import (
	"encoding/binary"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestMessagesOfTheKernelAreParsed has messages as the kernel sends them, alone and as the second one of several.
func TestMessagesOfTheKernelAreParsed(t *testing.T) {
	message := func(kind int, family byte, attributes map[int]string) []byte {
		body := []byte{family, 0, 0, 0}
		for _, id := range []int{1, 2, 3} {
			value, ok := attributes[id]
			if !ok {
				continue
			}
			one := binary.NativeEndian.AppendUint16(nil, uint16(4+len(value)+1))
			one = append(binary.NativeEndian.AppendUint16(one, uint16(id)), value+"\x00"...)
			body = append(body, append(one, make([]byte, align(len(one))-len(one))...)...)
		}
		header := binary.NativeEndian.AppendUint32(nil, uint32(16+len(body)))
		header = binary.NativeEndian.AppendUint16(header, uint16(unix.NFNL_SUBSYS_NFTABLES<<8|kind))
		return append(append(header, make([]byte, 10)...), body...)
	}
	const chainDeleted, ruleDeleted, ruleAdded, tableDeleted = unix.NFT_MSG_DELCHAIN, unix.NFT_MSG_DELRULE, unix.NFT_MSG_NEWRULE, unix.NFT_MSG_DELTABLE
	for name, test := range map[string]struct {
		message []byte
		want    Change
	}{
		"a chain":          {message(chainDeleted, unix.NFPROTO_IPV4, map[int]string{1: "mangle", 3: "ONE"}), Change{false, unix.NFPROTO_IPV4, "mangle", "ONE"}},
		"a rule":           {message(ruleDeleted, unix.NFPROTO_IPV6, map[int]string{1: "filter", 2: "INPUT"}), Change{false, unix.NFPROTO_IPV6, "filter", "INPUT"}},
		"an added rule":    {message(ruleAdded, unix.NFPROTO_IPV4, map[int]string{1: "filter", 2: "FORWARD"}), Change{true, unix.NFPROTO_IPV4, "filter", "FORWARD"}},
		"a table":          {message(tableDeleted, unix.NFPROTO_BRIDGE, map[int]string{1: "own"}), Change{false, unix.NFPROTO_BRIDGE, "own", ""}},
		"an unnamed chain": {message(chainDeleted, unix.NFPROTO_IPV4, map[int]string{1: "mangle"}), Change{}},
		"a new chain":      {message(unix.NFT_MSG_NEWCHAIN, unix.NFPROTO_IPV4, map[int]string{1: "mangle", 3: "ONE"}), Change{}},
		"cut off":          {message(chainDeleted, unix.NFPROTO_IPV4, map[int]string{1: "mangle", 3: "ONE"})[:30], Change{}},
		"empty":            {nil, Change{}},
	} {
		check := func(messages []byte, when string) {
			var found Change
			isAny := anyConcerns(messages, func(one Change) bool { found = one; return true })
			require.Equal(t, test.want, found, "%s, %s", name, when)
			require.Equal(t, test.want != Change{}, isAny, "%s, %s", name, when)
			require.False(t, anyConcerns(messages, func(Change) bool { return false }), "%s, %s", name, when)
		}
		check(test.message, "alone")
		check(append(message(unix.NFT_MSG_NEWRULE, unix.NFPROTO_IPV4, map[int]string{1: "nat"}), test.message...), "as the second one")
	}
}
