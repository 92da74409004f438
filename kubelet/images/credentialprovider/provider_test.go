package credentialprovider_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/berth-dev/berth/kubelet/images/credentialprovider"
)

// fixture is a directory of real programs, and a Keyring that runs them.
type fixture struct {
	t        *testing.T
	dir      string
	clock    *clocktesting.FakeClock
	accounts map[string]*corev1.ServiceAccount
	tokens   []types.UID       // accounts of the tokens
	failed   map[string][]bool // of each provider, whether its runs failed
	*credentialprovider.Keyring
}

const header = "apiVersion: kubelet.config.k8s.io/v1\nkind: CredentialProviderConfig\nproviders:\n"

// newFixture writes a configuration, and a program for each name that runs the script. $DIR is the fixture's directory.
func newFixture(t *testing.T, providers string, programs map[string]string) *fixture {
	f := &fixture{t: t, dir: t.TempDir(), clock: clocktesting.NewFakeClock(time.Unix(1e9, 0)), accounts: map[string]*corev1.ServiceAccount{},
		failed: map[string][]bool{}}
	for name, script := range programs {
		script = "#!/bin/sh\nDIR=" + f.dir + "\necho run >> $DIR/" + name + ".runs\ncat > $DIR/" + name + ".asked\n" + script
		require.NoError(t, os.WriteFile(filepath.Join(f.dir, name), []byte(script), 0o700))
	}
	file := filepath.Join(f.dir, "config.yaml")
	require.NoError(t, os.WriteFile(file, []byte(header+providers), 0o600))
	list, _, err := credentialprovider.Load(file)
	require.NoError(t, err)
	f.Keyring, err = credentialprovider.New(credentialprovider.Deps{
		Account: func(_ context.Context, _, name string) (*corev1.ServiceAccount, error) {
			if f.accounts[name] == nil {
				return nil, errors.New("no such account")
			}
			return f.accounts[name], nil
		},
		Token: func(_ context.Context, pod *corev1.Pod, account types.UID, audience string) (string, error) {
			f.tokens = append(f.tokens, account)
			return "token-of-" + pod.Spec.ServiceAccountName + "-for-" + audience, nil
		},
		Clock: f.clock,
		OnRun: func(provider string, _ time.Duration, err error) {
			f.failed[provider] = append(f.failed[provider], err != nil)
		},
	}, credentialprovider.Config{Providers: list, Dir: f.dir})
	require.NoError(t, err)
	return f
}

func one(name, more string) string {
	return "- name: " + name + "\n  apiVersion: credentialprovider.kubelet.k8s.io/v1\n" + more
}

// respondWith returns a script that prints the response.
func respondWith(rest string) string {
	return `echo '{"kind":"CredentialProviderResponse","apiVersion":"credentialprovider.kubelet.k8s.io/v1",` + rest + `}'`
}

func (f *fixture) users(account, image string) []string {
	f.t.Helper()
	users, err := f.credentials(account, image)
	require.NoError(f.t, err)
	return users
}

func (f *fixture) credentials(account, image string) ([]string, error) {
	pod := &corev1.Pod{Spec: corev1.PodSpec{ServiceAccountName: account}}
	found, err := f.Credentials(f.t.Context(), pod, image)
	users := []string{}
	for _, c := range found {
		user := c.Auth.Username
		if c.Source.ServiceAccount != nil {
			user += " of " + c.Source.ServiceAccount.UID
		}
		users = append(users, user)
	}
	return users, err
}

func (f *fixture) runs(name string) int {
	data, err := os.ReadFile(filepath.Join(f.dir, name+".runs"))
	if errors.Is(err, os.ErrNotExist) {
		return 0
	}
	require.NoError(f.t, err)
	return strings.Count(string(data), "run")
}

func (f *fixture) requests(name string) string {
	data, err := os.ReadFile(filepath.Join(f.dir, name+".asked"))
	require.NoError(f.t, err)
	return string(data)
}

func TestMatchingProvidersAreRun(t *testing.T) {
	f := newFixture(t, one("first", "  matchImages: ['*.example', 'host.example:5000/team']\n  defaultCacheDuration: 0s\n  args: [get]\n  env: [{name: WHO, value: me}]\n")+
		one("second", "  matchImages: [reg.example]\n  defaultCacheDuration: 0s\n"), map[string]string{
		"first": `echo "$WHO $1" > $DIR/env` + "\n" + respondWith(`"cacheKeyType":"Image","auth":{"*.example":{"username":"wide"},"reg.example/team":{"username":"narrow"},
			"host.example:5000":{"username":"port"}}`),
		"second": respondWith(`"cacheKeyType":"Image","auth":{"reg.example":{"username":"second","password":"p"}}`),
	})
	require.Equal(t, []string{"narrow", "second", "wide"}, f.users("", "reg.example/team/app:1"))
	require.JSONEq(t, `{"kind":"CredentialProviderRequest","apiVersion":"credentialprovider.kubelet.k8s.io/v1",
		"image":"reg.example/team/app"}`, f.requests("first"))
	env, err := os.ReadFile(filepath.Join(f.dir, "env"))
	require.NoError(t, err)
	require.Equal(t, "me get\n", string(env))
	require.Equal(t, []string{"wide"}, f.users("", "other.example/app"))
	require.Equal(t, []string{"port"}, f.users("", "host.example:5000/team/app"))
	before := f.runs("first")
	for _, image := range []string{"host.example:5000/app", "host.example:5001/team/app", "a.b.example/app", "app", "reg.example:80/app"} {
		require.Empty(t, f.users("", image), image)
	}
	require.Equal(t, before, f.runs("first"), "no provider matches these")
}

func TestResponsesAreCached(t *testing.T) {
	for kind, runs := range map[string]int{"Image": 3, "Registry": 2, "Global": 1} {
		t.Run(kind, func(t *testing.T) {
			f := newFixture(t, one("p", "  matchImages: ['*.example']\n  defaultCacheDuration: 10m\n"), map[string]string{
				"p": respondWith(`"cacheKeyType":"` + kind + `","auth":{"*.example":{"username":"u"}}`),
			})
			for range 2 {
				for _, image := range []string{"a.example/one:1", "a.example/one:2", "a.example/two", "b.example/one"} {
					require.Equal(t, []string{"u"}, f.users("", image))
				}
			}
			require.Equal(t, runs, f.runs("p"))
			f.clock.Step(11 * time.Minute)
			f.users("", "a.example/one")
			require.Equal(t, runs+1, f.runs("p"), "after its time")
		})
	}
	t.Run("not at all", func(t *testing.T) {
		f := newFixture(t, one("p", "  matchImages: ['*.example']\n  defaultCacheDuration: 10m\n"), map[string]string{
			"p": respondWith(`"cacheKeyType":"Global","cacheDuration":"0s","auth":{"*.example":{"username":"u"}}`),
		})
		for range 2 {
			require.Equal(t, []string{"u"}, f.users("", "a.example/one"))
		}
		require.Equal(t, 2, f.runs("p"))
	})
}

func account(name string, annotations map[string]string) *corev1.ServiceAccount {
	return &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{
		Namespace: "ns", Name: name, UID: types.UID("uid-" + name), Annotations: annotations,
	}}
}

const withToken = "  matchImages: [reg.example]\n  defaultCacheDuration: 10m\n  tokenAttributes:\n" +
	"    serviceAccountTokenAudience: registry\n    requireServiceAccount: true\n"

// TestTokens passes a token of the Pod's service account to the program and caches responses per account.
func TestTokens(t *testing.T) {
	f := newFixture(t, one("p", withToken+"    cacheType: ServiceAccount\n    requiredServiceAccountAnnotationKeys: [role]\n"+
		"    optionalServiceAccountAnnotationKeys: [hint]\n"), map[string]string{
		"p": respondWith(`"cacheKeyType":"Registry","auth":{"reg.example":{"username":"u"}}`),
	})
	f.accounts["a"] = account("a", map[string]string{"role": "reader", "secret": "x"})
	f.accounts["b"] = account("b", map[string]string{"role": "reader", "hint": "h"})
	f.accounts["bare"] = account("bare", nil)
	require.Equal(t, []string{"u of uid-a"}, f.users("a", "reg.example/app"))
	require.JSONEq(t, `{"kind":"CredentialProviderRequest","apiVersion":"credentialprovider.kubelet.k8s.io/v1",
		"image":"reg.example/app","serviceAccountToken":"token-of-a-for-registry",
		"serviceAccountAnnotations":{"role":"reader"}}`, f.requests("p"))
	require.Equal(t, []string{"u of uid-a"}, f.users("a", "reg.example/other"))
	require.Equal(t, 1, f.runs("p"))
	require.Equal(t, []types.UID{"uid-a"}, f.tokens, "of the account whose annotations the program gets, and a kept answer needs none")
	require.Equal(t, []string{"u of uid-b"}, f.users("b", "reg.example/app"))
	require.Equal(t, 2, f.runs("p"))
	f.accounts["a"].Annotations["role"] = "writer"
	f.users("a", "reg.example/app")
	require.Equal(t, 3, f.runs("p"), "another role")

	require.Empty(t, f.users("", "reg.example/app"), "a Pod without an account")
	require.Empty(t, f.users("bare", "reg.example/app"), "an account that does not ask for the provider")
	require.Equal(t, 3, f.runs("p"))
	_, err := f.credentials("gone", "reg.example/app")
	require.ErrorContains(t, err, "no such account")
}

func TestResponsesForOneTokenAreNotCached(t *testing.T) {
	f := newFixture(t, one("p", strings.Replace(withToken, "true", "false", 1)+"    cacheType: Token\n"), map[string]string{
		"p": respondWith(`"cacheKeyType":"Registry","auth":{"reg.example":{"username":"u"}}`),
	})
	f.accounts["a"] = account("a", nil)
	for range 2 {
		require.Equal(t, []string{"u of uid-a"}, f.users("a", "reg.example/app"))
	}
	require.Equal(t, 2, f.runs("p"), "the next token may be another's")
	for range 2 {
		require.Equal(t, []string{"u"}, f.users("", "reg.example/app"), "it is asked without an account too")
	}
	require.Equal(t, 3, f.runs("p"))
}

// TestTokenAsPassword is refused where the response would be used for other Pods of the account, too: the token is of one Pod.
func TestTokenAsPassword(t *testing.T) {
	for cacheType, want := range map[string]string{"Token": "", "ServiceAccount": "has the service account's token as a password"} {
		f := newFixture(t, one("p", withToken+"    cacheType: "+cacheType+"\n"), map[string]string{
			"p": respondWith(`"cacheKeyType":"Registry","auth":{"reg.example":{"username":"u","password":"token-of-a-for-registry"}}`),
		})
		f.accounts["a"] = account("a", nil)
		users, err := f.credentials("a", "reg.example/app")
		if want == "" {
			require.NoError(t, err)
			require.Equal(t, []string{"u of uid-a"}, users)
			continue
		}
		require.ErrorContains(t, err, want)
		require.NotContains(t, err.Error(), "token-of-a")
		require.Empty(t, users)
	}
}

// TestBrokenPrograms uses programs that misbehave: the others' credentials are still returned, and no error contains a
// password.
func TestBrokenPrograms(t *testing.T) {
	for want, script := range map[string]string{
		"no access to the vault":      `echo "no access to the vault" >&2; exit 3`,
		"not JSON":                    `echo top-secret`,
		`want a CredentialProviderRe`: `echo '{"kind":"X","password":"top-secret"}'`,
		`cacheKeyType "Sometimes"`:    respondWith(`"cacheKeyType":"Sometimes","auth":{"reg.example":{"password":"top-secret"}}`),
		"longer than":                 `head -c 2000000 /dev/zero`,
	} {
		f := newFixture(t, one("broken", "  matchImages: [reg.example]\n  defaultCacheDuration: 0s\n")+
			one("good", "  matchImages: [reg.example]\n  defaultCacheDuration: 0s\n"), map[string]string{
			"broken": script, "good": respondWith(`"cacheKeyType":"Image","auth":{"reg.example":{"username":"u"}}`),
		})
		users, err := f.credentials("", "reg.example/app")
		require.ErrorContains(t, err, want)
		require.ErrorContains(t, err, `credential provider "broken"`)
		require.NotContains(t, err.Error(), "top-secret")
		require.Equal(t, []string{"u"}, users)
		require.Equal(t, map[string][]bool{"broken": {strings.Contains(script, "exit 3")}, "good": {false}}, f.failed)
	}
}

// TestHangingProgram is killed when the Pod's context ends.
func TestHangingProgram(t *testing.T) {
	f := newFixture(t, one("p", "  matchImages: [reg.example]\n  defaultCacheDuration: 0s\n"), map[string]string{
		"p": "mkfifo $DIR/never; exec cat $DIR/never",
	})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		_, err := f.Credentials(ctx, &corev1.Pod{}, "reg.example/app")
		ended <- err
	}()
	require.Eventually(t, func() bool { return f.runs("p") == 1 }, time.Minute, time.Millisecond)
	cancel()
	require.ErrorIs(t, <-ended, context.Canceled)
}

func TestBadConfigurations(t *testing.T) {
	const fine = "  matchImages: [reg.example]\n  defaultCacheDuration: 0s\n"
	for want, config := range map[string]string{
		"the list is empty":                header,
		"unknown field":                    header + one("p", fine+"  matchImage: x\n"),
		"duplicate name":                   header + one("p", fine) + one("p", fine),
		"without slashes":                  header + one("a/b", fine),
		`apiVersion "credentialprovider`:   header + strings.Replace(one("p", fine), "/v1", "/v7", 1),
		"matchImages: the list is empty":   header + one("p", "  defaultCacheDuration: 0s\n"),
		"want a host":                      header + one("p", "  matchImages: ['https://reg.example']\n  defaultCacheDuration: 0s\n"),
		"defaultCacheDuration is missing":  header + one("p", "  matchImages: [a]\n"),
		"defaultCacheDuration is negative": header + one("p", "  matchImages: [a]\n  defaultCacheDuration: -1s\n"),
		"serviceAccountTokenAudience is":   header + one("p", fine+"  tokenAttributes: {requireServiceAccount: true, cacheType: Token}\n"),
		"requireServiceAccount is missing": header + one("p", fine+"  tokenAttributes: {serviceAccountTokenAudience: a, cacheType: Token}\n"),
		"want Token or ServiceAccount":     header + one("p", fine+"  tokenAttributes: {serviceAccountTokenAudience: a, requireServiceAccount: true}\n"),
		"is listed twice":                  header + one("p", withToken+"    cacheType: Token\n    requiredServiceAccountAnnotationKeys: [a]\n    optionalServiceAccountAnnotationKeys: [a]\n"),
		"require requireServiceAccount":    header + one("p", strings.Replace(withToken, "true", "false", 1)+"    cacheType: Token\n    requiredServiceAccountAnnotationKeys: [a]\n"),
		"programs of apiVersion":           header + strings.Replace(one("p", withToken+"    cacheType: Token\n"), "/v1", "/v1beta1", 1),
		"no annotation has the key":        header + one("p", withToken+"    cacheType: Token\n    optionalServiceAccountAnnotationKeys: ['a b']\n"),
		`kind "Pod" of "v1"`:               "apiVersion: v1\nkind: Pod\n",
		"more than one YAML document":      header + one("p", fine) + "---\n" + header + one("q", fine),
		`field "Providers"`:                header + one("p", fine) + "Providers: []\n",
		"cannot unmarshal number":          header + one("p", fine+"  env: [{name: A, value: 1}]\n"),
		`[0].tokenAttributes"`:             strings.Replace(header, "/v1", "/v1beta1", 1) + one("p", withToken+"    cacheType: Token\n"),
	} {
		file := filepath.Join(t.TempDir(), "config.yaml")
		require.NoError(t, os.WriteFile(file, []byte(config), 0o600))
		_, _, err := credentialprovider.Load(file)
		require.ErrorContains(t, err, want)
		require.ErrorContains(t, err, file)
	}
	_, _, err := credentialprovider.Load(filepath.Join(t.TempDir(), "absent"))
	require.ErrorIs(t, err, os.ErrNotExist)
}

// TestFormsOfTheConfiguration reads YAML with and without braces, and JSON.
func TestFormsOfTheConfiguration(t *testing.T) {
	for _, config := range []string{
		header + one("p", "  matchImages: [reg.example]\n  defaultCacheDuration: 0s\n"),
		`{apiVersion: kubelet.config.k8s.io/v1, kind: CredentialProviderConfig, providers: [{
			name: p, apiVersion: credentialprovider.kubelet.k8s.io/v1, matchImages: [reg.example], defaultCacheDuration: 0s}]}`,
		`{"apiVersion": "kubelet.config.k8s.io/v1", "kind": "CredentialProviderConfig", "providers": [{"name": "p",
			"apiVersion": "credentialprovider.kubelet.k8s.io/v1", "matchImages": ["reg.example"], "defaultCacheDuration": "0s"}]}`,
	} {
		file := filepath.Join(t.TempDir(), "config.yaml")
		require.NoError(t, os.WriteFile(file, []byte(config), 0o600))
		providers, _, err := credentialprovider.Load(file)
		require.NoError(t, err)
		require.Len(t, providers, 1)
		require.Equal(t, []string{"reg.example"}, providers[0].MatchImages)
	}
}

// TestDirectory reads all files of a directory and reports a missing program.
func TestDirectory(t *testing.T) {
	dir := t.TempDir()
	_, _, err := credentialprovider.Load(dir)
	require.ErrorContains(t, err, "contains no")
	for name, content := range map[string]string{
		"b.yaml": header + one("b", "  matchImages: [x]\n  defaultCacheDuration: 0s\n"), "notes.txt": "nothing",
		"a.json": `{"apiVersion":"kubelet.config.k8s.io/v1beta1","kind":"CredentialProviderConfig","providers":[{"name":"a",
			"apiVersion":"credentialprovider.kubelet.k8s.io/v1beta1","matchImages":["x"],"defaultCacheDuration":"1m"}]}`,
	} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600))
	}
	list, hash, err := credentialprovider.Load(dir)
	require.NoError(t, err)
	require.Equal(t, "a", list[0].Name)
	require.Equal(t, "b", list[1].Name)
	require.Equal(t, "sha256:85c68e5c9872caf7ffbd3c7783c28a36fda8e3dbaf958006d64f4d100f5337e8", hash, "of the length of each file, 8 bytes in network order, and its content")
	_, err = credentialprovider.New(credentialprovider.Deps{}, credentialprovider.Config{Providers: list, Dir: dir})
	require.ErrorContains(t, err, `credential provider "a": program `+filepath.Join(dir, "a"))
}
