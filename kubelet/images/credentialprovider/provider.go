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
	// runTimeout bounds one run of a program, which may call a remote service.
	runTimeout = time.Minute
	// killTimeout is how long a killed program's children may keep its output open.
	killTimeout = time.Second
	// maxResponse and maxStderr bound what is kept of a program's output and error output, in bytes.
	maxResponse, maxStderr = 1 << 20, 1 << 10

	requestKind, responseKind = "CredentialProviderRequest", "CredentialProviderResponse"
)

// request is the input of one provider.
type request struct {
	image reference.Named
	// account is nil if the provider gets no token.
	account     *corev1.ServiceAccount
	annotations map[string]string
	token       func(context.Context) (string, error)
}

// provider is one program. It runs at most once at a time.
type provider struct {
	config  configv1.CredentialProvider
	program string
	env     []string
	clock   clock.PassiveClock
	onRun   func(provider string, took time.Duration, err error)
	lock    chan struct{} // has a value while unlocked; guards cache
	cache   map[string]cacheEntry
}

// cacheEntry is a response that may be used again until it expires.
type cacheEntry struct {
	logins  map[string]callv1.AuthConfig
	expires time.Time
}

func newProvider(config configv1.CredentialProvider, program string, env []string, deps *Deps) *provider {
	p := &provider{
		config: config, program: program, env: slices.Clone(env), clock: deps.Clock, onRun: deps.OnRun,
		lock: make(chan struct{}, 1), cache: map[string]cacheEntry{},
	}
	for _, v := range config.Env {
		p.env = append(p.env, v.Name+"="+v.Value)
	}
	p.lock <- struct{}{}
	return p
}

// matches reports whether the provider is responsible for the image.
func (p *provider) matches(image reference.Named) bool {
	return slices.ContainsFunc(p.config.MatchImages, func(pattern string) bool { return images.Matches(pattern, image) })
}

// logins returns the logins of a cached response, or of a new one.
func (p *provider) logins(ctx context.Context, req request) (map[string]callv1.AuthConfig, error) {
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
	response, err := p.run(ctx, req)
	if err != nil {
		return nil, err
	}
	found := cacheEntry{logins: response.Auth, expires: now.Add(p.cacheTTL(response))}
	for key, old := range p.cache {
		if !now.Before(old.expires) {
			delete(p.cache, key)
		}
	}
	if now.Before(found.expires) && !p.perToken(req) {
		p.cache[account+imageCacheKey(response.CacheKeyType, req.image)] = found
	}
	return found.logins, nil
}

// perToken reports whether a response to the request is for its token only. It cannot be reused: the next request has its own token.
func (p *provider) perToken(req request) bool {
	return req.account != nil && p.config.TokenAttributes.CacheType == configv1.TokenServiceAccountTokenCacheType
}

// cacheTTL returns how long the response may be used.
func (p *provider) cacheTTL(response *callv1.CredentialProviderResponse) time.Duration {
	if response.CacheDuration != nil {
		return response.CacheDuration.Duration
	}
	return p.config.DefaultCacheDuration.Duration
}

// accountCacheKey is the part of the cache key that identifies the service account.
func accountCacheKey(req request) string {
	if req.account == nil {
		return ""
	}
	// A map of strings always encodes, with sorted keys.
	annotations, _ := json.Marshal(req.annotations)
	return fmt.Sprintf("%s/%s/%s %s ", req.account.Namespace, req.account.Name, req.account.UID, annotations)
}

// imageCacheKey is the part of the cache key that identifies the images of the response. No image name contains its
// prefixes.
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
		var err error
		if request.ServiceAccountToken, err = req.token(ctx); err != nil {
			return nil, err
		}
		request.ServiceAccountAnnotations = req.annotations
	}
	input, err := json.Marshal(request)
	if err != nil {
		return nil, fmt.Errorf("encode the request: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, runTimeout)
	defer cancel()
	stdout, stderr := boundedBuffer{limit: maxResponse}, boundedBuffer{limit: maxStderr}
	cmd := exec.CommandContext(ctx, p.program, p.config.Args...)
	cmd.Env, cmd.Stdin, cmd.Stdout, cmd.Stderr, cmd.WaitDelay = p.env, bytes.NewReader(input), &stdout, &stderr, killTimeout
	began := p.clock.Now()
	err = cmd.Run()
	if ctx.Err() != nil && err != nil {
		err = ctx.Err()
	}
	p.onRun(p.config.Name, p.clock.Since(began), err)
	if err != nil {
		return nil, fmt.Errorf("run %s: %w: %q", p.program, err, strings.TrimSpace(stderr.buffer.String()))
	}
	response, err := p.parseResponse(&stdout)
	if err != nil {
		return nil, err
	}
	if token := request.ServiceAccountToken; token != "" && !p.perToken(req) && containsPassword(response.Auth, token) {
		return nil, fmt.Errorf("its response has the service account's token as a password, which is of one Pod, and with "+
			"tokenAttributes.cacheType %s other Pods of the account would use it: want cacheType %s",
			p.config.TokenAttributes.CacheType, configv1.TokenServiceAccountTokenCacheType)
	}
	return response, nil
}

func containsPassword(auths map[string]callv1.AuthConfig, password string) bool {
	for _, auth := range auths {
		if auth.Password == password {
			return true
		}
	}
	return false
}

// parseResponse parses the program's output. No error contains the output: it contains a password.
func (p *provider) parseResponse(stdout *boundedBuffer) (*callv1.CredentialProviderResponse, error) {
	if stdout.truncated {
		return nil, fmt.Errorf("its response is longer than %d bytes", maxResponse)
	}
	var response callv1.CredentialProviderResponse
	if json.Unmarshal(stdout.buffer.Bytes(), &response) != nil {
		return nil, errors.New("its response is not JSON of a " + responseKind)
	}
	if response.Kind != responseKind || response.APIVersion != p.config.APIVersion {
		return nil, fmt.Errorf("its response is a %q of %q: want a %s of %s", response.Kind, response.APIVersion,
			responseKind, p.config.APIVersion)
	}
	switch response.CacheKeyType {
	case callv1.ImagePluginCacheKeyType, callv1.RegistryPluginCacheKeyType, callv1.GlobalPluginCacheKeyType:
		return &response, nil
	}
	return nil, fmt.Errorf("its response has cacheKeyType %q: want Image, Registry or Global", response.CacheKeyType)
}

// boundedBuffer is a buffer that drops what exceeds its limit.
type boundedBuffer struct {
	buffer    bytes.Buffer
	limit     int
	truncated bool
}

// Write implements io.Writer. It never fails, so that output beyond the limit does not kill the program.
func (b *boundedBuffer) Write(data []byte) (int, error) {
	space := min(b.limit-b.buffer.Len(), len(data))
	b.truncated = b.truncated || space < len(data)
	b.buffer.Write(data[:space])
	return len(data), nil
}
