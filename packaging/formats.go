package packaging

import (
	"archive/tar"
	"compress/gzip"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/goreleaser/nfpm/v2"
	_ "github.com/goreleaser/nfpm/v2/deb" // registers the format
	nfpmfiles "github.com/goreleaser/nfpm/v2/files"
	_ "github.com/goreleaser/nfpm/v2/rpm" // registers the format
)

// rpmArch are rpm's names of processors.
var rpmArch = map[string]string{"amd64": "x86_64", "arm64": "aarch64"}

const (
	summary     = "A whole Kubernetes on one machine that explains why a Pod is not running yet"
	description = summary + "\nBerth takes a Pod and its PersistentVolumeClaim from manifest to a running process with\n" +
		"its disk mounted, with the real etcd, API server, scheduler, containerd and runc."
)

// info describes the package. scripts are written to a temporary directory, because nfpm reads files.
func (c Config) info(all []file, temporary string) (*nfpm.Info, error) {
	info := &nfpm.Info{
		Name: "berth", Arch: c.Arch, Platform: "linux", Section: "admin", Priority: "optional",
		Version: c.Version.Base, Prerelease: c.Version.Before, VersionMetadata: c.Version.After, VersionSchema: "none",
		Maintainer: "The Berth authors <berth@berth.dev>", Vendor: "Berth", Homepage: "https://github.com/berth-dev/berth",
		License: "Apache-2.0", Description: description, MTime: c.Time, DisableGlobbing: true,
	}
	for i, f := range all {
		content := &nfpmfiles.Content{Destination: f.to, FileInfo: &nfpmfiles.ContentFileInfo{
			Owner: "root", Group: "root", Mode: f.mode.Perm(), MTime: c.Time,
		}}
		switch {
		case f.link != "":
			content.Type, content.Source, content.FileInfo.Mode = nfpmfiles.TypeSymlink, f.link, 0o777
		case f.mode.IsDir():
			content.Type = nfpmfiles.TypeDir
		case f.config:
			content.Type = nfpmfiles.TypeConfigNoReplace
		}
		if content.Type == "" || f.config {
			content.Source = f.source
		}
		if f.data != nil {
			content.Source = filepath.Join(temporary, fmt.Sprintf("file-%d", i))
			if err := os.WriteFile(content.Source, f.data, 0o600); err != nil {
				return nil, err
			}
		}
		info.Contents = append(info.Contents, content)
	}
	return info, nil
}

// script copies one of the package's own scripts to the temporary directory, and returns its path.
func script(temporary, name string) (string, error) {
	data, err := own.ReadFile("files/" + name)
	if err != nil {
		return "", err
	}
	path := filepath.Join(temporary, name)
	return path, os.WriteFile(path, data, 0o700)
}

func (c Config) writeDeb(w io.Writer, all []file) error {
	return c.write(w, "deb", all, map[string]string{"postinst": "deb.postinst", "prerm": "deb.prerm", "postrm": "deb.postrm"},
		func(info *nfpm.Info) error {
			libraries, err := needed(all)
			if err != nil {
				return err
			}
			info.Depends, err = libraries.debDepends()
			info.Recommends = []string{"ca-certificates", "conntrack", "dbus", "xfsprogs"}
			info.Suggests = []string{"multipath-tools", "nfs-common", "open-iscsi"}
			info.Deb.Compression = "zstd"
			return err
		})
}

func (c Config) writeRPM(w io.Writer, all []file) error {
	return c.write(w, "rpm", all, map[string]string{"postinst": "rpm.post", "prerm": "rpm.preun", "postrm": "rpm.postun"},
		func(info *nfpm.Info) error {
			info.Depends = []string{"e2fsprogs", "iproute", "iptables", "kmod", "libseccomp", "nftables", "util-linux"}
			info.Recommends = []string{"ca-certificates", "conntrack-tools", "xfsprogs"}
			info.Release = "1"
			info.RPM.Summary, info.RPM.Group, info.RPM.BuildHost, info.RPM.Compression = summary, "System Environment/Daemons", "localhost", "zstd"
			return nil
		})
}

// write writes a package in one of nfpm's formats.
func (c Config) write(w io.Writer, format string, all []file, scripts map[string]string, complete func(*nfpm.Info) error) error {
	temporary, err := os.MkdirTemp("", "berth-packaging-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(temporary)
	info, err := c.info(all, temporary)
	if err != nil {
		return err
	}
	for _, one := range []struct {
		kind string
		to   *string
	}{{"postinst", &info.Scripts.PostInstall}, {"prerm", &info.Scripts.PreRemove}, {"postrm", &info.Scripts.PostRemove}} {
		if *one.to, err = script(temporary, scripts[one.kind]); err != nil {
			return err
		}
	}
	if err := complete(info); err != nil {
		return err
	}
	info = nfpm.WithDefaults(info)
	if err := nfpm.PrepareForPackager(info, format); err != nil {
		return err
	}
	packager, err := nfpm.Get(format)
	if err != nil {
		return err
	}
	return packager.Package(info, w)
}

// writeTar writes an archive to unpack at /: sudo tar -xzf FILE -C /.
func (c Config) writeTar(w io.Writer, all []file) error {
	zipped, err := gzip.NewWriterLevel(w, gzip.DefaultCompression)
	if err != nil {
		return err
	}
	archive := tar.NewWriter(zipped)
	for _, f := range all {
		if err := c.addToTar(archive, f); err != nil {
			return fmt.Errorf("%s: %w", f.to, err)
		}
	}
	if err := archive.Close(); err != nil {
		return err
	}
	return zipped.Close()
}

func (c Config) addToTar(archive *tar.Writer, f file) (err error) {
	header := &tar.Header{
		Typeflag: tar.TypeReg, Name: strings.TrimPrefix(f.to, "/"), Mode: int64(f.mode.Perm()), ModTime: c.Time, Size: int64(len(f.data)),
		Uname: "root", Gname: "root", Format: tar.FormatPAX,
	}
	var content io.Reader = strings.NewReader(string(f.data))
	switch {
	case f.link != "":
		header.Typeflag, header.Linkname, header.Mode = tar.TypeSymlink, f.link, 0o777
	case f.mode&fs.ModeDir != 0:
		header.Typeflag, header.Name = tar.TypeDir, header.Name+"/"
	case f.source != "":
		source, err := os.Open(f.source)
		if err != nil {
			return err
		}
		defer source.Close()
		info, err := source.Stat()
		if err != nil {
			return err
		}
		header.Size, content = info.Size(), source
	}
	if err := archive.WriteHeader(header); err != nil {
		return err
	}
	_, err = io.Copy(archive, content)
	return err
}
