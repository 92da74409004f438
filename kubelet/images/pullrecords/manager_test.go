package pullrecords_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	kubeletconfig "k8s.io/kubelet/config/v1beta1"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/berth-dev/berth/internal/statefile/corrupt"
	"github.com/berth-dev/berth/kubelet/images/pullrecords"
)

const (
	image = "reg.example/team/app:1"
	id    = "sha256:aaaa"
)

// fixture is a directory and the Managers of successive processes on it.
type fixture struct {
	t       *testing.T
	dir     string
	clock   *clocktesting.FakeClock
	results []string
	config  pullrecords.Config
	*pullrecords.Manager
}

func newFixture(t *testing.T, config pullrecords.Config) *fixture {
	f := &fixture{t: t, dir: filepath.Join(t.TempDir(), "image_manager"), config: config}
	f.clock = clocktesting.NewFakeClock(time.Unix(1e9, 0))
	f.restart()
	return f
}

// restart replaces the Manager, as after a crash.
func (f *fixture) restart() {
	f.t.Helper()
	f.config.Dir = f.dir
	var err error
	f.Manager, err = pullrecords.New(pullrecords.Deps{Clock: f.clock, CountCheck: func(r string) { f.results = append(f.results, r) }}, f.config)
	require.NoError(f.t, err)
}

func (f *fixture) may(image string, podSources ...pullrecords.Source) bool {
	f.t.Helper()
	ok, err := f.Allowed(image, id, func() []pullrecords.Source { return podSources })
	require.NoError(f.t, err)
	return ok
}

func (f *fixture) files(kind string) []string {
	entries, err := os.ReadDir(filepath.Join(f.dir, kind))
	if err != nil {
		require.ErrorIs(f.t, err, os.ErrNotExist)
	}
	var names []string
	for _, entry := range entries {
		names = append(names, entry.Name())
	}
	return names
}

func (f *fixture) pull(image string, source pullrecords.Source) {
	f.t.Helper()
	require.NoError(f.t, f.BeginPull(image))
	f.PullSucceeded(image, id, source)
}

// list passes the runtime's images to Reconcile a minute later.
func (f *fixture) list(images ...*runtimeapi.Image) {
	f.clock.Step(time.Minute)
	f.Reconcile(images, f.clock.Now())
}

func secret(namespace, name, hash string) pullrecords.Source {
	return pullrecords.Source{Secret: &kubeletconfig.ImagePullSecret{
		UID: namespace + name, Namespace: namespace, Name: name, CredentialHash: hash,
	}}
}

func account(name string) pullrecords.Source {
	return pullrecords.Source{ServiceAccount: &kubeletconfig.ImagePullServiceAccount{UID: name, Namespace: "ns", Name: name}}
}

// TestWhoMay checks the cases of the contract, each in the process that pulled and in the next one.
func TestWhoMay(t *testing.T) {
	mine := secret("a", "mine", "h1")
	for name, c := range map[string]struct {
		config pullrecords.Config
		pulled []pullrecords.Source
		as     string // the requested name; image if empty
		held   []pullrecords.Source
		want   bool
	}{
		"preloaded":                            {want: true},
		"preloaded, but all is verified":       {config: pullrecords.Config{Policy: kubeletconfig.AlwaysVerify}},
		"preloaded, and nothing is verified":   {config: pullrecords.Config{Policy: kubeletconfig.NeverVerify}, want: true},
		"pulled with nothing":                  {pulled: []pullrecords.Source{{}}, want: true},
		"pulled with nothing, all is verified": {config: pullrecords.Config{Policy: kubeletconfig.AlwaysVerify}, pulled: []pullrecords.Source{{}}, want: true},
		"nothing held":                         {pulled: []pullrecords.Source{mine}},
		"nothing held and nothing verified":    {config: pullrecords.Config{Policy: kubeletconfig.NeverVerify}, pulled: []pullrecords.Source{mine}, want: true},
		"held":                                 {pulled: []pullrecords.Source{mine}, held: []pullrecords.Source{mine}, want: true},
		"a copy held":                          {pulled: []pullrecords.Source{mine}, held: []pullrecords.Source{secret("b", "copy", "h1")}, want: true},
		"renewed":                              {pulled: []pullrecords.Source{mine}, held: []pullrecords.Source{secret("a", "mine", "h2")}, want: true},
		"another held":                         {pulled: []pullrecords.Source{mine}, held: []pullrecords.Source{secret("a", "other", "h2")}},
		"without a hash only the name counts":  {pulled: []pullrecords.Source{secret("a", "x", "")}, held: []pullrecords.Source{secret("b", "y", "")}},
		"one of two held":                      {pulled: []pullrecords.Source{mine, secret("b", "b", "h2")}, held: []pullrecords.Source{secret("c", "c", "h2")}, want: true},
		"an account held":                      {pulled: []pullrecords.Source{account("x")}, held: []pullrecords.Source{account("x")}, want: true},
		"another account held":                 {pulled: []pullrecords.Source{account("x")}, held: []pullrecords.Source{account("y")}},
		"a login of the node does not count":   {pulled: []pullrecords.Source{mine}, held: []pullrecords.Source{{}}},
		"first with a login, then without":     {pulled: []pullrecords.Source{mine, {}}, want: true},
		"first without, then with a login":     {pulled: []pullrecords.Source{{}, mine}, want: true},
		"another tag of the name":              {pulled: []pullrecords.Source{mine}, as: "reg.example/team/app:2", held: []pullrecords.Source{mine}, want: true},
		"another name of the same content":     {pulled: []pullrecords.Source{{}}, as: "reg.example/other:1"},
		"by its id, open":                      {pulled: []pullrecords.Source{{}}, as: id, want: true},
		"by its id, with a login":              {pulled: []pullrecords.Source{mine}, as: id, held: []pullrecords.Source{mine}},
		"listed by name":                       {config: allow("reg.example/team/app"), want: true},
		"listed by a part":                     {config: allow("reg.example/team/*"), want: true},
		"listed by registry":                   {config: allow("reg.example/*"), want: true},
		"a part that only begins so":           {config: allow("reg.example/te/*")},
		"not listed":                           {config: allow("reg.example/other")},
		"listed, but pulled by us":             {config: allow("reg.example/*"), pulled: []pullrecords.Source{mine}},
		"listed, pulled by us, held":           {config: allow("reg.example/*"), pulled: []pullrecords.Source{mine}, held: []pullrecords.Source{mine}, want: true},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, c.config)
			for _, source := range c.pulled {
				f.pull(image, source)
			}
			as := c.as
			if as == "" {
				as = image
			}
			require.Equal(t, c.want, f.may(as, c.held...))
			f.restart()
			require.Equal(t, c.want, f.may(as, c.held...), "after a restart")
			require.Empty(t, f.files("pulling"))
		})
	}
}

func allow(entries ...string) pullrecords.Config {
	return pullrecords.Config{Policy: kubeletconfig.NeverVerifyAllowlistedImages, Allowlist: entries}
}

func TestBadPolicies(t *testing.T) {
	for want, config := range map[string]pullrecords.Config{
		`"Sometimes"`:                {Dir: "/d", Policy: "Sometimes"},
		"only imagePullCredentials":  {Dir: "/d", Allowlist: []string{"a"}},
		"without tag and digest":     {Dir: "/d", Policy: kubeletconfig.NeverVerifyAllowlistedImages, Allowlist: []string{"a:1"}},
		"the whole last part":        {Dir: "/d", Policy: kubeletconfig.NeverVerifyAllowlistedImages, Allowlist: []string{"r.example/a*"}},
		"an image's name":            {Dir: "/d", Policy: kubeletconfig.NeverVerifyAllowlistedImages, Allowlist: []string{"UPPER"}},
		"registry's name before":     {Dir: "/d", Policy: kubeletconfig.NeverVerifyAllowlistedImages, Allowlist: []string{"/*"}},
		"pullrecords: Config.Dir is": {},
	} {
		_, err := pullrecords.New(pullrecords.Deps{}, config)
		require.ErrorContains(t, err, want)
	}
}

// TestDeathAtEachMoment kills the process between any two steps of a pull and checks in the next one: a crash must not
// open an image that was pulled with a login.
func TestDeathAtEachMoment(t *testing.T) {
	present := &runtimeapi.Image{Id: id, RepoTags: []string{image}}
	t.Run("the pull goes on without us", func(t *testing.T) {
		f := newFixture(t, pullrecords.Config{})
		require.NoError(t, f.BeginPull(image))
		require.Len(t, f.files("pulling"), 1, "before the pull")
		f.restart()
		require.False(t, f.may(image), "before the images were listed")
		f.list(present)
		require.Empty(t, f.files("pulling"))
		require.Len(t, f.files("pulled"), 1)
		require.False(t, f.may(image))
		f.restart()
		require.False(t, f.may(image))
		f.pull(image, pullrecords.Source{})
		require.True(t, f.may(image), "a pull verifies the credentials")
	})
	t.Run("the pull ended with us", func(t *testing.T) {
		f := newFixture(t, pullrecords.Config{})
		require.NoError(t, f.BeginPull(image))
		f.restart()
		require.False(t, f.may(image))
		f.list()
		require.Len(t, f.files("pulling"), 1, "it may come yet")
		require.NoError(t, f.BeginPull(image))
		f.PullFailed(image)
		require.Len(t, f.files("pulling"), 1, "a failure proves nothing")
		require.False(t, f.may(image))
		f.clock.Step(20 * time.Minute)
		f.list()
		require.Empty(t, f.files("pulling"))
		require.Empty(t, f.files("pulled"))
		require.True(t, f.may(image), "whoever brought it since, it was not us")
	})
	t.Run("between the record and the end of the intent", func(t *testing.T) {
		f := newFixture(t, pullrecords.Config{})
		require.NoError(t, f.BeginPull(image))
		pending, err := os.ReadFile(filepath.Join(f.dir, "pulling", f.files("pulling")[0]))
		require.NoError(t, err)
		name := f.files("pulling")[0]
		f.PullSucceeded(image, id, secret("a", "mine", "h"))
		require.NoError(t, os.WriteFile(filepath.Join(f.dir, "pulling", name), pending, 0o600))
		f.restart()
		require.True(t, f.may(image, secret("a", "mine", "h")))
		f.list(present)
		require.Empty(t, f.files("pulling"))
		require.True(t, f.may(image, secret("a", "mine", "h")), "the record keeps what it says")
		require.False(t, f.may(image))
	})
	t.Run("in the middle of a write", func(t *testing.T) {
		f := newFixture(t, pullrecords.Config{})
		f.pull(image, pullrecords.Source{})
		half := filepath.Join(f.dir, "pulled", "."+f.files("pulled")[0]+".123")
		require.NoError(t, os.WriteFile(half, []byte("{"), 0o600))
		f.restart()
		require.True(t, f.may(image))
		require.NoFileExists(t, half)
	})
}

// TestBrokenRecord writes an invalid record: every Pod has to pull the image, and the pull replaces the record.
func TestBrokenRecord(t *testing.T) {
	for name, content := range map[string]string{
		"empty": "", "half": `{"kind":"ImagePulledRecord"`, "another kind": `{"kind":"ImagePullIntent","apiVersion":"kubelet.config.k8s.io/v1beta1"}`,
		"of the future": `{"kind":"ImagePulledRecord","apiVersion":"kubelet.config.k8s.io/v9","imageRef":"` + id + `","credentialMapping":{"reg.example/team/app":{"nodePodsAccessible":true}}}`,
		"of another":    `{"kind":"ImagePulledRecord","apiVersion":"kubelet.config.k8s.io/v1beta1","imageRef":"sha256:other"}`,
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, pullrecords.Config{})
			f.pull(image, pullrecords.Source{})
			path := filepath.Join(f.dir, "pulled", f.files("pulled")[0])
			require.NoError(t, os.WriteFile(path, []byte(content), 0o600))
			f.restart()
			require.False(t, f.may(image))
			require.Equal(t, pullrecords.ResultMustAuthenticate, f.results[len(f.results)-1])
			f.pull(image, pullrecords.Source{})
			require.True(t, f.may(image))
			f.restart()
			require.True(t, f.may(image))
			f.list()
			require.Equal(t, []string{filepath.Base(path) + ".damaged"}, f.files("pulled"))
		})
	}
}

func TestDamagedRecordStaysUnusable(t *testing.T) {
	var f *fixture
	corrupt.Each(t, func(t *testing.T) string {
		f = newFixture(t, pullrecords.Config{})
		f.pull(image, pullrecords.Source{})
		return filepath.Join(f.dir, "pulled", f.files("pulled")[0])
	}, func(t *testing.T, way, path string) {
		f.restart()
		if way != "missing" && way != "no permission" { // root reads it; without a record the image was preloaded
			require.False(t, f.may(image))
		}
		f.pull(image, pullrecords.Source{})
		require.True(t, f.may(image))
		if way != "missing" && way != "no permission" {
			_, err := os.Lstat(path + ".damaged")
			require.NoError(t, err, "what was found is kept")
		}
		f.restart()
		require.True(t, f.may(image), "the new record is valid")
	})
}

func TestRecordsGoWithTheirImages(t *testing.T) {
	f := newFixture(t, pullrecords.Config{})
	f.pull(image, secret("a", "mine", "h"))
	listedAt := f.clock.Now()
	f.clock.Step(time.Second)
	f.pull("reg.example/two:1", secret("a", "mine", "h")) // both names of one image; the record is newer than the list
	f.Reconcile(nil, listedAt)
	require.Len(t, f.files("pulled"), 1)
	f.list(&runtimeapi.Image{Id: id})
	require.Len(t, f.files("pulled"), 1)
	f.list(&runtimeapi.Image{Id: "sha256:other"})
	require.Empty(t, f.files("pulled"))
	intents, records := f.Counts()
	require.Zero(t, intents+records)
	require.True(t, f.may(image), "who brings it by hand now gives it to all")
}

// An image was removed, and is pulled again with what its record has already, while a list without it is under way. Without the
// record it would count as brought by hand, and be everybody's.
func TestListRequestedBeforeAnEqualPullRemovesNoRecord(t *testing.T) {
	f := newFixture(t, pullrecords.Config{})
	f.pull(image, secret("a", "mine", "h"))
	f.clock.Step(time.Minute)
	listedAt := f.clock.Now()
	f.clock.Step(time.Second)
	f.pull(image, secret("a", "mine", "h"))
	f.Reconcile(nil, listedAt)
	require.Len(t, f.files("pulled"), 1)
	require.False(t, f.may(image))
	f.list()
	require.Empty(t, f.files("pulled"), "a later list shows that it is gone")
}

// TestPullsAtOnce lets one of two pulls of an image fail: the other is still recorded.
func TestPullsAtOnce(t *testing.T) {
	f := newFixture(t, pullrecords.Config{})
	require.NoError(t, f.BeginPull(image))
	require.NoError(t, f.BeginPull(image))
	f.PullFailed(image)
	require.Len(t, f.files("pulling"), 1)
	require.False(t, f.may(image), "the image appears before its pull ends")
	f.PullSucceeded(image, id, secret("a", "mine", "h"))
	require.Empty(t, f.files("pulling"))
	require.NoError(t, f.BeginPull(image))
	f.PullOutcomeUnknown(image, "")
	require.Len(t, f.files("pulling"), 1, "the outcome is unknown")
	f.list(&runtimeapi.Image{Id: id, RepoTags: []string{image}})
	require.Empty(t, f.files("pulling"))
	require.True(t, f.may(image, secret("a", "mine", "h")))
}

func TestRenewedSecretsDoNotGrowWithoutEnd(t *testing.T) {
	f := newFixture(t, pullrecords.Config{})
	f.pull(image, secret("a", "mine", "h"))
	require.True(t, f.may(image, secret("a", "mine", "h2")))
	require.True(t, f.may(image, secret("b", "copy", "h2")), "known by its new content")
	for i := range 300 {
		require.True(t, f.may(image, secret("ns", strings.Repeat("x", i+1), "h2")))
	}
	data, err := os.ReadFile(filepath.Join(f.dir, "pulled", f.files("pulled")[0]))
	require.NoError(t, err)
	require.Equal(t, 100, strings.Count(string(data), "credentialHash"))
}

// TestNoDisk uses a full or broken disk: a pull that cannot be recorded must not begin.
func TestNoDisk(t *testing.T) {
	f := newFixture(t, pullrecords.Config{})
	require.NoError(t, os.WriteFile(f.dir, nil, 0o600), "a file where the directory should be")
	f.restart()
	require.Error(t, f.BeginPull(image))
	_, err := f.Allowed(image, id, nil)
	require.Error(t, err)
	require.Equal(t, []string{pullrecords.ResultError}, f.results)
}

// TestPresentImagesAreCheap checks an unrestricted image: no file is read or written, and no credentials are read.
func TestPresentImagesAreCheap(t *testing.T) {
	f := newFixture(t, pullrecords.Config{})
	require.True(t, f.may(image))
	require.NoDirExists(t, f.dir)
	ok, err := f.Allowed(image, id, func() []pullrecords.Source { panic("asked for credentials") })
	require.NoError(t, err)
	require.True(t, ok)
	require.Equal(t, []string{pullrecords.ResultPolicyAllowed, pullrecords.ResultPolicyAllowed}, f.results)
}

func BenchmarkPresent(f *testing.B) {
	m, err := pullrecords.New(pullrecords.Deps{}, pullrecords.Config{Dir: filepath.Join(f.TempDir(), "image_manager")})
	require.NoError(f, err)
	f.ReportAllocs()
	for f.Loop() {
		if ok, err := m.Allowed(image, id, nil); !ok || err != nil {
			f.Fatal(ok, err)
		}
	}
}
