package credentialprovider

import (
	"testing"
	"time"

	"github.com/distribution/reference"
	"github.com/stretchr/testify/require"
	callv1 "k8s.io/kubelet/pkg/apis/credentialprovider/v1"

	"github.com/berth-dev/berth/kubelet/images"
	"github.com/berth-dev/berth/kubelet/images/pullrecords"
)

// FuzzResponse parses arbitrary outputs of a provider's program: what is accepted is of the kind and version, and no error has the output.
func FuzzResponse(f *testing.F) {
	f.Add([]byte(`{"kind":"CredentialProviderResponse","apiVersion":"credentialprovider.kubelet.k8s.io/v1","cacheKeyType":"Image",` +
		`"cacheDuration":"1h","auth":{"*.example":{"username":"u","password":"p"}}}`))
	f.Add([]byte(`{"kind":"CredentialProviderResponse","apiVersion":"credentialprovider.kubelet.k8s.io/v1","cacheKeyType":"Global","cacheDuration":"-9999999h"}`))
	f.Add([]byte(`null`))
	named, err := reference.ParseNormalizedNamed("reg.example/app")
	require.NoError(f, err)
	f.Fuzz(func(t *testing.T, output []byte) {
		p := &provider{}
		p.config.APIVersion = callGroup + "v1"
		buffer := &boundedBuffer{limit: maxResponse}
		_, err := buffer.Write(output)
		require.NoError(t, err)
		response, err := p.parseResponse(buffer)
		if err != nil {
			if len(output) > 300 {
				require.NotContains(t, err.Error(), string(output))
			}
			return
		}
		require.Equal(t, responseKind, response.Kind)
		require.Contains(t, []callv1.PluginCacheKeyType{
			callv1.ImagePluginCacheKeyType, callv1.RegistryPluginCacheKeyType, callv1.GlobalPluginCacheKeyType,
		}, response.CacheKeyType)
		var logins images.Logins
		for key, auth := range response.Auth {
			logins.Add(key, images.PasswordCredential(auth.Username, auth.Password, pullrecords.Source{}))
		}
		require.LessOrEqual(t, len(logins.For(named)), len(response.Auth))
	})
}

// FuzzConfig decodes arbitrary configurations of providers: the program of each that is accepted is in the providers' directory.
func FuzzConfig(f *testing.F) {
	f.Add([]byte("apiVersion: kubelet.config.k8s.io/v1\nkind: CredentialProviderConfig\nproviders:\n- name: login\n  apiVersion: credentialprovider.kubelet.k8s.io/v1\n" +
		"  matchImages: ['*.example']\n  defaultCacheDuration: 1h\n  env: [{name: A, value: b}]\n"))
	f.Add([]byte(`{"apiVersion":"kubelet.config.k8s.io/v1","kind":"CredentialProviderConfig","providers":[{"name":"..","apiVersion":"credentialprovider.kubelet.k8s.io/v1",` +
		`"matchImages":["["],"defaultCacheDuration":"-1h","tokenAttributes":{"requireServiceAccount":false}}]}`))
	f.Add([]byte("a: &a [*a]"))
	named, err := reference.ParseNormalizedNamed("reg.example/app")
	require.NoError(f, err)
	f.Fuzz(func(t *testing.T, content []byte) {
		providers, err := decode(content)
		if err != nil || validate(providers) != nil {
			return
		}
		require.NotEmpty(t, providers)
		for i := range providers {
			p := &providers[i]
			require.NotContains(t, p.Name, "/")
			require.NotContains(t, []string{"", ".", ".."}, p.Name)
			require.GreaterOrEqual(t, p.DefaultCacheDuration.Duration, time.Duration(0))
			for _, pattern := range p.MatchImages {
				images.Matches(pattern, named)
			}
		}
	})
}
