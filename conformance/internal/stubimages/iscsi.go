package stubimages

import (
	"archive/tar"
	"compress/gzip"
	_ "embed"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/berth-dev/berth/conformance/internal/oci"
)

// targetcli does what upstream's script of the iSCSI target calls targetcli for.
//
//go:embed targetcli.sh
var targetcli []byte

// blockArchive is upstream's disk image, which its image has unpacked.
const blockArchive = "volume/iscsi/block.tar.gz"

// addISCSI adds what upstream's script of the iSCSI target needs: a program, and the disk that it copies.
func addISCSI(s Sources, tree *oci.Tree) error {
	tree.File("/usr/bin/targetcli", 0o755, targetcli)
	tree.Symlink("/usr/bin/env", "/bin/env") // the script's first line names it
	file, err := os.Open(filepath.Join(s.Upstream, blockArchive))
	if err != nil {
		return err
	}
	defer file.Close()
	unzipped, err := gzip.NewReader(file)
	if err != nil {
		return fmt.Errorf("read %s: %w", blockArchive, err)
	}
	archive := tar.NewReader(unzipped)
	header, err := archive.Next()
	if err != nil {
		return fmt.Errorf("read %s: %w", blockArchive, err)
	}
	block, err := io.ReadAll(archive)
	if err != nil {
		return fmt.Errorf("read %s: %w", blockArchive, err)
	}
	tree.File("/"+filepath.Base(header.Name), 0o644, block)
	return nil
}
