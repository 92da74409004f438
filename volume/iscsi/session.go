package iscsi

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// commandTimeout bounds one call of iscsiadm. By itself it gives up a portal that does not answer, or does not let it in, after a minute.
const commandTimeout = 90 * time.Second

// Exit codes of iscsiadm, from its manual.
const (
	exitSessionNotFound = 2
	exitSessionExists   = 15
	exitNoDaemon        = 20
	exitNothingFound    = 21
)

// chapKeys are the keys of a Secret of the type kubernetes.io/iscsi-chap, which are the settings of a session that they are for.
var chapKeys = []string{
	"node.session.auth.username", "node.session.auth.password", "node.session.auth.username_in", "node.session.auth.password_in",
}

// initiator makes and ends sessions by iscsiadm.
type initiator struct {
	program string
	secret  func(ctx context.Context, namespace, name string) (*corev1.Secret, error)
	records store
}

// commandError is the failure of iscsiadm.
type commandError struct {
	// step is what it was to do. Arguments are not in the error: they may be credentials.
	step   string
	code   int
	output string
	cause  error
}

// Error implements error.
func (e *commandError) Error() string {
	remedy := ""
	if e.code == exitNoDaemon {
		remedy = " (start the service iscsid)"
	}
	return fmt.Sprintf("iscsiadm: %s: %v: %s%s", e.step, e.cause, e.output, remedy)
}

// Unwrap returns the error of the process.
func (e *commandError) Unwrap() error { return e.cause }

// hasCode reports whether err says that iscsiadm ended with one of the codes.
func hasCode(err error, codes ...int) bool {
	var failed *commandError
	return errors.As(err, &failed) && slices.Contains(codes, failed.code)
}

// run runs iscsiadm, and returns what it printed.
func (i initiator) run(ctx context.Context, step string, arguments ...string) (string, error) {
	program, err := exec.LookPath(i.program)
	if err != nil {
		return "", fmt.Errorf("%s is not installed on the node: install the package open-iscsi (Debian) or iscsi-initiator-utils",
			filepath.Base(i.program))
	}
	ctx, cancel := context.WithTimeout(ctx, commandTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, arguments...)
	out, err := cmd.CombinedOutput()
	if err == nil {
		return string(out), nil
	}
	if ctx.Err() != nil {
		err = ctx.Err()
	}
	return string(out), &commandError{step: step, code: cmd.ProcessState.ExitCode(), output: string(bytes.TrimSpace(out)), cause: err}
}

// nodeArguments begin a command about one portal of a target.
func (t *target) nodeArguments(portal netip.AddrPort, more ...string) []string {
	return nodeArguments(t.iqn, t.iface, portal, more...)
}

func nodeArguments(iqn, iface string, portal netip.AddrPort, more ...string) []string {
	return append([]string{"-m", "node", "-T", iqn, "-p", portal.String(), "-I", iface}, more...)
}

// makeInterface copies the interface that the volume names, with the volume's name of the initiator.
func (i initiator) makeInterface(ctx context.Context, t *target) error {
	shown, err := i.run(ctx, "read the interface "+t.ifaceFrom, "-m", "iface", "-I", t.ifaceFrom, "-o", "show")
	if err != nil {
		return err
	}
	if _, err := i.run(ctx, "make the interface "+t.iface, "-m", "iface", "-I", t.iface, "-o", "new"); err != nil && !hasCode(err, exitSessionExists) {
		return err
	}
	settings := append(interfaceSettings(shown), [2]string{"iface.initiatorname", t.initiator})
	for _, setting := range settings {
		_, err := i.run(ctx, "set "+setting[0]+" of the interface "+t.iface, "-m", "iface", "-I", t.iface, "-o", "update", "-n", setting[0], "-v", setting[1])
		if err != nil && !hasCode(err, exitSessionExists) {
			return err
		}
	}
	return nil
}

// interfaceSettings reads the settings of an interface that have a value, but for its own name and that of the initiator.
func interfaceSettings(shown string) [][2]string {
	var settings [][2]string
	for line := range strings.Lines(shown) {
		key, value, ok := strings.Cut(strings.TrimSpace(line), " = ")
		if !ok || !strings.HasPrefix(key, "iface.") || value == "<empty>" || value == "" ||
			key == "iface.iscsi_ifacename" || key == "iface.initiatorname" {
			continue
		}
		settings = append(settings, [2]string{key, value})
	}
	return settings
}

// login makes a session with the target at the portal. The record is saved before what it has to undo.
func (i initiator) login(ctx context.Context, t *target, r *record, portal netip.AddrPort) error {
	_, err := i.run(ctx, "read the record of "+portal.String(), t.nodeArguments(portal, "-o", "show")...)
	absent := hasCode(err, exitNothingFound)
	if err != nil && !absent {
		return err
	}
	r.Sessions = union(r.Sessions, []netip.AddrPort{portal})
	if absent {
		r.NodeRecords = union(r.NodeRecords, []netip.AddrPort{portal})
	}
	if err := i.records.save(r); err != nil {
		return err
	}
	if absent {
		if _, err := i.run(ctx, "make a record of "+portal.String(), t.nodeArguments(portal, "-o", "new")...); err != nil {
			return err
		}
	}
	settings, err := i.sessionSettings(ctx, t)
	if err != nil {
		return err
	}
	for _, setting := range settings {
		if _, err := i.run(ctx, "set "+setting[0], t.nodeArguments(portal, "-o", "update", "-n", setting[0], "-v", setting[1])...); err != nil {
			return err
		}
	}
	if _, err := i.run(ctx, "log in at "+portal.String(), t.nodeArguments(portal, "--login")...); err != nil && !hasCode(err, exitSessionExists) {
		return err
	}
	return nil
}

// sessionSettings are the settings of a session of the kubelet: the machine does not make it as it boots, and has no disks of it but those that
// are scanned for. A login is tried twice, because the kubelet tries it again, and reports why. Credentials become arguments of iscsiadm, which takes them in no other way: users of the machine can see them while it runs.
func (i initiator) sessionSettings(ctx context.Context, t *target) ([][2]string, error) {
	settings := [][2]string{{"node.startup", "manual"}, {"node.session.scan", "manual"}, {"node.session.initial_login_retry_max", "1"}}
	if !t.chap {
		return settings, nil
	}
	secret, err := i.secret(ctx, t.secretNamespace, t.secretName)
	if err != nil {
		return nil, fmt.Errorf("read secret %s/%s with the credentials of the target: %w", t.secretNamespace, t.secretName, err)
	}
	settings = append(settings, [2]string{"node.session.auth.authmethod", "CHAP"})
	for _, key := range chapKeys {
		if value := secret.Data[key]; len(value) > 0 {
			settings = append(settings, [2]string{key, string(value)})
		}
	}
	return settings, nil
}

// logout ends the sessions that the kubelet made, and removes what it gave iscsiadm.
func (i initiator) logout(ctx context.Context, r *record) error {
	var errs []error
	remove := func(step string, arguments ...string) {
		if _, err := i.run(ctx, step, arguments...); err != nil && !hasCode(err, exitSessionNotFound, exitNothingFound) {
			errs = append(errs, err)
		}
	}
	for _, portal := range r.Sessions {
		remove("log out at "+portal.String(), nodeArguments(r.IQN, r.Interface, portal, "--logout")...)
	}
	for _, portal := range r.NodeRecords {
		remove("remove the record of "+portal.String(), nodeArguments(r.IQN, r.Interface, portal, "-o", "delete")...)
	}
	if r.OwnInterface {
		remove("remove the interface "+r.Interface, "-m", "iface", "-I", r.Interface, "-o", "delete")
	}
	return errors.Join(errs...)
}
