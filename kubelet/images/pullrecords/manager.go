package pullrecords

import (
	"errors"
	"log/slog"
	"sync"
	"time"

	kubeletconfig "k8s.io/kubelet/config/v1beta1"
	"k8s.io/utils/clock"

	"github.com/berth-dev/berth/kubelet/images/imagename"
)

// Config are the values of a Manager.
type Config struct {
	// Dir is the parent directory of pulling/ and pulled/. It is created with the first file.
	Dir string
	// Policy decides which present images need no credentials; NeverVerifyPreloadedImages if empty.
	Policy kubeletconfig.ImagePullCredentialsVerificationPolicy
	// Allowlist are the images of NeverVerifyAllowlistedImages: names without tag and digest, or with "/*" as their
	// last part.
	Allowlist []string
}

// Deps are what a Manager works with. All of them may be nil.
type Deps struct {
	// CountCheck, if set, is called with the result of each check of a present image: one of the Result constants.
	CountCheck func(result string)
	Logger     *slog.Logger
	Clock      clock.PassiveClock
}

// Results of a check of a present image, as values of upstream's metric.
const (
	ResultPolicyAllowed    = "credentialPolicyAllowed"
	ResultRecordFound      = "credentialRecordFound"
	ResultMustAuthenticate = "mustAuthenticate"
	ResultError            = "error"
)

// Source is where a credential comes from, as far as it differs between Pods. The zero Source is open to all Pods of
// the node: a login of the node, or none.
type Source struct {
	Secret         *kubeletconfig.ImagePullSecret
	ServiceAccount *kubeletconfig.ImagePullServiceAccount
}

// isPublic reports whether the source is open to all Pods of the node.
func (s Source) isPublic() bool { return s.Secret == nil && s.ServiceAccount == nil }

// Manager manages the pull records. It is safe for concurrent use.
type Manager struct {
	config Config
	deps   Deps
	policy policy

	// fileMu serialises writers of files. It is locked before mu and is not needed by checks.
	fileMu sync.Mutex

	mu      sync.RWMutex // guards all below
	loaded  time.Time    // zero until the files were read
	intents map[string]*intent
	// records are the images that were pulled. A nil record is one that cannot be read. Records are replaced, never
	// modified.
	records map[string]*kubeletconfig.ImagePulledRecord
}

// intent is a pull that was begun.
type intent struct {
	active int // running pulls of this process
	// uncertain is whether an earlier pull may have succeeded unnoticed: that of a process that died, or one whose
	// outcome is unknown. A later failure then proves nothing.
	uncertain bool
	// imported is the id of an image that had the name before such a pull, and that no kubelet had pulled; empty for none. It needs no
	// credentials still.
	imported string
}

// New returns a Manager. It reads nothing yet.
func New(deps Deps, config Config) (*Manager, error) {
	if config.Dir == "" {
		return nil, errors.New("pullrecords: Config.Dir is required")
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

// BeginPull records that a pull of the image, named as in the container, is about to begin. The caller must then call
// exactly one of PullSucceeded, PullFailed and PullOutcomeUnknown. After an error the pull must not begin: if this
// process died during the pull, the image would look preloaded, and every Pod could use it.
func (m *Manager) BeginPull(image string) error {
	if err := m.load(); err != nil {
		return err
	}
	full := imagename.Full(image)
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

// PullSucceeded records that the image was pulled with a credential of the source, and that its id is id.
func (m *Manager) PullSucceeded(image, id string, source Source) {
	key := fileName(imagename.Full(image))
	m.fileMu.Lock()
	defer m.fileMu.Unlock()
	if err := m.updateRecord(mappingKey(image), id, &source); err != nil {
		// The intent is kept, so that the next process counts the image as pulled too.
		m.deps.Logger.Warn("failed to record the credentials of an image pull; Pods may have to pull it again",
			"image", image, "error", err)
		m.decrement(key)
		return
	}
	m.finishPull(key)
}

// PullFailed records that a pull of the image failed.
func (m *Manager) PullFailed(image string) {
	m.fileMu.Lock()
	defer m.fileMu.Unlock()
	key := fileName(imagename.Full(image))
	if m.isUncertain(key) {
		m.decrement(key)
		return
	}
	m.finishPull(key)
}

// PullOutcomeUnknown records that the outcome of a pull is unknown: the runtime may have the image, or may still get
// it. The next Reconcile resolves it. before is the id of the image that had the name before BeginPull, or empty.
func (m *Manager) PullOutcomeUnknown(image, before string) {
	m.fileMu.Lock()
	defer m.fileMu.Unlock()
	key := fileName(imagename.Full(image))
	others := m.decrement(key)
	m.mu.Lock()
	defer m.mu.Unlock()
	found := m.intents[key]
	if found == nil {
		return
	}
	_, pulled := m.records[fileName(before)]
	switch {
	case others > 0 || pulled, found.uncertain && found.imported != before:
		found.imported = "" // it may be of another pull
	default:
		found.imported = before
	}
	found.uncertain = true
}

// isUncertain reports whether an earlier pull of the intent may have succeeded.
func (m *Manager) isUncertain(key string) bool {
	m.mu.RLock()
	defer m.mu.RUnlock()
	found := m.intents[key]
	return found != nil && found.uncertain
}

// finishPull removes one active pull from the intent, and the intent with its last one. The caller holds fileMu.
func (m *Manager) finishPull(key string) {
	if m.decrement(key) > 0 {
		return
	}
	if err := m.remove(intentsDir, key); err != nil {
		m.deps.Logger.Warn("failed to remove image pull intent", "error", err)
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.intents, key)
}

// decrement removes one active pull from the intent and returns the number of those left.
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

// updateRecord adds the source to the image's record under the mapping's key; without a source it only ensures that there is a record. A record that
// stays as it is counts as updated, too: a list of images requested before must not remove it. The caller holds fileMu.
func (m *Manager) updateRecord(key, id string, source *Source) error {
	file := fileName(id)
	m.mu.Lock()
	old, known := m.records[file]
	m.mu.Unlock()
	if known && old == nil {
		if err := m.keepDamaged(file); err != nil {
			return err
		}
	}
	next, changed := mergeSource(old, key, id, source)
	next.LastUpdatedTime.Time = m.deps.Clock.Now()
	m.mu.Lock()
	m.records[file] = next // valid for this process even if writing it fails
	m.mu.Unlock()
	if !changed {
		return nil
	}
	return m.writeRecord(file, next)
}

// Allowed reports whether the Pod may use the present image, named as in the container, whose id is id. podSources,
// which is called only if needed, returns the sources of the Pod's credentials for the image. If the files cannot be
// read it returns false and an error.
func (m *Manager) Allowed(image, id string, podSources func() []Source) (bool, error) {
	allowed, result, err := m.evaluate(image, id, podSources)
	m.deps.CountCheck(result)
	return allowed, err
}

// evaluate is Allowed without the counter; result is one of the Result constants.
func (m *Manager) evaluate(image, id string, podSources func() []Source) (allowed bool, result string, err error) {
	if m.policy.kind == kubeletconfig.NeverVerify {
		return true, ResultPolicyAllowed, nil
	}
	if err := m.load(); err != nil {
		return false, ResultError, err
	}
	record, pulled := m.lookup(image, id)
	if !pulled && m.policy.kind == kubeletconfig.NeverVerifyPreloadedImages {
		return true, ResultPolicyAllowed, nil // the common case: it parses no name
	}
	if !m.policy.requiresCredentials(imagename.Repository(image), pulled) {
		return true, ResultPolicyAllowed, nil
	}
	known := credentialsFor(record, image)
	if known.NodePodsAccessible {
		return true, ResultRecordFound, nil
	}
	if len(known.KubernetesSecrets) == 0 && len(known.KubernetesServiceAccounts) == 0 {
		return false, ResultMustAuthenticate, nil
	}
	for _, source := range podSources() {
		if !matchesAny(known, source) {
			continue
		}
		m.addRenewedSecret(image, id, known, source)
		return true, ResultRecordFound, nil
	}
	return false, ResultMustAuthenticate, nil
}

// lookup returns the image's record, nil if it cannot be read, and whether a kubelet has pulled the image at all.
func (m *Manager) lookup(image, id string) (record *kubeletconfig.ImagePulledRecord, pulled bool) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	if record, pulled = m.records[fileName(id)]; !pulled && len(m.intents) > 0 {
		found := m.intents[fileName(imagename.Full(image))]
		pulled = found != nil && (found.active > 0 || found.imported != id)
	}
	return record, pulled
}

// addRenewedSecret adds a Secret that matched under another name or with other content to the record, so that its next
// change is recognised too. It does nothing if the record has very many.
func (m *Manager) addRenewedSecret(image, id string, known kubeletconfig.ImagePullCredentials, source Source) {
	if source.Secret == nil || len(known.KubernetesSecrets) >= maxRenewedSecrets || containsSecret(known.KubernetesSecrets, *source.Secret) {
		return
	}
	m.fileMu.Lock()
	defer m.fileMu.Unlock()
	if err := m.updateRecord(mappingKey(image), id, &source); err != nil {
		m.deps.Logger.Warn("failed to record a renewed image pull Secret", "image", image, "error", err)
	}
}
