package explain

import (
	"fmt"
	"regexp"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/internal/podutil"
	"github.com/berth-dev/berth/timeline"
)

// imageFinding says why the last pull of the container's image failed. During a back-off the status does not have the
// error.
func (f *facts) imageFinding(what string, status corev1.ContainerStatus) *finding {
	waiting := status.State.Waiting
	stage := f.openStage(timeline.StageImage)
	pulls := waiting != nil && (waiting.Reason == "ErrImagePull" || waiting.Reason == "ImagePullBackOff")
	if !pulls && (waiting == nil || stage == nil || stage.Subject != status.Name) {
		return nil
	}
	image := status.Image
	if container, _ := podutil.FindContainer(&f.pod.Spec, status.Name); container != nil {
		image = container.Image
	}
	text, remedy := "", ""
	if failed := f.lastFailure(timeline.StageImage, status.Name); failed != nil {
		text, remedy = failed.Error, failed.Remedy
	}
	if event := f.lastEvent("Failed"); text == "" && event != nil && strings.Contains(event.Message, "pull image") {
		text = event.Message
	}
	text = trimPullError(text)
	switch {
	case text == "" && pulls:
		text = trimPullError(waiting.Message)
	case text == "" && stage != nil:
		return &finding{state: Waiting, reason: "PullingImage", since: stage.Start, heldBy: "container runtime",
			verdict: fmt.Sprintf("waiting %s: image %s of %s %s is being pulled", f.ago(stage.Start), image, what, status.Name)}
	}
	reason := "ErrImagePull"
	if waiting != nil && !pulls && waiting.Reason != "ContainerCreating" && waiting.Reason != "PodInitializing" {
		reason = waiting.Reason // InvalidImageName, ErrImageNeverPull
	}
	found := &finding{state: Waiting, reason: reason, since: f.pod.CreationTimestamp.Time, heldBy: "registry of " + image, remedy: remedy,
		verdict:  fmt.Sprintf("waiting %s: image %s of %s %s cannot be pulled: %s", f.ago(f.pod.CreationTimestamp.Time), image, what, status.Name, text),
		evidence: []Evidence{{"Pod/" + f.pod.Name, "spec.containers[" + status.Name + "].image", reason + ": " + text}},
		next:     f.kubectl("describe pod", f.pod.Name)}
	if reason != "ErrImagePull" {
		found.heldBy = "you"
	}
	f.checkPullSecrets(found, reason == "ErrImagePull" && isDenied(text, image))
	return found
}

// trimPullError returns the error of the registry or the network, without the wrapping of every failed pull.
func trimPullError(text string) string {
	for _, wrapping := range []string{"ErrImagePull: ", "rpc error: code = ", " desc = "} {
		if _, rest, found := strings.Cut(text, wrapping); found {
			text = rest
		}
	}
	return text
}

// deniedPattern matches the errors of registries that deny access.
var deniedPattern = regexp.MustCompile(`\b40[13]\b|unauthorized|authorization failed|denied|forbidden`)

// isDenied reports whether the error of a pull says that the registry denied access. Names in the error do not count: a
// port may be 40312.
func isDenied(text, image string) bool {
	text, image = strings.ToLower(text), strings.ToLower(image)
	_, repository, _ := strings.Cut(image, "/") // it stands in addresses too
	if cut := strings.LastIndexAny(repository, "@:"); cut >= 0 {
		repository = repository[:cut]
	}
	for _, name := range []string{image, repository} {
		if name != "" {
			text = strings.ReplaceAll(text, name, "")
		}
	}
	return deniedPattern.MatchString(text)
}

// checkPullSecrets sets the reason to the Pod's pull secrets if they do not exist or the registry rejected them.
func (f *facts) checkPullSecrets(found *finding, refused bool) {
	for _, secret := range f.pod.Spec.ImagePullSecrets {
		if f.missing["secret "+secret.Name] {
			found.reason, found.heldBy = "PullSecretMissing", "you"
			found.verdict += fmt.Sprintf("; its pull secret %s does not exist", secret.Name)
			found.evidence = append(found.evidence, Evidence{"Secret/" + secret.Name, "metadata.name", "missing"})
			found.next = f.kubectl("create secret docker-registry", secret.Name+" --docker-server=… --docker-username=… --docker-password=…")
			return
		}
	}
	if !refused {
		return
	}
	found.reason, found.remedy = "PullDenied", "correct the pull secret: its server, user and password must be the registry's"
	if len(f.pod.Spec.ImagePullSecrets) == 0 {
		found.verdict += "; the pod names no pull secret"
		found.remedy = "make a pull secret for the registry and name it in the pod's imagePullSecrets"
	}
}
