package iscsi_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/berth-dev/berth/internal/loopdev"
	"github.com/berth-dev/berth/volume"
	"github.com/berth-dev/berth/volume/iscsi"
	"github.com/berth-dev/berth/volume/mounts"
	"github.com/berth-dev/berth/volume/testsuite"
)

const iqn = "iqn.2003-01.dev.berth:disks"

// initiator is a machine with testdata/iscsiadm, which has a kubelet's directory.
type initiator struct {
	t         *testing.T
	dir, root string
	devDir    string // empty: that of the machine
}

func newInitiator(t *testing.T) *initiator {
	t.Helper()
	n := &initiator{t: t, dir: t.TempDir(), root: testsuite.Root(t)}
	script, err := os.ReadFile("testdata/iscsiadm")
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(n.dir, "iscsiadm"), script, 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(n.dir, "luns"), nil, 0o600))
	for _, dir := range []string{"records", "sys/class/iscsi_session", "sys/class/scsi_host"} {
		require.NoError(t, os.MkdirAll(filepath.Join(n.dir, dir), 0o755))
	}
	return n
}

// addDisk makes a disk of the target.
func (n *initiator) addDisk(lun int) (device string) {
	n.t.Helper()
	image, err := os.Create(filepath.Join(n.t.TempDir(), "disk"))
	require.NoError(n.t, err)
	defer image.Close()
	require.NoError(n.t, image.Truncate(32<<20))
	loops := loopdev.New()
	loop, err := loops.Attach(image, loopdev.Options{})
	if err != nil {
		n.t.Skipf("this machine has no free loop device: %v", err)
	}
	n.t.Cleanup(func() { require.NoError(n.t, loops.Detach(loop)) })
	luns, err := os.OpenFile(filepath.Join(n.dir, "luns"), os.O_APPEND|os.O_WRONLY, 0)
	require.NoError(n.t, err)
	_, err = fmt.Fprintf(luns, "%d %s\n", lun, filepath.Base(loops.Path(loop.Number)))
	require.NoError(n.t, err)
	require.NoError(n.t, luns.Close())
	return loops.Path(loop.Number)
}

// kubelet returns a plugin, as a new process has it.
func (n *initiator) kubelet() *iscsi.Plugin {
	n.t.Helper()
	plugin, err := iscsi.New(iscsi.Deps{Secret: func(_ context.Context, namespace, name string) (*corev1.Secret, error) {
		if namespace+"/"+name != "ns/chap" {
			return nil, errors.New("not found")
		}
		return &corev1.Secret{Data: map[string][]byte{
			"node.session.auth.username": []byte("user"), "node.session.auth.password": []byte("password1234"), "other": []byte("x"),
		}}, nil
	}}, iscsi.Config{RootDir: n.root, Program: filepath.Join(n.dir, "iscsiadm"), SysDir: filepath.Join(n.dir, "sys"),
		DevDir: n.devDir, Multipath: filepath.Join(n.dir, "multipath")})
	require.NoError(n.t, err)
	return plugin
}

// calls returns what iscsiadm was called for since the last time.
func (n *initiator) calls() []string {
	n.t.Helper()
	file := filepath.Join(n.dir, "calls")
	data, err := os.ReadFile(file)
	if !errors.Is(err, os.ErrNotExist) {
		require.NoError(n.t, err)
		require.NoError(n.t, os.Remove(file))
	}
	var calls []string
	for line := range strings.Lines(string(data)) {
		calls = append(calls, strings.TrimSpace(line))
	}
	return calls
}

// requireNothing fails if something is left of sessions and volumes.
func (n *initiator) requireNothing() {
	n.t.Helper()
	of := n.root + "/plugins/kubernetes.io/iscsi/"
	for _, pattern := range []string{
		n.dir + "/records/*", n.dir + "/sys/class/iscsi_session/*", of + "records/*", of + "iface-*/*", of + "volumeDevices/*/*",
	} {
		left, err := filepath.Glob(pattern)
		require.NoError(n.t, err)
		require.Empty(n.t, left)
	}
}

func pvSpec(lun int32) volume.Spec {
	pv := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("pv-%d", lun)}}
	pv.Spec.ISCSI = &corev1.ISCSIPersistentVolumeSource{TargetPortal: "192.0.2.1", IQN: iqn, Lun: lun}
	return volume.Spec{Name: "data", PV: pv, Volume: &corev1.Volume{Name: "data"}}
}

func stage(t *testing.T, plugin *iscsi.Plugin, spec volume.Spec) (string, error) {
	t.Helper()
	device, err := plugin.Device(t.Context(), spec)
	require.NoError(t, err)
	require.True(t, device.Attach)
	return device.Name, plugin.Stage(t.Context(), volume.StageRequest{DeviceName: device.Name, Spec: spec, PodNamespace: "ns"})
}

// stagingPlugin stages before each SetUp, as the kubelet does.
type stagingPlugin struct{ *iscsi.Plugin }

func (p stagingPlugin) SetUp(ctx context.Context, req volume.Request) (volume.Mount, error) {
	device, err := p.Device(ctx, req.Spec)
	if err == nil {
		err = p.Stage(context.WithoutCancel(ctx), volume.StageRequest{DeviceName: device.Name, Spec: req.Spec})
	}
	if err != nil {
		return volume.Mount{}, err
	}
	return p.Plugin.SetUp(ctx, req)
}

func TestContract(t *testing.T) {
	var machine *initiator
	testsuite.Run(t, testsuite.Subject{
		New: func(t *testing.T) volume.Plugin {
			if machine == nil || machine.t != t {
				machine = newInitiator(t)
				machine.addDisk(0)
				first := machine.kubelet()
				device, err := first.Device(t.Context(), pvSpec(0))
				require.NoError(t, err)
				_, err = stage(t, first, pvSpec(0)) // several Pods of the suite do not stage at once
				require.NoError(t, err)
				t.Cleanup(func() { require.NoError(t, first.Unstage(context.WithoutCancel(t.Context()), device.Name)) })
			}
			return stagingPlugin{machine.kubelet()}
		},
		Spec:     func(*testing.T, string) volume.Spec { return pvSpec(0) },
		Writable: true, Persistent: true,
	})
}

func TestDisksOfATargetShareItsSession(t *testing.T) {
	n := newInitiator(t)
	n.addDisk(0)
	n.addDisk(1)
	first, err := stage(t, n.kubelet(), pvSpec(0))
	require.NoError(t, err)
	require.Equal(t, "kubernetes.io/iscsi/192.0.2.1:"+iqn+":0", first)
	node := "-m node -T " + iqn + " -p 192.0.2.1:3260 -I default "
	require.Equal(t, []string{
		node + "-o show", node + "-o new", node + "-o update -n node.startup -v manual", node + "-o update -n node.session.scan -v manual",
		node + "-o update -n node.session.initial_login_retry_max -v 1", node + "--login",
	}, n.calls())
	second, err := stage(t, n.kubelet(), pvSpec(1))
	require.NoError(t, err)
	require.Empty(t, n.calls(), "there is a session")
	require.NoError(t, n.kubelet().Unstage(t.Context(), first))
	require.Empty(t, n.calls(), "the session is in use")
	staged, err := n.kubelet().Staged()
	require.NoError(t, err)
	require.Equal(t, []volume.Device{{Name: second, Attach: true}}, staged)
	for range 2 {
		require.NoError(t, n.kubelet().Unstage(t.Context(), second))
	}
	require.Equal(t, []string{node + "--logout", node + "-o delete"}, n.calls())
	n.requireNothing()
}

func TestSessionOfOthersStays(t *testing.T) {
	n := newInitiator(t)
	n.addDisk(0)
	for _, step := range []string{"-o new", "--login"} {
		arguments := strings.Fields("-m node -T " + iqn + " -p 192.0.2.1:3260 -I default " + step)
		require.NoError(t, exec.Command(filepath.Join(n.dir, "iscsiadm"), arguments...).Run())
	}
	n.calls()
	device, err := stage(t, n.kubelet(), pvSpec(0))
	require.NoError(t, err)
	require.NoError(t, n.kubelet().Unstage(t.Context(), device))
	require.Empty(t, n.calls())
}

func TestDiskOfAnotherKubelet(t *testing.T) {
	n := newInitiator(t)
	n.addDisk(0)
	dir := filepath.Join(n.root, "plugins/kubernetes.io/iscsi/iface-default/192.0.2.1:3260-"+iqn+"-lun-0")
	before, err := stage(t, n.kubelet(), pvSpec(0))
	require.NoError(t, err)
	// As it was when the kubelet of Kubernetes had mounted it.
	require.NoError(t, os.RemoveAll(filepath.Join(n.root, "plugins/kubernetes.io/iscsi/records")))
	require.NoError(t, mounts.Syscalls{}.Unmount(dir))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "iscsi.json"), []byte("{}"), 0o600))
	loop := strings.Fields(read(t, filepath.Join(n.dir, "luns")))[1]
	require.NoError(t, mounts.Syscalls{}.Mount("/dev/"+loop, dir, "ext4", nil))
	staged, err := n.kubelet().Staged()
	require.NoError(t, err)
	found := "kubernetes.io/iscsi/192.0.2.1:3260:" + iqn + ":0"
	require.Equal(t, []volume.Device{{Name: found, Attach: true}}, staged)

	t.Run("a Pod needs it", func(t *testing.T) {
		device, err := stage(t, n.kubelet(), pvSpec(0))
		require.NoError(t, err)
		require.Equal(t, before, device)
		require.NoError(t, n.kubelet().Unstage(t.Context(), found), "it is recorded under its own name now")
		staged, err := n.kubelet().Staged()
		require.NoError(t, err)
		require.Equal(t, []volume.Device{{Name: device, Attach: true}}, staged)
		require.NoError(t, os.RemoveAll(filepath.Join(n.root, "plugins/kubernetes.io/iscsi/records")))
	})
	require.NoError(t, n.kubelet().Unstage(t.Context(), found))
	n.requireNothing()
}

func read(t *testing.T, file string) string {
	t.Helper()
	data, err := os.ReadFile(file)
	require.NoError(t, err)
	return string(data)
}

func TestInterruptedStageIsUndone(t *testing.T) {
	n := newInitiator(t)
	n.addDisk(0)
	unreachable := filepath.Join(n.dir, "unreachable")
	require.NoError(t, os.WriteFile(unreachable, nil, 0o600))
	device, err := stage(t, n.kubelet(), pvSpec(0))
	require.ErrorContains(t, err, `connect iscsi volume "pv-0", disk 0 of `+iqn)
	require.ErrorContains(t, err, "log in at 192.0.2.1:3260: exit status 8: iscsiadm: Could not login")
	require.True(t, volume.IsUncertain(err))
	require.NoError(t, n.kubelet().Unstage(t.Context(), device))
	n.requireNothing()

	require.NoError(t, os.Remove(unreachable))
	_, err = stage(t, n.kubelet(), pvSpec(7))
	require.ErrorContains(t, err, "no disk with the number 7")
	require.NoError(t, n.kubelet().Unstage(t.Context(), strings.TrimSuffix(device, "0")+"7"))
	n.requireNothing()
}

func TestDiskThatIsUsedIsNotRemoved(t *testing.T) {
	n := newInitiator(t)
	device := n.addDisk(0)
	name, err := stage(t, n.kubelet(), pvSpec(0))
	require.NoError(t, err)
	elsewhere := filepath.Join(n.root, "elsewhere")
	require.NoError(t, os.Mkdir(elsewhere, 0o755))
	require.NoError(t, mounts.Syscalls{}.Mount(device, elsewhere, "ext4", nil))
	n.calls()
	require.ErrorContains(t, n.kubelet().Unstage(t.Context(), name), "is still in use")
	require.Empty(t, n.calls())
	require.NoError(t, mounts.Syscalls{}.Unmount(elsewhere))
	require.NoError(t, n.kubelet().Unstage(t.Context(), name))
	n.requireNothing()
}

func TestDamagedRecordHarmsNoOther(t *testing.T) {
	n := newInitiator(t)
	n.addDisk(0)
	n.addDisk(1)
	damaged, err := stage(t, n.kubelet(), pvSpec(0))
	require.NoError(t, err)
	files, err := filepath.Glob(n.root + "/plugins/kubernetes.io/iscsi/records/*.json")
	require.NoError(t, err)
	require.Len(t, files, 1)
	other, err := stage(t, n.kubelet(), pvSpec(1))
	require.NoError(t, err)
	for _, content := range []string{"", "{", "{}", `{"device":"x","iqn":"../..","interface":"a","portals":["192.0.2.1:1"]}`} {
		require.NoError(t, os.WriteFile(files[0], []byte(content), 0o600))
		staged, err := n.kubelet().Staged()
		require.NoError(t, err)
		require.Len(t, staged, 2, "the disk is found by its mount")
		require.NoFileExists(t, files[0])
	}
	require.NoError(t, n.kubelet().Unstage(t.Context(), other))
	again, err := stage(t, n.kubelet(), pvSpec(0))
	require.NoError(t, err)
	require.Equal(t, damaged, again)
	require.NoError(t, n.kubelet().Unstage(t.Context(), again))
	left, err := filepath.Glob(n.dir + "/sys/class/iscsi_session/*")
	require.NoError(t, err)
	require.Empty(t, left)
}

func TestCredentialsAreGivenToTheSession(t *testing.T) {
	n := newInitiator(t)
	n.addDisk(0)
	spec := volume.Spec{Name: "data", Volume: &corev1.Volume{Name: "data", VolumeSource: corev1.VolumeSource{ISCSI: &corev1.ISCSIVolumeSource{
		TargetPortal: "[2001:db8::1]:3261", IQN: iqn, SessionCHAPAuth: true, SecretRef: &corev1.LocalObjectReference{Name: "chap"},
	}}}}
	device, err := stage(t, n.kubelet(), spec)
	require.NoError(t, err)
	node := "-m node -T " + iqn + " -p [2001:db8::1]:3261 -I default -o update -n node.session.auth."
	require.Subset(t, n.calls(), []string{node + "authmethod -v CHAP", node + "username -v user", node + "password -v SECRET"})
	require.NoError(t, n.kubelet().Unstage(t.Context(), device))
	spec.Volume.ISCSI.SecretRef.Name = "none"
	device, err = stage(t, n.kubelet(), spec)
	require.ErrorContains(t, err, "read secret ns/none")
	require.NoError(t, n.kubelet().Unstage(t.Context(), device))
	n.requireNothing()
}

func TestInterfaceOfAnInitiatorsName(t *testing.T) {
	n := newInitiator(t)
	n.addDisk(0)
	spec := pvSpec(0)
	spec.PV.Spec.ISCSI.InitiatorName = ptr.To("iqn.2003-01.dev.berth:own")
	device, err := stage(t, n.kubelet(), spec)
	require.NoError(t, err)
	iface := "-m iface -I 192.0.2.1:3260:pv-0 "
	require.Subset(t, n.calls(), []string{
		iface + "-o new", iface + "-o update -n iface.net_ifacename -v eth7", iface + "-o update -n iface.transport_name -v tcp",
		iface + "-o update -n iface.initiatorname -v iqn.2003-01.dev.berth:own",
	})
	require.NoError(t, n.kubelet().Unstage(t.Context(), device))
	require.Contains(t, n.calls(), iface+"-o delete")
	n.requireNothing()
}

func TestBlockDevice(t *testing.T) {
	n := newInitiator(t)
	disk := n.addDisk(0)
	spec := pvSpec(0)
	spec.PV.Spec.VolumeMode = ptr.To(corev1.PersistentVolumeBlock)
	device, err := stage(t, n.kubelet(), spec)
	require.NoError(t, err)
	request := volume.Request{Pod: testsuite.Pod("u", spec), Spec: spec, Dir: volume.DeviceDir(n.root, "u", iscsi.Name, "pv-0")}
	require.NoError(t, n.kubelet().Unmap(t.Context(), request.Dir), "a missing volume is fine")
	for range 2 {
		mount, err := n.kubelet().Map(t.Context(), request)
		require.NoError(t, err)
		require.Equal(t, volume.Mount{Path: disk}, mount)
	}
	of, err := n.kubelet().DeviceOf(request.Dir)
	require.NoError(t, err)
	require.Equal(t, device, of)
	require.FileExists(t, filepath.Join(n.root, "plugins/kubernetes.io/iscsi/volumeDevices/iface-default/192.0.2.1:3260-"+iqn+"-lun-0/u"))
	for range 2 {
		require.NoError(t, n.kubelet().Unmap(t.Context(), request.Dir))
		require.NoFileExists(t, request.Dir)
	}
	require.NoError(t, n.kubelet().Unstage(t.Context(), device))
	n.requireNothing()
}

func TestPodsOfOneDisk(t *testing.T) {
	n := newInitiator(t)
	n.addDisk(0)
	spec := pvSpec(0)
	spec.Volume.PersistentVolumeClaim = &corev1.PersistentVolumeClaimVolumeSource{ReadOnly: true}
	device, err := stage(t, n.kubelet(), pvSpec(0)) // with the file system that a disk that is read alone does not get
	require.NoError(t, err)
	require.NoError(t, n.kubelet().Unstage(t.Context(), device))
	device, err = stage(t, n.kubelet(), spec)
	require.NoError(t, err)
	request := volume.Request{Pod: testsuite.Pod("u", spec), Spec: spec, Dir: volume.Dir(n.root, "u", iscsi.Name, "pv-0")}
	mount, err := n.kubelet().SetUp(t.Context(), request)
	require.NoError(t, err)
	require.True(t, mount.ReadOnly)
	require.Error(t, os.WriteFile(filepath.Join(mount.Path, "file"), nil, 0o600))
	of, err := n.kubelet().DeviceOf(request.Dir)
	require.NoError(t, err)
	require.Equal(t, device, of)
	require.NoError(t, n.kubelet().TearDown(t.Context(), request.Dir))
	require.NoError(t, n.kubelet().Unstage(t.Context(), device))
	_, err = n.kubelet().SetUp(t.Context(), request)
	require.Error(t, err, "what is not mounted is no volume")
	n.requireNothing()
}

func TestFieldsThatAreWrong(t *testing.T) {
	plugin, err := iscsi.New(iscsi.Deps{Secret: func(context.Context, string, string) (*corev1.Secret, error) { return nil, nil }},
		iscsi.Config{RootDir: t.TempDir()})
	require.NoError(t, err)
	for field, change := range map[string]func(*corev1.ISCSIPersistentVolumeSource){
		`iqn "disk"`:                   func(s *corev1.ISCSIPersistentVolumeSource) { s.IQN = "disk" },
		`iqn "iqn./../.."`:             func(s *corev1.ISCSIPersistentVolumeSource) { s.IQN = "iqn./../.." },
		"lun 256":                      func(s *corev1.ISCSIPersistentVolumeSource) { s.Lun = 256 },
		`portal "storage.example"`:     func(s *corev1.ISCSIPersistentVolumeSource) { s.TargetPortal = "storage.example" },
		`portal "192.0.2.2:x"`:         func(s *corev1.ISCSIPersistentVolumeSource) { s.Portals = []string{"192.0.2.2:x"} },
		`iscsiInterface "-o"`:          func(s *corev1.ISCSIPersistentVolumeSource) { s.ISCSIInterface = "-o" },
		`initiatorName "me"`:           func(s *corev1.ISCSIPersistentVolumeSource) { s.InitiatorName = ptr.To("me") },
		"chapAuthSession needs a secr": func(s *corev1.ISCSIPersistentVolumeSource) { s.SessionCHAPAuth = true },
	} {
		spec := pvSpec(0)
		change(spec.PV.Spec.ISCSI)
		_, err := plugin.Device(t.Context(), spec)
		require.ErrorContains(t, err, `iscsi volume "pv-0": `+field)
	}
}

func TestMissingProgram(t *testing.T) {
	n := newInitiator(t)
	require.NoError(t, os.Remove(filepath.Join(n.dir, "iscsiadm")))
	device, err := stage(t, n.kubelet(), pvSpec(0))
	require.ErrorContains(t, err, "install the package open-iscsi")
	require.NoError(t, n.kubelet().Unstage(t.Context(), device))
	n.requireNothing()
}

func TestMultipathDevice(t *testing.T) {
	n := newInitiator(t)
	disk := n.addDisk(0)
	n.devDir = filepath.Join(n.dir, "dev")
	holders := filepath.Join(n.dir, "sys/class/block", filepath.Base(disk), "holders")
	for _, dir := range []string{n.devDir, filepath.Join(n.dir, "sys/class/block/dm-0/dm"), filepath.Join(holders, "dm-0")} {
		require.NoError(t, os.MkdirAll(dir, 0o755))
	}
	require.NoError(t, os.WriteFile(filepath.Join(n.dir, "sys/class/block/dm-0/dm/uuid"), []byte("mpath-1\n"), 0o600))
	joined := filepath.Join(n.devDir, "dm-0")
	require.NoError(t, os.Symlink(disk, joined))
	busy := filepath.Join(n.dir, "busy")
	script := fmt.Sprintf("#!/bin/sh\n[ ! -e %s ] || { echo map in use; exit 1; }\n[ \"$*\" = '-f %s' ] && rm -r %s/sys/class/block/dm-0 %s/dm-0\n",
		busy, joined, n.dir, holders)
	require.NoError(t, os.WriteFile(filepath.Join(n.dir, "multipath"), []byte(script), 0o755))
	require.NoError(t, os.Symlink(disk, filepath.Join(n.devDir, filepath.Base(disk))))

	spec := pvSpec(0)
	device, err := stage(t, n.kubelet(), spec)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(busy, nil, 0o600))
	require.ErrorContains(t, n.kubelet().Unstage(t.Context(), device), "remove multipath device dm-0: exit status 1: map in use")
	require.NoError(t, os.Remove(busy))
	require.NoError(t, n.kubelet().Unstage(t.Context(), device))
	require.NoFileExists(t, filepath.Join(holders, "dm-0"))
	n.requireNothing()
}
