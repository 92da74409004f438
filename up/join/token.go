package join

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/cluster-bootstrap/token/api"
	"k8s.io/cluster-bootstrap/token/util"
)

// Group is the group of the tokens that CreateToken creates: its members may request a node's certificate, which the
// cluster signs. The control plane's RBAC names it, too.
const Group = "system:bootstrappers:berth"

// Token is a bootstrap token as the cluster stores it, without its secret.
type Token struct {
	// ID is the first part of the token, which is not secret.
	ID string `json:"id"`
	// Expires is when the token becomes invalid; nil for never.
	Expires *metav1.Time `json:"expires,omitempty"`
	// CanJoin reports whether a machine can join with it.
	CanJoin bool `json:"canJoin"`
	// Description is for people.
	Description string `json:"description,omitempty"`
}

// CheckToken returns an error if the text is not a bootstrap token. The error does not contain it.
func CheckToken(token string) error {
	if !util.IsValidBootstrapToken(token) {
		return fmt.Errorf("not a bootstrap token: want 6 characters, a dot, and 16 characters, each a digit or a small letter")
	}
	return nil
}

// CreateToken creates a token with which machines can join until it expires, and returns it with its secret. It never
// expires if ttl is 0.
func CreateToken(ctx context.Context, client kubernetes.Interface, now time.Time, ttl time.Duration, description string) (string, error) {
	token, err := util.GenerateBootstrapToken()
	if err != nil {
		return "", fmt.Errorf("create a token: %w", err)
	}
	id, secret, _ := strings.Cut(token, ".")
	data := map[string]string{
		api.BootstrapTokenIDKey: id, api.BootstrapTokenSecretKey: secret, api.BootstrapTokenExtraGroupsKey: Group,
		api.BootstrapTokenUsageAuthentication: "true",
	}
	if description != "" {
		data[api.BootstrapTokenDescriptionKey] = description
	}
	if ttl > 0 {
		data[api.BootstrapTokenExpirationKey] = now.Add(ttl).UTC().Format(time.RFC3339)
	}
	_, err = client.CoreV1().Secrets(metav1.NamespaceSystem).Create(ctx, &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: util.BootstrapTokenSecretName(id)}, Type: corev1.SecretTypeBootstrapToken, StringData: data,
	}, metav1.CreateOptions{})
	if err != nil {
		return "", fmt.Errorf("create a token: %w", err)
	}
	return token, nil
}

// ListTokens returns the cluster's tokens, those that expire first at the beginning.
func ListTokens(ctx context.Context, client kubernetes.Interface) ([]Token, error) {
	secrets, err := client.CoreV1().Secrets(metav1.NamespaceSystem).List(ctx, metav1.ListOptions{
		FieldSelector: "type=" + string(corev1.SecretTypeBootstrapToken),
	})
	if err != nil {
		return nil, fmt.Errorf("list the tokens: %w", err)
	}
	tokens := make([]Token, 0, len(secrets.Items))
	for _, secret := range secrets.Items {
		data := func(key string) string { return string(secret.Data[key]) }
		token := Token{
			ID: data(api.BootstrapTokenIDKey), Description: data(api.BootstrapTokenDescriptionKey),
			CanJoin: data(api.BootstrapTokenUsageAuthentication) == "true" &&
				slices.Contains(strings.Split(data(api.BootstrapTokenExtraGroupsKey), ","), Group),
		}
		if at, err := time.Parse(time.RFC3339, data(api.BootstrapTokenExpirationKey)); err == nil {
			token.Expires = &metav1.Time{Time: at}
		}
		tokens = append(tokens, token)
	}
	slices.SortFunc(tokens, func(a, b Token) int {
		switch {
		case a.Expires == nil && b.Expires == nil:
			return strings.Compare(a.ID, b.ID)
		case a.Expires == nil:
			return 1
		case b.Expires == nil:
			return -1
		}
		return a.Expires.Compare(b.Expires.Time)
	})
	return tokens, nil
}

// DeleteToken deletes the token with that ID; a whole token is accepted, too. Machines that have joined are not affected.
func DeleteToken(ctx context.Context, client kubernetes.Interface, token string) error {
	id, _, whole := strings.Cut(token, ".")
	if !util.IsValidBootstrapTokenID(id) || whole && !util.IsValidBootstrapToken(token) {
		return fmt.Errorf("not the ID of a token: want 6 characters, each a digit or a small letter; `berth token list` lists them")
	}
	err := client.CoreV1().Secrets(metav1.NamespaceSystem).Delete(ctx, util.BootstrapTokenSecretName(id), metav1.DeleteOptions{})
	if apierrors.IsNotFound(err) {
		return fmt.Errorf("token %s does not exist: `berth token list` lists those that do", id)
	}
	if err != nil {
		return fmt.Errorf("delete token %s: %w", id, err)
	}
	return nil
}
