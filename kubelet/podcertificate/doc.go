// Package podcertificate obtains the certificates of projected volumes: it makes a key for each, requests a certificate with
// a PodCertificateRequest, waits for its signer, and replaces the key and the certificate before the certificate expires.
//
// Keys are kept in memory only: a kubelet that starts again makes new ones. A denied or failed request is final for its Pod.
package podcertificate
