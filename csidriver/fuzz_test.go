package csidriver

import (
	"encoding/binary"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/berth-dev/berth/csidriver/iolimit"
)

// FuzzSuperblock reads an arbitrary beginning of a disk, which a container with the disk as a device may write: a copy of the superblock that
// e2fsck gets lies on the disk, and is one of ext4.
func FuzzSuperblock(f *testing.F) {
	super := make([]byte, extSuperSize)
	le := binary.LittleEndian
	le.PutUint16(super[extMagicField:], extMagic)
	le.PutUint32(super[extBlocksPerGroup:], 1)
	le.PutUint32(super[extROCompat:], extMetadataChecksums)
	le.PutUint32(super[extFirstDataBlock:], 1)
	f.Add(super, []byte{}, uint16(4))
	second := slices.Clone(super)
	le.PutUint16(second[extGroupNumber:], 1)
	le.PutUint32(second[extROCompat:], 0)
	f.Add(super, second, uint16(4))
	le.PutUint32(super[extLogBlockSize:], 6)
	le.PutUint32(super[extBlocksPerGroup:], math.MaxUint32)
	le.PutUint32(super[0x60:], 0x80)
	f.Add(super, super, uint16(300))
	f.Fuzz(func(t *testing.T, primary, second []byte, blocks uint16) {
		size := extSuper + extSuperSize + int64(blocks)<<10
		path := filepath.Join(t.TempDir(), imageName)
		image, err := os.Create(path)
		require.NoError(t, err)
		defer image.Close()
		require.NoError(t, image.Truncate(size))
		for i, content := range [][]byte{primary, second} {
			_, err = image.WriteAt(content[:min(len(content), extSuperSize)], extSuper+int64(i)*extSuperSize)
			require.NoError(t, err)
		}
		require.NoError(t, image.Truncate(size))
		arguments, err := backupSuperblock(image)
		require.NoError(t, err)
		if shape, err := readExt4(&loop{path: path}); err == nil {
			shape.canGrow(size)
			require.False(t, shape.canGrow(0))
			require.NotZero(t, shape.perGroup)
		}
		if len(arguments) == 0 {
			return
		}
		block, err := strconv.ParseInt(arguments[1], 10, 64)
		require.NoError(t, err)
		blockSize, err := strconv.ParseInt(arguments[3], 10, 64)
		require.NoError(t, err)
		require.LessOrEqual(t, (block+1)*blockSize, size)
		found, err := readSuperblock(image, block*blockSize)
		require.NoError(t, err)
		require.True(t, isSuperblock(found))
		require.False(t, isTorn(found))
	})
}

// FuzzMetadata reads arbitrary records of a volume: each is of this volume and has values that can be, or is made anew.
func FuzzMetadata(f *testing.F) {
	f.Add([]byte(`{"name":"v","created":"2026-01-01T00:00:00Z","overcommit":2.5,"limits":{"iops":100,"throughput":1024}}`))
	f.Add([]byte(`{"name":"v","source":"../../..","overcommit":-3,"group":"../x","limits":{"iops":-1}}`))
	f.Add([]byte(`{"rebuilt":true,"name":"other","source":"snap-"}`))
	f.Add([]byte(`null`))
	f.Fuzz(func(t *testing.T, content []byte) {
		s := &store{root: t.TempDir(), logger: slog.New(slog.DiscardHandler)}
		id := volumeID("v")
		require.NoError(t, os.MkdirAll(s.dir(id), 0o700))
		require.NoError(t, os.WriteFile(s.image(id), nil, 0o600))
		require.NoError(t, os.WriteFile(filepath.Join(s.dir(id), metadataName), content, 0o600))
		m, err := s.metadata(id)
		require.NoError(t, err)
		require.True(t, m.Rebuilt || m.Name == "v")
		require.True(t, m.Source == "" || idPattern.MatchString(m.Source), m.Source)
		require.True(t, m.Group == "" || groupPattern.MatchString(m.Group), m.Group)
		require.True(t, m.Overcommit == 0 || m.Overcommit >= 1 || m.Overcommit == unlimited, m.Overcommit)
		require.GreaterOrEqual(t, min(m.Limits.IOPS, m.Limits.Throughput), int64(0))
		require.NoError(t, writeMetadata(s.dir(id), m))
		again, err := s.metadata(id)
		require.NoError(t, err)
		require.Equal(t, m, again)
	})
}

// FuzzParameters reads arbitrary parameters of StorageClasses and VolumeAttributesClasses: what is accepted counts a volume as no more than
// it has, and limits its I/O as the kernel can.
func FuzzParameters(f *testing.F) {
	f.Add("2.5", "true", "100", "50Mi", int64(1<<30))
	f.Add("unlimited", "false", "max", "max", int64(math.MaxInt64))
	f.Add("1e308", "", "9223372036854775807", "1e30", int64(1))
	f.Add("0x1p10", "", "+1", "1m", int64(7))
	f.Add("1e-999999999", "", "", "1e999999999", int64(0))
	f.Fuzz(func(t *testing.T, overcommit, preallocate, iops, throughput string, size int64) {
		parameters := map[string]string{ParameterOvercommit: overcommit}
		if preallocate != "" {
			parameters[ParameterPreallocate] = preallocate
		}
		if terms, err := (&Driver{}).parseParameters(parameters); err == nil && size >= 0 {
			counted := terms.counted(size)
			require.True(t, counted >= 0 && counted <= size, "%d of %d bytes count with %s", counted, size, overcommit)
			largest := terms.largest(counted)
			require.True(t, largest >= 0 && largest <= maxImage, "%d bytes", largest)
		}
		limits, err := iolimit.Parse(map[string]string{iolimit.ParameterIOPS: iops, iolimit.ParameterThroughput: throughput})
		if err == nil {
			require.GreaterOrEqual(t, min(limits.IOPS, limits.Throughput), int64(0))
			require.Equal(t, iops == iolimit.Unlimited, limits.IOPS == 0)
			require.Equal(t, throughput == iolimit.Unlimited, limits.Throughput == 0)
			require.NotEmpty(t, limits.String())
		}
	})
}
