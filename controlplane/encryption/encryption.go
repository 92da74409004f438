// Package encryption keeps the key with which the API server encrypts Secrets in the store, and encrypts those that an older version has
// written in plain.
//
// The key is made at the first start. It is kept twice, each copy with a checksum: when one is damaged or missing, it is made again from
// the other.
package encryption

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/pager"
	"k8s.io/klog/v2"

	"github.com/berth-dev/berth/controlplane/atomicfile"
	"github.com/berth-dev/berth/controlplane/config"
	"github.com/berth-dev/berth/controlplane/contain"
)

// keySize is the size of a key of secretbox (XSalsa20 and Poly1305).
const keySize = 32

// rewriters is how many Secrets are rewritten at the same time.
const rewriters = 8

// kind is the first word in the file of a key.
const kind = "secretbox"

// configuration makes the API server encrypt what it writes, and read what is encrypted or in plain.
const configuration = `apiVersion: apiserver.config.k8s.io/v1
kind: EncryptionConfiguration
resources:
- resources: [secrets]
  providers:
  - secretbox:
      keys:
      - {name: %s, secret: %s}
  - identity: {}
`

// ErrKeyLost is returned if Secrets are encrypted and no copy of the key is left.
var ErrKeyLost = errors.New("the key that encrypts the cluster's Secrets is lost")

// Prepare makes the key of a cluster that has none, repairs its copies, and writes the API server's configuration. encrypted says that
// the cluster had a key before.
func Prepare(c *config.Config, encrypted bool) error {
	if err := atomicfile.Dir(c.PKIDir()); err != nil {
		return err
	}
	key, err := loadKey(c, encrypted)
	if err != nil {
		return err
	}
	text := fmt.Sprintf(configuration, key.name(), base64.StdEncoding.EncodeToString(key[:]))
	files := map[string]string{c.EncryptionConfigFile(): text}
	for _, path := range c.SecretsKeyFiles() {
		files[path] = key.encode()
	}
	for path, text := range files {
		if have, err := atomicfile.Read(path); err == nil && string(have) == text {
			continue // a write would wait for the disk
		}
		if err := atomicfile.Write(path, []byte(text)); err != nil {
			return err
		}
	}
	return nil
}

// Args are the flags of kube-apiserver that turn encryption on.
func Args(c *config.Config) []string {
	return []string{"--encryption-provider-config=" + c.EncryptionConfigFile()}
}

// loadKey returns the key of the first readable copy, or a new one. It sets damaged copies aside.
func loadKey(c *config.Config, encrypted bool) (key secretKey, err error) {
	found := false
	for _, path := range c.SecretsKeyFiles() {
		data, err := atomicfile.Read(path)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if atomicfile.IsPassing(err) {
			return key, fmt.Errorf("read the key that encrypts Secrets: %w", err)
		}
		one, decodeErr := decode(data)
		if err = errors.Join(err, decodeErr); err != nil {
			atomicfile.SetAside(path, err, "the copy of the key is made again from the other one")
			continue
		}
		if !found {
			key, found = one, true
		} else if one != key {
			atomicfile.SetAside(path, errors.New("it is another key than the other copy"), "the copy is made again from the other one")
		}
	}
	if found {
		return key, nil
	}
	hasData := exists(filepath.Join(c.EtcdDataDir(), "member"))
	if encrypted && hasData {
		return key, fmt.Errorf("%w: restore %s from a backup, or start over with --reset, which deletes the cluster", ErrKeyLost,
			strings.Join(c.SecretsKeyFiles(), " or "))
	}
	if hasData { // before the key: a crash in between does not forget the Secrets in plain
		if err := atomicfile.Write(c.PlainSecretsFile(), []byte("Secrets in the store may be in plain\n")); err != nil {
			return key, err
		}
	}
	if _, err := rand.Read(key[:]); err != nil {
		return key, fmt.Errorf("create the key that encrypts Secrets: %w", err)
	}
	return key, nil
}

// IsRewriteDue reports whether the store may have Secrets in plain.
func IsRewriteDue(c *config.Config) bool { return exists(c.PlainSecretsFile()) }

// Rewrite writes every Secret once more, unchanged, which encrypts it. It is complete or is due again at the next start.
func Rewrite(ctx context.Context, client kubernetes.Interface, c *config.Config) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(rewriters)
	list := pager.New(func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
		return client.CoreV1().Secrets(metav1.NamespaceAll).List(ctx, options)
	})
	count := 0
	err := list.EachListItem(ctx, metav1.ListOptions{}, func(object runtime.Object) error {
		secret := object.(*corev1.Secret)
		count++
		group.Go(contain.Func("encryption.rewrite", func() error {
			_, err := client.CoreV1().Secrets(secret.Namespace).Update(ctx, secret, metav1.UpdateOptions{})
			if apierrors.IsNotFound(err) || apierrors.IsConflict(err) { // it was deleted or written since
				return nil
			}
			if err != nil {
				return fmt.Errorf("encrypt Secret %s/%s: %w", secret.Namespace, secret.Name, err)
			}
			return nil
		}))
		return ctx.Err()
	})
	if err = errors.Join(group.Wait(), err); err != nil {
		return err
	}
	if err := os.Remove(c.PlainSecretsFile()); err != nil {
		return fmt.Errorf("record that all Secrets are encrypted: %w", err)
	}
	klog.V(0).InfoS("Encrypted the Secrets of the store", "count", count)
	return nil
}

type secretKey [keySize]byte

// name is the name of the key beside each Secret in the store.
func (k secretKey) name() string { return "key-" + k.checksum()[:8] }

func (k secretKey) checksum() string {
	sum := sha256.Sum256(k[:])
	return hex.EncodeToString(sum[:])
}

// encode returns the content of the file of a key.
func (k secretKey) encode() string {
	return strings.Join([]string{kind, base64.StdEncoding.EncodeToString(k[:]), k.checksum()}, " ") + "\n"
}

func decode(data []byte) (key secretKey, err error) {
	fields := strings.Fields(string(data))
	if len(fields) != 3 || fields[0] != kind {
		return key, fmt.Errorf("it is no key of %s", kind)
	}
	raw, err := base64.StdEncoding.DecodeString(fields[1])
	if err != nil || len(raw) != keySize {
		return key, errors.New("the key is not complete")
	}
	if key = secretKey(raw); key.checksum() != fields[2] {
		return key, errors.New("the key does not match its checksum")
	}
	return key, nil
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}
