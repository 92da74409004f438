package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// execute runs berth with these arguments and returns its standard output.
func execute(t *testing.T, words ...string) (string, error) {
	t.Helper()
	var out bytes.Buffer
	root := newRoot()
	root.SetOut(&out)
	root.SetArgs(words)
	err := root.ExecuteContext(t.Context())
	return out.String(), err
}

func TestWrongUsageSaysWhatIsWanted(t *testing.T) {
	for words, wants := range map[[2]string]string{
		{"upp", ""}:                           `did you mean "up"?`,
		{"help", "exlpain"}:                   `did you mean "explain"?`,
		{"completion", "bahs"}:                `did you mean "bash"?`,
		{"images", "lst"}:                     `did you mean "list"?`,
		{"up", "--dmeo"}:                      "did you mean --demo?",
		{"up", "--api-port=abc"}:              `--api-port "abc": not a whole number: see berth up --help`,
		{"up", "--api-port=1e99999"}:          `--api-port "1e99999": not a whole number`,
		{"up", "-v=99999999999999999999"}:     `--verbosity "99999999999999999999": not a number that fits`,
		{"up", "--demo=maybe"}:                `--demo "maybe": not true or false`,
		{"explain", "--request-timeout=10"}:   `--request-timeout "10": not a time such as 30s`,
		{"images", "--data-dir="}:             "--data-dir is empty",
		{"images", "--output=wide"}:           `--output "wide": json and yaml are known`,
		{"up", "--data-dir="}:                 "--data-dir is empty",
		{"node", "--contention-profiling"}:    "--contention-profiling needs --profiling",
		{"up", "--pod-manifest-path=/absent"}: "create the file or the directory first",
		{"snapshot", "save"}:                  "no name of a saved cluster given: see berth snapshot save --help",
		{"snapshot", "restore"}:               "no name of a saved cluster given",
		{"snapshot", "delete"}:                "no name of a saved cluster given",
	} {
		args := words[:1]
		if words[1] != "" {
			args = words[:]
		}
		_, err := execute(t, args...)
		require.ErrorContains(t, err, wants)
		require.ErrorAs(t, err, new(usageError), "%v", args)
	}
}

func TestOneClusterIsSavedAtATime(t *testing.T) {
	_, err := execute(t, "snapshot", "save", "one", "two")
	require.ErrorContains(t, err, `one saved cluster at a time: unexpected argument "two"`)
	require.ErrorAs(t, err, new(usageError))
}

func TestADataDirectoryThatIsAFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	for _, dir := range []string{file, filepath.Join(file, "below")} {
		for _, words := range [][]string{{"up"}, {"up", "--reset"}, {"explain", "--all"}, {"images"}, {"doctor"}} {
			_, err := execute(t, append([]string{"--data-dir", dir}, words...)...)
			require.ErrorContains(t, err, "--data-dir "+dir+": it is a file, or below a file: name a directory", "%v", words)
		}
	}
}

// TestDataDirIsOnlyWhereItHasAnEffect is about both places of the flag, before and behind the command's word.
func TestDataDirIsOnlyWhereItHasAnEffect(t *testing.T) {
	absent := filepath.Join(t.TempDir(), "absent")
	for _, words := range [][]string{{"explain", "pod/x"}, {"images"}, {"images", "list"}, {"images", "rm", "x"}, {"kubectl", "get", "pods"}} {
		_, err := execute(t, append([]string{"--data-dir", absent}, words...)...)
		require.ErrorContains(t, err, absent, "%v", words)
		if words[0] == "kubectl" {
			continue // what is behind that word is kubectl's
		}
		_, err = execute(t, append(words, "--data-dir", absent)...)
		require.ErrorContains(t, err, absent, "%v", words)
		_, err = execute(t, append([]string{"--data-dir", "/dev/null"}, append(words, "--data-dir", absent)...)...)
		require.ErrorContains(t, err, absent, "the nearer one counts: %v", words)
	}
	for _, word := range []string{"controllers", "csi-driver", "csi-provisioner", "run", "version"} {
		for _, words := range [][]string{{"--data-dir", absent, word}, {word, "--data-dir", absent}} {
			_, err := execute(t, words...)
			require.ErrorContains(t, err, "unknown flag: --data-dir", "%v", words)
			require.ErrorAs(t, err, new(usageError), "%v", words)
		}
		out, err := execute(t, "help", word)
		require.NoError(t, err)
		require.NotContains(t, out, "data-dir", word)
	}
	_, err := execute(t, "node", "--kubeconfig", absent, "--data-dir", absent)
	require.ErrorContains(t, err, "--data-dir, --runtime and --reset need --join")
	require.ErrorAs(t, err, new(usageError))
	for _, word := range []string{"up", "node"} {
		out, err := execute(t, "help", word)
		require.NoError(t, err)
		require.Contains(t, out, "--data-dir string", word)
	}
}

func TestAnIsolatedClusterHasNoOtherMachines(t *testing.T) {
	_, err := execute(t, "up", "--data-dir", filepath.Join(t.TempDir(), "absent"), "--isolated", "--api-address", "192.0.2.10")
	require.ErrorContains(t, err, "--isolated and --api-address 192.0.2.10")
	require.ErrorAs(t, err, new(usageError))
}

func TestEachCommandHasHelp(t *testing.T) {
	for _, cmd := range newRoot().Commands() {
		out, err := execute(t, "help", cmd.Name())
		require.NoError(t, err)
		require.Contains(t, out, "Usage:", cmd.Name())
		if !cmd.Hidden && cmd.Name() != "version" && cmd.Name() != "completion" && cmd.Name() != "help" && cmd.Name() != "kubectl" {
			require.NotEmpty(t, cmd.Example, "%s has no example", cmd.Name())
		}
	}
	out, err := execute(t, "--version")
	require.NoError(t, err)
	require.Contains(t, out, "berth 0.")
}

func TestAPodThatNeedsAClusterIsSentToOne(t *testing.T) {
	for field, spec := range map[string]string{
		"spec.volumes[0].persistentVolumeClaim": `"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}]`,
		"spec.containers[0].envFrom[0]":         `"serviceAccountName": ""`,
	} {
		manifest := filepath.Join(t.TempDir(), "pod.json")
		text := `{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "i",
			"envFrom": [{"configMapRef": {"name": "m"}}]}], ` + spec + `}}`
		if strings.Contains(field, "volumes") {
			text = strings.Replace(text, `"envFrom": [{"configMapRef": {"name": "m"}}]`, `"tty": false`, 1)
		}
		require.NoError(t, os.WriteFile(manifest, []byte(text), 0o600))
		_, err := execute(t, "run", "-f", manifest)
		require.ErrorContains(t, err, field)
		require.ErrorContains(t, err, "start a cluster with `berth up`")
	}
}
