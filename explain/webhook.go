package explain

import (
	"context"
	"fmt"
	"regexp"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// webhookError matches the API server's error of a request that an admission webhook would have to allow and cannot be
// called, if a Service of the cluster serves the webhook: its name, and the Service's name and namespace.
var webhookError = regexp.MustCompile(`failed calling webhook "([^"]+)".*https://([a-z0-9-]+)\.([a-z0-9-]+)\.svc[:/]`)

// reasonWebhookFailed is the reason where an object is not created because an admission webhook cannot be called.
const reasonWebhookFailed = "WebhookFailed"

// adoptWebhook explains a failure that is due to an admission webhook by the Service of the webhook.
func (q *builder) adoptWebhook(ctx context.Context, found *finding) {
	match := webhookError.FindStringSubmatch(found.verdict)
	if match == nil || found.state == Ready || found.reason == reasonWebhookFailed {
		return
	}
	webhook, name, namespace := match[1], match[2], match[3]
	found.reason, found.heldBy = reasonWebhookFailed, fmt.Sprintf("service %s/%s of webhook %s", namespace, name, webhook)
	found.next = fmt.Sprintf("berth explain svc/%s -n %s", name, namespace)
	found.remedy = "repair the Service, or remove the webhook's configuration if its program is no longer used"
	explanation, err := explainService(ctx, q.src, namespace, name)
	switch {
	case apierrors.IsNotFound(err):
		found.verdict += fmt.Sprintf("; service %s/%s, which serves webhook %s, does not exist", namespace, name, webhook)
		found.next = "berth kubectl get validatingwebhookconfigurations,mutatingwebhookconfigurations"
	case err != nil:
		q.addUnseen("service "+namespace+"/"+name, err)
	default:
		found.verdict += fmt.Sprintf("; service %s/%s, which serves webhook %s, %s", namespace, name, webhook, explanation.Verdict)
		found.evidence = append(found.evidence, explanation.Evidence...)
	}
}
