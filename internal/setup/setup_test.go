package setup

import (
	"archive/zip"
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

const makefile = "build:\n\t@./hack/note.sh building $(VERSION)\n\t@mkdir -p $(BIN)\n\t@cat containers/name controlplane/name dns/name codepages/name > $(BIN)/berth\n"

// proxy makes a module proxy of files with version v1.2.3 of all modules, and a module that requires it.
func proxy(t *testing.T) (user string) {
	t.Helper()
	root := t.TempDir()
	add := func(module string, files map[string]string) {
		dir := filepath.Join(root, module, "@v")
		require.NoError(t, os.MkdirAll(dir, 0o700))
		files["go.mod"] = "module " + module + "\n\ngo 1.26\n"
		var archive bytes.Buffer
		writer := zip.NewWriter(&archive)
		for name, text := range files {
			file, err := writer.Create(module + "@v1.2.3/" + name)
			require.NoError(t, err)
			_, err = file.Write([]byte(text))
			require.NoError(t, err)
		}
		require.NoError(t, writer.Close())
		for name, data := range map[string][]byte{
			"list": []byte("v1.2.3\n"), "v1.2.3.info": []byte(`{"Version": "v1.2.3"}`), "v1.2.3.mod": []byte(files["go.mod"]), "v1.2.3.zip": archive.Bytes(),
		} {
			require.NoError(t, os.WriteFile(filepath.Join(dir, name), data, 0o600))
		}
	}
	add(modulePath, map[string]string{"Makefile": makefile, "hack/note.sh": "#!/bin/sh\necho \"$@\"\n", "berth.go": "package berth\n"})
	for _, name := range nested {
		add(modulePath+"/"+name, map[string]string{"name": name + "\n"})
	}
	for name, value := range map[string]string{
		"GOPROXY": "file://" + root, "GONOSUMDB": "*", "GONOSUMCHECK": "1", "GOSUMDB": "off", "GOMODCACHE": filepath.Join(t.TempDir(), "modules"), "GOFLAGS": "-mod=mod -modcacherw",
	} {
		t.Setenv(name, value)
	}
	user = t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(user, "go.mod"), []byte("module example.test/user\n\ngo 1.26\n\nrequire "+modulePath+" v1.2.3\n"), 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(user, "user.go"), []byte("package user\n\nimport _ \""+modulePath+"\"\n"), 0o600))
	return user
}

func TestProgramsAreBuiltOnceFromModules(t *testing.T) {
	var output bytes.Buffer
	c := Config{Dir: proxy(t), Cache: t.TempDir(), Output: &output}
	require.NoError(t, download(t, c))
	_, err := c.Programs(t.Context())
	require.ErrorIs(t, err, os.ErrNotExist)
	dir, err := c.Build(t.Context())
	require.NoError(t, err, output.String())
	require.Equal(t, filepath.Join(c.Cache, "v1.2.3"), dir)
	built, err := os.ReadFile(filepath.Join(dir, "berth"))
	require.NoError(t, err)
	require.Equal(t, "containers\ncontrolplane\ndns\ncodepages\n", string(built))
	require.Contains(t, output.String(), "building 1.2.3")
	output.Reset()
	again, err := c.Build(t.Context())
	require.NoError(t, err)
	require.Equal(t, dir, again)
	require.Empty(t, output.String(), "once")
	found, err := c.Programs(t.Context())
	require.NoError(t, err)
	require.Equal(t, dir, found)
	left, err := filepath.Glob(filepath.Join(c.Cache, "build-*"))
	require.NoError(t, err)
	require.Empty(t, left)
}

// download has the go command know the directory of the root module, as it does once a package of it was compiled.
func download(t *testing.T, c Config) error {
	_, err := c.goJSON(t.Context(), c.Dir, "mod", "download", "-json", modulePath)
	return err
}

func TestCheckoutIsBuiltWhereItIs(t *testing.T) {
	checkout, user := t.TempDir(), t.TempDir()
	for name, text := range map[string]string{
		"go.mod": "module " + modulePath + "\n", "Makefile": "build:\n\t@mkdir -p $(BIN); echo it > $(BIN)/berth\n", "containers/go.mod": "module x\n",
	} {
		require.NoError(t, os.MkdirAll(filepath.Dir(filepath.Join(checkout, name)), 0o700))
		require.NoError(t, os.WriteFile(filepath.Join(checkout, name), []byte(text), 0o600))
	}
	require.NoError(t, os.WriteFile(filepath.Join(user, "go.mod"), []byte("module example.test/user\n\nrequire "+modulePath+" v0.0.0\n\nreplace "+modulePath+" => "+checkout+"\n"), 0o600))
	dir, err := Config{Dir: user, Output: &bytes.Buffer{}}.Build(t.Context())
	require.NoError(t, err)
	require.Equal(t, filepath.Join(checkout, "bin"), dir)
	require.FileExists(t, filepath.Join(dir, "berth"))
}

func TestModuleWithoutBerthSaysSo(t *testing.T) {
	user := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(user, "go.mod"), []byte("module example.test/user\n"), 0o600))
	_, err := Config{Dir: user}.Build(t.Context())
	require.ErrorContains(t, err, "requires "+modulePath)
}

// TestModulesOfTheProgramsAreKnown reads which modules of the repository the build needs beside each other.
func TestModulesOfTheProgramsAreKnown(t *testing.T) {
	for _, name := range nested {
		out, err := exec.Command("go", "mod", "edit", "-json", filepath.Join("..", "..", name, "go.mod")).Output()
		require.NoError(t, err)
		var file struct {
			Replace []struct {
				Old, New struct{ Path, Version string }
			}
		}
		require.NoError(t, json.Unmarshal(out, &file))
		for _, replaced := range file.Replace {
			if replaced.New.Version == "" {
				require.Contains(t, nested, filepath.Join(name, replaced.New.Path), "%s/go.mod replaces %s by it", name, replaced.Old.Path)
			}
		}
	}
}
