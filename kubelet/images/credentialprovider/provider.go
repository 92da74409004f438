package credentialprovider

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"time"

	"github.com/distribution/reference"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	configv1 "k8s.io/kubelet/config/v1"
	callv1 "k8s.io/kubelet/pkg/apis/credentialprovider/v1"
	"k8s.io/utils/clock"

	"github.com/berth-dev/berth/kubelet/images"
)

const (
	// runTimeout bounds one run of a program, which may ask a service far away.
	runTimeout = time.Minute
	// killTimeout is how long a program that was killed may keep its output open, by children of its own.
	killTimeout = time.Second
	// maxResponse and maxStderr bound what is kept of a program's output and of its complaints, in bytes.
	maxResponse, maxStderr = 1 << 20, 1 << 10

	requestKind, responseKind = "CredentialProviderRequest", "CredentialProviderResponse"
)

// request is what a program is asked.
type request struct {
	image reference.Named
	// account is nil if the program is not told of any.
	account     *corev1.ServiceAccount
	annotations map[string]string
	token       func(context.Context) (string, error)
}

// provider is one program. One run of it goes on at a time.
type provider struct {
	config  configv1.CredentialProvider
	program string
	env     []string
	clock   clock.PassiveClock
	lock    chan struct{} // holds a value while nobody asks; it guards cache
	cache   map[string]cacheEntry
}

// cacheEntry is an answer that may be used again.
type cacheEntry struct {
	logins  map[string]images.Login
	expires time.Time
}

func newProvider(config configv1.CredentialProvider, program string, env []string, clk clock.PassiveClock) *provider {
	p := &provider{
		config: config, program: program, env: slices.Clone(env), clock: clk, lock: make(chan struct{}, 1),
		cache: map[string]cacheEntry{},
	}
	for _, v := range config.Env {
		p.env = append(p.env, v.Name+"="+v.Value)
	}
	p.lock <- struct{}{}
	return p
}

func (p *provider) matches(image reference.Named) bool {
	return slices.ContainsFunc(p.config.MatchImages, func(pattern string) bool { return images.Matches(pattern, image) })
}

// logins are those of an answer that is still good, or of a new one.
func (p *provider) logins(ctx context.Context, req request) (map[string]images.Login, error) {
	select {
	case <-p.lock:
		defer func() { p.lock <- struct{}{} }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	now := p.clock.Now()
	account := accountCacheKey(req)
	for _, kind := range []callv1.PluginCacheKeyType{
		callv1.ImagePluginCacheKeyType, callv1.RegistryPluginCacheKeyType, callv1.GlobalPluginCacheKeyType,
	} {
		if found, ok := p.cache[account+imageCacheKey(kind, req.image)]; ok && now.Before(found.expires) {
			return found.logins, nil
		}
	}
	answer, err := p.run(ctx, req)
	if err != nil {
		return nil, err
	}
	found := cacheEntry{logins: loginsOf(answer), expires: now.Add(p.cacheTTL(answer))}
	for key, old := range p.cache {
		if !now.Before(old.expires) {
			delete(p.cache, key)
		}
	}
	// An answer that holds for one token only is of no use to the next question, which comes with a token of its own.
	token := req.account != nil && p.config.TokenAttributes.CacheType == configv1.TokenServiceAccountTokenCacheType
	if now.Before(found.expires) && !token {
		p.cache[account+imageCacheKey(answer.CacheKeyType, req.image)] = found
	}
	return found.logins, nil
}

func (p *provider) cacheTTL(answer *callv1.CredentialProviderResponse) time.Duration {
	if answer.CacheDuration != nil {
		return answer.CacheDuration.Duration
	}
	return p.config.DefaultCacheDuration.Duration
}

// accountCacheKey tells answers for service accounts apart.
func accountCacheKey(req request) string {
	if req.account == nil {
		return ""
	}
	// Of a map of strings, which cannot fail, and whose keys it orders.
	seen, _ := json.Marshal(req.annotations)
	return fmt.Sprintf("%s/%s/%s %s ", req.account.Namespace, req.account.Name, req.account.UID, seen)
}

// imageCacheKey is what an answer of that kind is kept for. No image's name holds the words in front.
func imageCacheKey(kind callv1.PluginCacheKeyType, image reference.Named) string {
	switch kind {
	case callv1.ImagePluginCacheKeyType:
		return "image " + image.Name()
	case callv1.RegistryPluginCacheKeyType:
		return "registry " + reference.Domain(image)
	}
	return "all"
}

// run runs the program.
func (p *provider) run(ctx context.Context, req request) (*callv1.CredentialProviderResponse, error) {
	request := callv1.CredentialProviderRequest{
		TypeMeta: metav1.TypeMeta{Kind: requestKind, APIVersion: p.config.APIVersion}, Image: req.image.Name(),
	}
	if req.account != nil {
		token, err := req.token(ctx)
		if err != nil {
			return nil, err
		}
		request.ServiceAccountToken, request.ServiceAccountAnnotations = token, req.annotations
	}
	input, err := json.Marshal(request)
	if err != nil {
		return nil, fmt.Errorf("word the request: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, runTimeout)
	defer cancel()
	answer, stderr := boundedBuffer{limit: maxResponse}, boundedBuffer{limit: maxStderr}
	cmd := exec.CommandContext(ctx, p.program, p.config.Args...)
	cmd.Env, cmd.Stdin, cmd.Stdout, cmd.Stderr, cmd.WaitDelay = p.env, bytes.NewReader(input), &answer, &stderr, killTimeout
	if err := cmd.Run(); err != nil {
		if ctx.Err() != nil {
			err = ctx.Err()
		}
		return nil, fmt.Errorf("run %s: %w: %q", p.program, err, strings.TrimSpace(stderr.buffer.String()))
	}
	return p.parseResponse(&answer)
}

// parseResponse reads what the program wrote. No error repeats it: it holds a password.
func (p *provider) parseResponse(answer *boundedBuffer) (*callv1.CredentialProviderResponse, error) {
	if answer.truncated {
		return nil, fmt.Errorf("its answer is longer than %d bytes", maxResponse)
	}
	var response callv1.CredentialProviderResponse
	if json.Unmarshal(answer.buffer.Bytes(), &response) != nil {
		return nil, errors.New("its answer is not JSON of a " + responseKind)
	}
	if response.Kind != responseKind || response.APIVersion != p.config.APIVersion {
		return nil, fmt.Errorf("it answered with a %q of %q: want a %s of %s", response.Kind, response.APIVersion,
			responseKind, p.config.APIVersion)
	}
	switch response.CacheKeyType {
	case callv1.ImagePluginCacheKeyType, callv1.RegistryPluginCacheKeyType, callv1.GlobalPluginCacheKeyType:
		return &response, nil
	}
	return nil, fmt.Errorf("it answered with cacheKeyType %q: want Image, Registry or Global", response.CacheKeyType)
}

// boundedBuffer is a buffer that drops what is beyond its limit.
type boundedBuffer struct {
	buffer    bytes.Buffer
	limit     int
	truncated bool
}

// Write implements io.Writer; it never fails, so that the program is not killed by its own words.
func (b *boundedBuffer) Write(data []byte) (int, error) {
	space := min(b.limit-b.buffer.Len(), len(data))
	b.truncated = b.truncated || space < len(data)
	b.buffer.Write(data[:space])
	return len(data), nil
}
