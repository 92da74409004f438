package ledger

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
	// Allowed are the images that NeverVerifyAllowlistedImages speaks of: names without tag or digest, or with "/*" as
	// their last part.
	Allowed []string
}

// Deps are what a Ledger needs from others. All may be nil.
type Deps struct {
	// Count, if set, is told what came of each question about a present image: one of the Result constants.
	Count  func(result string)
	Logger *slog.Logger
	Clock  clock.PassiveClock
}

// What a question about a present image may end in, in the words of upstream's metric.
const (
	ResultAllowed = "credentialPolicyAllowed"
	ResultFound   = "credentialRecordFound"
	ResultMust    = "mustAuthenticate"
	ResultError   = "error"
)

// Source is where a credential comes from, as far as it tells Pods apart. The zero Source is open to all Pods of the
// node: a login of the node itself, or none at all.
type Source struct {
	Secret         *kubeletconfig.ImagePullSecret
	ServiceAccount *kubeletconfig.ImagePullServiceAccount
}

func (s Source) open() bool { return s.Secret == nil && s.ServiceAccount == nil }

// Ledger is the memory. It is safe for concurrent use.
type Ledger struct {
	cfg    Config
	deps   Deps
	policy policy

	// disk keeps writers of files apart. It is taken before mu, and is not needed for questions.
	disk sync.Mutex

	mu      sync.RWMutex // guards all below
	loaded  time.Time    // zero until the files were read
	intents map[string]*intent
	// records are the images that were pulled. A nil record is one that cannot be read. Records are replaced, never
	// changed.
	records map[string]*kubeletconfig.ImagePulledRecord
}

// intent is a pull that was begun, by the name of its file.
type intent struct {
	pulls int // those of this process that go on
	// doubt says that an earlier one may have brought the image without our knowing: that of a process which died, or one
	// of unknown end. A failure after it proves nothing.
	doubt bool
}

// New makes a Ledger. It reads nothing yet.
func New(cfg Config, deps Deps) (*Ledger, error) {
	if cfg.Dir == "" {
		return nil, errors.New("image ledger: Config.Dir is empty")
	}
	p, err := newPolicy(cfg.Policy, cfg.Allowed)
	if err != nil {
		return nil, err
	}
	if deps.Count == nil {
		deps.Count = func(string) {}
	}
	if deps.Logger == nil {
		deps.Logger = slog.New(slog.DiscardHandler)
	}
	if deps.Clock == nil {
		deps.Clock = clock.RealClock{}
	}
	return &Ledger{
		cfg: cfg, deps: deps, policy: p,
		intents: map[string]*intent{}, records: map[string]*kubeletconfig.ImagePulledRecord{},
	}, nil
}

// Begin notes that a pull of the image, named as in the container, is about to begin. After it exactly one of Pulled,
// Failed and Unknown is called. On an error the pull must not begin: if this process died then, the image would look as if it
// had been on the node from the start, and anybody could use it.
func (l *Ledger) Begin(image string) error {
	if err := l.load(); err != nil {
		return err
	}
	full := fullName(image)
	key := fileName(full)
	l.disk.Lock()
	defer l.disk.Unlock()
	l.mu.Lock()
	found := l.intents[key]
	if found == nil {
		found = &intent{}
		l.intents[key] = found
	}
	found.pulls++
	first := found.pulls == 1
	l.mu.Unlock()
	if !first {
		return nil
	}
	if err := l.writeIntent(key, full); err != nil {
		l.end(key)
		return err
	}
	return nil
}

// Pulled notes that the image was pulled with a credential from the source, and that the runtime calls it id.
func (l *Ledger) Pulled(image, id string, source Source) {
	key := fileName(fullName(image))
	l.disk.Lock()
	defer l.disk.Unlock()
	if err := l.grant(familiarName(image), id, &source); err != nil {
		// The intent stays, so that the image counts as pulled by us in the next process too.
		l.deps.Logger.Warn("noting with what an image was pulled failed: Pods may have to pull it again",
			"image", image, "error", err)
		l.keep(key)
		return
	}
	l.end(key)
}

// Failed notes that a pull of the image came to nothing.
func (l *Ledger) Failed(image string) {
	l.disk.Lock()
	defer l.disk.Unlock()
	key := fileName(fullName(image))
	if l.doubted(key) {
		l.keep(key)
		return
	}
	l.end(key)
}

// Unknown notes that what came of a pull of the image is not known: the runtime may have it, or get it yet. The next
// list of images tells.
func (l *Ledger) Unknown(image string) {
	l.disk.Lock()
	defer l.disk.Unlock()
	key := fileName(fullName(image))
	l.keep(key)
	l.mu.Lock()
	defer l.mu.Unlock()
	if found := l.intents[key]; found != nil {
		found.doubt = true
	}
}

func (l *Ledger) doubted(key string) bool {
	l.mu.RLock()
	defer l.mu.RUnlock()
	found := l.intents[key]
	return found != nil && found.doubt
}

// end takes one pull off an intent, and the intent away with the last. The caller holds disk.
func (l *Ledger) end(key string) {
	if l.keep(key) > 0 {
		return
	}
	if err := l.remove(pulling, key); err != nil {
		l.deps.Logger.Warn("removing the note of a pull that has ended failed", "error", err)
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.intents, key)
}

// keep takes one pull off an intent, and tells how many go on.
func (l *Ledger) keep(key string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	found := l.intents[key]
	if found == nil {
		return 0
	}
	found.pulls = max(found.pulls-1, 0)
	return found.pulls
}

// grant adds what a pull has shown to the image's record; without a source it only makes sure that there is one. The
// caller holds disk.
func (l *Ledger) grant(name, id string, source *Source) error {
	key := fileName(id)
	l.mu.Lock()
	old := l.records[key]
	next, changed := merge(old, name, id, source)
	if !changed {
		l.mu.Unlock()
		return nil
	}
	next.LastUpdatedTime.Time = l.deps.Clock.Now()
	l.records[key] = next // even if it cannot be written, it holds as long as this process
	l.mu.Unlock()
	return l.writeRecord(key, next)
}

// May tells whether the Pod may use the present image, named as in the container, that the runtime calls id. held, which
// is called only if it matters, returns where the Pod's credentials for the image come from. If the files cannot be read
// there is an error, and the answer is no.
func (l *Ledger) May(image, id string, held func() []Source) (bool, error) {
	may, result, err := l.judge(image, id, held)
	l.deps.Count(result)
	return may, err
}

func (l *Ledger) judge(image, id string, held func() []Source) (may bool, result string, err error) {
	if l.policy.kind == kubeletconfig.NeverVerify {
		return true, ResultAllowed, nil
	}
	if err := l.load(); err != nil {
		return false, ResultError, err
	}
	record, pulled := l.find(image, id)
	if !pulled && l.policy.kind == kubeletconfig.NeverVerifyPreloadedImages {
		return true, ResultAllowed, nil // the way of most Pods: it reads no name
	}
	name := familiarName(image)
	if !l.policy.verify(name, pulled) {
		return true, ResultAllowed, nil
	}
	known, ok := credentialsFor(record, name)
	if ok && known.NodePodsAccessible {
		return true, ResultFound, nil
	}
	if len(known.KubernetesSecrets) == 0 && len(known.KubernetesServiceAccounts) == 0 {
		return false, ResultMust, nil
	}
	for _, source := range held() {
		if !holds(known, source) {
			continue
		}
		l.renew(name, id, known, source)
		return true, ResultFound, nil
	}
	return false, ResultMust, nil
}

// find is the image's record, if it can be read, and whether the image was pulled by us at all.
func (l *Ledger) find(image, id string) (record *kubeletconfig.ImagePulledRecord, pulled bool) {
	l.mu.RLock()
	defer l.mu.RUnlock()
	if record, pulled = l.records[fileName(id)]; !pulled && len(l.intents) > 0 {
		_, pulled = l.intents[fileName(fullName(image))]
	}
	return record, pulled
}

// renew takes a Secret into the record that was found again under another name or with other content, so that the next
// change of it is recognised too. A record that has very many is left.
func (l *Ledger) renew(name, id string, known kubeletconfig.ImagePullCredentials, source Source) {
	if source.Secret == nil || len(known.KubernetesSecrets) >= maxRenewed || has(known.KubernetesSecrets, *source.Secret) {
		return
	}
	l.disk.Lock()
	defer l.disk.Unlock()
	if err := l.grant(name, id, &source); err != nil {
		l.deps.Logger.Warn("noting a renewed pull secret failed", "image", name, "error", err)
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

// familiarName is the image's name without tag and digest: what credentials are kept by. It is empty for one that is
// named by its id alone.
func familiarName(image string) string {
	if isID(image) {
		return ""
	}
	named, err := reference.ParseNormalizedNamed(image)
	if err != nil {
		return ""
	}
	return named.Name()
}
