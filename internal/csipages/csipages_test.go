package csipages_test

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/berth-dev/berth/internal/csipages"
)

func TestEach(t *testing.T) {
	failed := errors.New("failed")
	for name, tt := range map[string]struct {
		next map[string]string // the token that each page returns
		read []string
		want string
	}{
		"one page":          {map[string]string{"": ""}, []string{""}, ""},
		"three pages":       {map[string]string{"": "a", "a": "b", "b": ""}, []string{"", "a", "b"}, ""},
		"names itself":      {map[string]string{"": "a", "a": "a"}, []string{"", "a"}, `the driver returns page "a" again and again`},
		"they go round":     {map[string]string{"": "a", "a": "b", "b": "a"}, []string{"", "a", "b"}, `page "a" again and again`},
		"a page that fails": {map[string]string{"": "a"}, []string{"", "a"}, "failed"},
	} {
		t.Run(name, func(t *testing.T) {
			var read []string
			err := csipages.Each(func(token string) (string, error) {
				read = append(read, token)
				if next, ok := tt.next[token]; ok {
					return next, nil
				}
				return "ignored", failed
			})
			require.Equal(t, tt.read, read)
			if tt.want == "" {
				require.NoError(t, err)
			} else {
				require.ErrorContains(t, err, tt.want)
			}
		})
	}
}
