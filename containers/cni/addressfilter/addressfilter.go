//go:build cni

package addressfilter // containers/cni.sh adds the sources of the package up/addressfilter

import _ "github.com/google/nftables" // pins its version
