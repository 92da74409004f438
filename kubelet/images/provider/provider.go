package provider

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
	// callTimeout bounds one run of a program, which may ask a service far away.
	callTimeout = time.Minute
	// killTimeout is how long a program that was killed may keep its output open, by children of its own.
	killTimeout = time.Second
	// maxAnswer and maxWords bound what is kept of a program's output and of its complaints, in bytes.
	maxAnswer, maxWords = 1 << 20, 1 << 10

	requestKind, responseKind = "CredentialProviderRequest", "CredentialProviderResponse"
)

// question is what a program is asked.
type question struct {
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
	gate    chan struct{} // holds a value while nobody asks; it guards cache
	cache   map[string]kept
}

// kept is an answer that may be used again.
type kept struct {
	logins map[string]images.Login
	until  time.Time
}

func newProvider(config configv1.CredentialProvider, program string, env []string, clk clock.PassiveClock) *provider {
	p := &provider{
		config: config, program: program, env: slices.Clone(env), clock: clk, gate: make(chan struct{}, 1),
		cache: map[string]kept{},
	}
	for _, v := range config.Env {
		p.env = append(p.env, v.Name+"="+v.Value)
	}
	p.gate <- struct{}{}
	return p
}

func (p *provider) answersFor(image reference.Named) bool {
	return slices.ContainsFunc(p.config.MatchImages, func(pattern string) bool { return images.Matches(pattern, image) })
}

// logins are those of an answer that is still good, or of a new one.
func (p *provider) logins(ctx context.Context, ask question) (map[string]images.Login, error) {
	select {
	case <-p.gate:
		defer func() { p.gate <- struct{}{} }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	now := p.clock.Now()
	who := whose(ask)
	for _, kind := range []callv1.PluginCacheKeyType{
		callv1.ImagePluginCacheKeyType, callv1.RegistryPluginCacheKeyType, callv1.GlobalPluginCacheKeyType,
	} {
		if found, ok := p.cache[who+about(kind, ask.image)]; ok && now.Before(found.until) {
			return found.logins, nil
		}
	}
	answer, err := p.call(ctx, ask)
	if err != nil {
		return nil, err
	}
	found := kept{logins: loginsOf(answer), until: now.Add(p.lifetime(answer))}
	for key, old := range p.cache {
		if !now.Before(old.until) {
			delete(p.cache, key)
		}
	}
	// An answer that holds for one token only is of no use to the next question, which comes with a token of its own.
	token := ask.account != nil && p.config.TokenAttributes.CacheType == configv1.TokenServiceAccountTokenCacheType
	if now.Before(found.until) && !token {
		p.cache[who+about(answer.CacheKeyType, ask.image)] = found
	}
	return found.logins, nil
}

func (p *provider) lifetime(answer *callv1.CredentialProviderResponse) time.Duration {
	if answer.CacheDuration != nil {
		return answer.CacheDuration.Duration
	}
	return p.config.DefaultCacheDuration.Duration
}

// whose tells answers for service accounts apart.
func whose(ask question) string {
	if ask.account == nil {
		return ""
	}
	// Of a map of strings, which cannot fail, and whose keys it orders.
	seen, _ := json.Marshal(ask.annotations)
	return fmt.Sprintf("%s/%s/%s %s ", ask.account.Namespace, ask.account.Name, ask.account.UID, seen)
}

// about is what an answer of that kind is kept for. No image's name holds the words in front.
func about(kind callv1.PluginCacheKeyType, image reference.Named) string {
	switch kind {
	case callv1.ImagePluginCacheKeyType:
		return "image " + image.Name()
	case callv1.RegistryPluginCacheKeyType:
		return "registry " + reference.Domain(image)
	}
	return "all"
}

// call runs the program.
func (p *provider) call(ctx context.Context, ask question) (*callv1.CredentialProviderResponse, error) {
	request := callv1.CredentialProviderRequest{
		TypeMeta: metav1.TypeMeta{Kind: requestKind, APIVersion: p.config.APIVersion}, Image: ask.image.Name(),
	}
	if ask.account != nil {
		token, err := ask.token(ctx)
		if err != nil {
			return nil, err
		}
		request.ServiceAccountToken, request.ServiceAccountAnnotations = token, ask.annotations
	}
	input, err := json.Marshal(request)
	if err != nil {
		return nil, fmt.Errorf("word the request: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	answer, words := bounded{limit: maxAnswer}, bounded{limit: maxWords}
	cmd := exec.CommandContext(ctx, p.program, p.config.Args...)
	cmd.Env, cmd.Stdin, cmd.Stdout, cmd.Stderr, cmd.WaitDelay = p.env, bytes.NewReader(input), &answer, &words, killTimeout
	if err := cmd.Run(); err != nil {
		if ctx.Err() != nil {
			err = ctx.Err()
		}
		return nil, fmt.Errorf("run %s: %w: %q", p.program, err, strings.TrimSpace(words.buffer.String()))
	}
	return p.read(&answer)
}

// read reads what the program wrote. No error repeats it: it holds a password.
func (p *provider) read(answer *bounded) (*callv1.CredentialProviderResponse, error) {
	if answer.cut {
		return nil, fmt.Errorf("its answer is longer than %d bytes", maxAnswer)
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

// bounded is a buffer that drops what is beyond its limit.
type bounded struct {
	buffer bytes.Buffer
	limit  int
	cut    bool
}

// Write implements io.Writer; it never fails, so that the program is not killed by its own words.
func (b *bounded) Write(data []byte) (int, error) {
	room := min(b.limit-b.buffer.Len(), len(data))
	b.cut = b.cut || room < len(data)
	b.buffer.Write(data[:room])
	return len(data), nil
}
