package main

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"math/big"
	"os"
	"path/filepath"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
)

// prepareCertificate writes a certificate for the webhook's Service into the directory and makes the API server trust it: it
// sets caBundle in both webhook configurations.
func prepareCertificate(ctx context.Context, client kubernetes.Interface, dir, host, configuration string) error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return fmt.Errorf("generate key: %w", err)
	}
	now := time.Now()
	template := &x509.Certificate{
		SerialNumber: big.NewInt(now.UnixNano()), Subject: pkix.Name{CommonName: host}, DNSNames: []string{host},
		NotBefore: now.Add(-time.Hour), NotAfter: now.Add(24 * time.Hour), BasicConstraintsValid: true, IsCA: true,
		KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	certificate, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		return fmt.Errorf("create certificate: %w", err)
	}
	keyBytes, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return fmt.Errorf("encode key: %w", err)
	}
	bundle := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: certificate})
	for name, data := range map[string][]byte{
		"tls.crt": bundle, "tls.key": pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: keyBytes}),
	} {
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o600); err != nil {
			return fmt.Errorf("write certificate: %w", err)
		}
	}
	patch, err := json.Marshal([]map[string]any{{"op": "add", "path": "/webhooks/0/clientConfig/caBundle", "value": bundle}})
	if err != nil {
		return fmt.Errorf("encode patch: %w", err)
	}
	registration := client.AdmissionregistrationV1()
	if _, err := registration.MutatingWebhookConfigurations().Patch(ctx, configuration, types.JSONPatchType, patch, metav1.PatchOptions{}); err != nil {
		return fmt.Errorf("set the webhook's CA: %w", err)
	}
	if _, err := registration.ValidatingWebhookConfigurations().Patch(ctx, configuration, types.JSONPatchType, patch, metav1.PatchOptions{}); err != nil {
		return fmt.Errorf("set the webhook's CA: %w", err)
	}
	return nil
}
