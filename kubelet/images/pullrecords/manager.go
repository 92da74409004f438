package pullrecords

import (
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/distribution/reference"
	kubeletconfig "k8s.io/kubelet/config/v1beta1"
	"k8s.io/utils/clock"
)

// Config are the values of a Ledger.
type Config struct {
	// Dir is where the files are kept: pulling/ and pulled/ below it. It is made with the first of them.
	Dir string
	// Policy says which present images need no credentials; NeverVerifyPreloadedImages if empty.
	Policy kubeletconfig.ImagePullCredentialsVerificationPolicy
	// Allowlist are the images that NeverVerifyAllowlistedImages speaks of: names without tag or digest, or with "/*" as
	// their last part.
	Allowlist []string
}

// Deps are what a Ledger needs from others. All may be nil.
type Deps struct {
	// CountCheck, if set, is told what came of each question about a present image: one of the Result constants.
	CountCheck func(result string)
	Logger     *slog.Logger
	Clock      clock.PassiveClock
}

// What a question about a present image may end in, in the words of upstream's metric.
const (
	ResultPolicyAllowed    = "credentialPolicyAllowed"
	ResultRecordFound      = "credentialRecordFound"
	ResultMustAuthenticate = "mustAuthenticate"
	ResultError            = "error"
)

// Source is where a credential comes from, as far as it tells Pods apart. The zero Source is open to all Pods of the
// node: a login of the node itself, or none at all.
type Source struct {
	Secret         *kubeletconfig.ImagePullSecret
	ServiceAccount *kubeletconfig.ImagePullServiceAccount
}

func (s Source) isPublic() bool { return s.Secret == nil && s.ServiceAccount == nil }

// Manager is the memory. It is safe for concurrent use.
type Manager struct {
	config Config
	deps   Deps
	policy policy

	// fileMu keeps writers of files apart. It is taken before mu, and is not needed for questions.
	fileMu sync.Mutex

	mu      sync.RWMutex // guards all below
	loaded  time.Time    // zero until the files were read
	intents map[string]*intent
	// records are the images that were pulled. A nil record is one that cannot be read. Records are replaced, never
	// changed.
	records map[string]*kubeletconfig.ImagePulledRecord
}

// intent is a pull that was begun, by the name of its file.
type intent struct {
	active int // those of this process that go on
	// uncertain says that an earlier one may have brought the image without our knowing: that of a process which died, or one
	// of unknown end. A failure after it proves nothing.
	uncertain bool
}

// New makes a Ledger. It reads nothing yet.
func New(deps Deps, config Config) (*Manager, error) {
	if config.Dir == "" {
		return nil, errors.New("image ledger: Config.Dir is empty")
	}
	p, err := newPolicy(config.Policy, config.Allowlist)
	if err != nil {
		return nil, err
	}
	if deps.CountCheck == nil {
		deps.CountCheck = func(string) {}
	}
	if deps.Logger == nil {
		deps.Logger = slog.New(slog.DiscardHandler)
	}
	if deps.Clock == nil {
		deps.Clock = clock.RealClock{}
	}
	return &Manager{
		config: config, deps: deps, policy: p,
		intents: map[string]*intent{}, records: map[string]*kubeletconfig.ImagePulledRecord{},
	}, nil
}

// BeginPull notes that a pull of the image, named as in the container, is about to begin. After it exactly one of Pulled,
// Failed and Unknown is called. On an error the pull must not begin: if this process died then, the image would look as if it
// had been on the node from the start, and anybody could use it.
func (m *Manager) BeginPull(image string) error {
	if err := m.load(); err != nil {
		return err
	}
	full := fullName(image)
	key := fileName(full)
	m.fileMu.Lock()
	defer m.fileMu.Unlock()
	m.mu.Lock()
	found := m.intents[key]
	if found == nil {
		found = &intent{}
		m.intents[key] = found
	}
	found.active++
	first := found.active == 1
	m.mu.Unlock()
	if !first {
		return nil
	}
	if err := m.writeIntent(key, full); err != nil {
		m.finishPull(key)
		return err
	}
	return nil
}

// PullSucceeded notes that the image was pulled with a credential from the source, and that the runtime calls it id.
func (m *Manager) PullSucceeded(image, id string, source Source) {
	key := fileName(fullName(image))
	m.fileMu.Lock()
	defer m.fileMu.Unlock()
	if err := m.updateRecord(repositoryName(image), id, &source); err != nil {
		// The intent stays, so that the image counts as pulled by us in the next process too.
		m.deps.Logger.Warn("noting with what an image was pulled failed: Pods may have to pull it again",
			"image", image, "error", err)
		m.decrement(key)
		return
	}
	m.finishPull(key)
}

// PullFailed notes that a pull of the image came to nothing.
func (m *Manager) PullFailed(image string) {
	m.fileMu.Lock()
	defer m.fileMu.Unlock()
	key := fileName(fullName(image))
	if m.isUncertain(key) {
		m.decrement(key)
		return
	}
	m.finishPull(key)
}

// PullOutcomeUnknown notes that what came of a pull of the image is not known: the runtime may have it, or get it yet. The next
// list of images tells.
func (m *Manager) PullOutcomeUnknown(image string) {
	m.fileMu.Lock()
	defer m.fileMu.Unlock()
	key := fileName(fullName(image))
	m.decrement(key)
	m.mu.Lock()
	defer m.mu.Unlock()
	if found := m.intents[key]; found != nil {
		found.uncertain = true
	}
}

func (m *Manager) isUncertain(key string) bool {
	m.mu.RLock()
	defer m.mu.RUnlock()
	found := m.intents[key]
	return found != nil && found.uncertain
}

// finishPull takes one pull off an intent, and the intent away with the last. The caller holds disk.
func (m *Manager) finishPull(key string) {
	if m.decrement(key) > 0 {
		return
	}
	if err := m.remove(intentsDir, key); err != nil {
		m.deps.Logger.Warn("removing the note of a pull that has ended failed", "error", err)
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.intents, key)
}

// decrement takes one pull off an intent, and tells how many go on.
func (m *Manager) decrement(key string) int {
	m.mu.Lock()
	defer m.mu.Unlock()
	found := m.intents[key]
	if found == nil {
		return 0
	}
	found.active = max(found.active-1, 0)
	return found.active
}

// updateRecord adds what a pull has shown to the image's record; without a source it only makes sure that there is one. The
// caller holds disk.
func (m *Manager) updateRecord(name, id string, source *Source) error {
	key := fileName(id)
	m.mu.Lock()
	old := m.records[key]
	next, changed := mergeSource(old, name, id, source)
	if !changed {
		m.mu.Unlock()
		return nil
	}
	next.LastUpdatedTime.Time = m.deps.Clock.Now()
	m.records[key] = next // even if it cannot be written, it holds as long as this process
	m.mu.Unlock()
	return m.writeRecord(key, next)
}

// Allowed tells whether the Pod may use the present image, named as in the container, that the runtime calls id. held, which
// is called only if it matters, returns where the Pod's credentials for the image come from. If the files cannot be read
// there is an error, and the answer is no.
func (m *Manager) Allowed(image, id string, podSources func() []Source) (bool, error) {
	allowed, result, err := m.evaluate(image, id, podSources)
	m.deps.CountCheck(result)
	return allowed, err
}

func (m *Manager) evaluate(image, id string, podSources func() []Source) (allowed bool, result string, err error) {
	if m.policy.kind == kubeletconfig.NeverVerify {
		return true, ResultPolicyAllowed, nil
	}
	if err := m.load(); err != nil {
		return false, ResultError, err
	}
	record, pulled := m.lookup(image, id)
	if !pulled && m.policy.kind == kubeletconfig.NeverVerifyPreloadedImages {
		return true, ResultPolicyAllowed, nil // the way of most Pods: it reads no name
	}
	name := repositoryName(image)
	if !m.policy.requiresCredentials(name, pulled) {
		return true, ResultPolicyAllowed, nil
	}
	known, ok := credentialsFor(record, name)
	if ok && known.NodePodsAccessible {
		return true, ResultRecordFound, nil
	}
	if len(known.KubernetesSecrets) == 0 && len(known.KubernetesServiceAccounts) == 0 {
		return false, ResultMustAuthenticate, nil
	}
	for _, source := range podSources() {
		if !matchesAny(known, source) {
			continue
		}
		m.addRenewedSecret(name, id, known, source)
		return true, ResultRecordFound, nil
	}
	return false, ResultMustAuthenticate, nil
}

// lookup is the image's record, if it can be read, and whether the image was pulled by us at all.
func (m *Manager) lookup(image, id string) (record *kubeletconfig.ImagePulledRecord, pulled bool) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	if record, pulled = m.records[fileName(id)]; !pulled && len(m.intents) > 0 {
		_, pulled = m.intents[fileName(fullName(image))]
	}
	return record, pulled
}

// addRenewedSecret takes a Secret into the record that was found again under another name or with other content, so that the next
// change of it is recognised too. A record that has very many is left.
func (m *Manager) addRenewedSecret(name, id string, known kubeletconfig.ImagePullCredentials, source Source) {
	if source.Secret == nil || len(known.KubernetesSecrets) >= maxRenewedSecrets || containsSecret(known.KubernetesSecrets, *source.Secret) {
		return
	}
	m.fileMu.Lock()
	defer m.fileMu.Unlock()
	if err := m.updateRecord(name, id, &source); err != nil {
		m.deps.Logger.Warn("noting a renewed pull secret failed", "image", name, "error", err)
	}
}

// fullName is the image's name with its registry and with tag or digest, as the runtime lists it.
func fullName(image string) string {
	named, err := reference.ParseNormalizedNamed(image)
	if err != nil {
		return image // an id
	}
	if digested, ok := named.(reference.Canonical); ok { // beside which a tag says nothing
		return named.Name() + "@" + digested.Digest().String()
	}
	return reference.TagNameOnly(named).String()
}

// repositoryName is the image's name without tag and digest: what credentials are kept by. It is empty for one that is
// named by its id alone.
func repositoryName(image string) string {
	if isID(image) {
		return ""
	}
	named, err := reference.ParseNormalizedNamed(image)
	if err != nil {
		return ""
	}
	return named.Name()
}
