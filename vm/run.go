package vm

import (
	"archive/tar"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/crypto/ssh"
)

// ExitError says that a command in the machine ended with a code other than 0.
type ExitError struct{ Code int }

func (e *ExitError) Error() string { return "exit code " + strconv.Itoa(e.Code) }

// IO is what a command reads and writes. Nil means nothing.
type IO struct {
	Stdin          io.Reader
	Stdout, Stderr io.Writer
	// Interrupt, if not nil, is closed to send SIGINT to all processes of the command, as Ctrl-C in a terminal does.
	Interrupt <-chan struct{}
}

// Run runs a shell script as root, over a connection of its own. The error is an *ExitError if the script ran and failed.
// When ctx ends, the connection does too: the script goes on in the machine until it writes or reads.
func (m *Machine) Run(ctx context.Context, script string, streams IO) error {
	err := m.run(ctx, script, streams)
	var exit *ssh.ExitError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &exit):
		return &ExitError{Code: exit.ExitStatus()}
	case ctx.Err() != nil:
		err = context.Cause(ctx)
	}
	return fmt.Errorf("run in virtual machine %s: %w", m.options.Name, err)
}

func (m *Machine) run(ctx context.Context, script string, streams IO) error {
	var dialer net.Dialer
	address := net.JoinHostPort("127.0.0.1", strconv.Itoa(m.sshPort))
	conn, err := dialer.DialContext(ctx, "tcp", address)
	if err != nil {
		return err
	}
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	config := &ssh.ClientConfig{
		User: "root", Auth: []ssh.AuthMethod{ssh.PublicKeys(m.image.signer)},
		HostKeyCallback: ssh.InsecureIgnoreHostKey(), // it is our own machine, behind a port of loopback
	}
	c, channels, requests, err := ssh.NewClientConn(conn, address, config)
	if err != nil {
		return errors.Join(err, conn.Close())
	}
	client := ssh.NewClient(c, channels, requests)
	defer client.Close()
	session, err := client.NewSession()
	if err != nil {
		return err
	}
	session.Stdin, session.Stdout, session.Stderr = streams.Stdin, streams.Stdout, streams.Stderr
	group := ""
	if streams.Interrupt != nil {
		group = "/run/vm-command-" + rand.Text()
		script = "echo $$ > " + group + "\n" + script
	}
	if err := session.Start(script); err != nil {
		return err
	}
	ended := make(chan error, 1)
	go func() { ended <- session.Wait() }()
	select {
	case err := <-ended:
		return err
	case <-streams.Interrupt:
		return errors.Join(m.interrupt(ctx, group), <-ended)
	}
}

// interrupt sends SIGINT to the group of processes whose number is in the file, as soon as it is. The SSH server sends no signals to sessions
// of root. A group that has ended is no error.
func (m *Machine) interrupt(ctx context.Context, file string) error {
	file = quote(file)
	return m.mustRun(ctx, "until [ -s "+file+" ]; do sleep 0.1; done; kill -INT -- -$(cat "+file+") 2>/dev/null || true")
}

// Output runs a script and returns what it wrote to standard output, without white space around it.
func (m *Machine) Output(ctx context.Context, script string) (string, error) {
	var out strings.Builder
	var errs tail
	if err := m.Run(ctx, script, IO{Stdout: &out, Stderr: &errs}); err != nil {
		return "", fmt.Errorf("%s: %w: %s", script, err, errs.String())
	}
	return strings.TrimSpace(out.String()), nil
}

func (m *Machine) mustRun(ctx context.Context, script string) error {
	_, err := m.Output(ctx, script)
	return err
}

// CopyTo copies a file or a directory of the host into the directory of the machine, which is made if it is missing.
func (m *Machine) CopyTo(ctx context.Context, source, dir string) error {
	reader, writer := io.Pipe()
	go func() { writer.CloseWithError(writeTar(writer, source)) }()
	defer reader.Close()
	var errs tail
	script := fmt.Sprintf("mkdir -p %[1]s && tar -C %[1]s -xf -", quote(dir))
	if err := m.Run(ctx, script, IO{Stdin: reader, Stderr: &errs}); err != nil {
		return fmt.Errorf("copy %s to %s: %w: %s", source, dir, err, errs.String())
	}
	return nil
}

// CopyFrom copies a file or a directory of the machine into a directory of the host.
func (m *Machine) CopyFrom(ctx context.Context, source, dir string) error {
	reader, writer := io.Pipe()
	var errs tail
	go func() {
		script := fmt.Sprintf("tar -C %s -cf - %s", quote(filepath.Dir(source)), quote(filepath.Base(source)))
		writer.CloseWithError(m.Run(ctx, script, IO{Stdout: writer, Stderr: &errs}))
	}()
	defer reader.Close()
	if err := readTar(reader, dir); err != nil {
		return fmt.Errorf("copy %s from virtual machine %s: %w: %s", source, m.options.Name, err, errs.String())
	}
	return nil
}

// quote makes one word of a shell of any text.
func quote(text string) string { return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'" }

// writeTar writes a file or directory under its base name.
func writeTar(to io.Writer, source string) error {
	archive := tar.NewWriter(to)
	base := filepath.Dir(filepath.Clean(source))
	err := filepath.WalkDir(source, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := entry.Info()
		if err != nil {
			return err
		}
		link := ""
		if info.Mode()&fs.ModeSymlink != 0 {
			if link, err = os.Readlink(path); err != nil {
				return err
			}
		}
		header, err := tar.FileInfoHeader(info, link)
		if err != nil {
			return err
		}
		if header.Name, err = filepath.Rel(base, path); err != nil {
			return err
		}
		if err := archive.WriteHeader(header); err != nil || !info.Mode().IsRegular() {
			return err
		}
		file, err := os.Open(path)
		if err != nil {
			return err
		}
		_, err = io.Copy(archive, file)
		return errors.Join(err, file.Close())
	})
	return errors.Join(err, archive.Close())
}

// readTar writes the archive's files and directories below dir, and nothing outside of it.
func readTar(from io.Reader, dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	archive := tar.NewReader(from)
	for {
		header, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		switch name := filepath.Clean(header.Name); header.Typeflag {
		case tar.TypeDir:
			err = root.MkdirAll(name, 0o755)
		case tar.TypeReg:
			err = writeFile(root, name, archive, header.FileInfo().Mode().Perm())
		}
		if err != nil {
			return err
		}
	}
}

func writeFile(root *os.Root, name string, from io.Reader, mode fs.FileMode) error {
	file, err := root.OpenFile(name, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, mode)
	if err != nil {
		return err
	}
	_, err = io.Copy(file, from)
	return errors.Join(err, file.Close())
}
