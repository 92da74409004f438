#!/bin/sh
# Makes a project by kubebuilder's scaffold, with an API, a controller and webhooks, and runs its own suites with package berthtest in the
# place of envtest: on whole clusters, and with the API server alone. The import is all that changes in it. The suite of the webhooks has only
# examples in comments, without which it does not start, and gets one spec: an object that the webhooks admit.
# usage: hack/kubebuilder.sh BIN (root; make kubebuilder has built kubebuilder)
set -eu
[ $# -eq 1 ] || { echo "usage: $0 BIN" >&2; exit 2; }
bin=$(CDPATH='' cd -- "$1" && pwd)
cd "$(dirname "$0")/.."
tree=$PWD
work=$(mktemp -d)
trap 'chmod -R u+w "$work"; rm -rf "$work"' EXIT
trap 'exit 130' INT TERM
mkdir "$work/guestbook"
cd "$work/guestbook"
kubebuilder=$bin/thirdparty/kubebuilder
"$kubebuilder" init --domain example.test --repo example.test/guestbook --skip-go-version-check
"$kubebuilder" create api --group webapp --version v1 --kind Guestbook --resource --controller
"$kubebuilder" create webhook --group webapp --version v1 --kind Guestbook --defaulting --programmatic-validation
make manifests generate

cat >internal/webhook/v1/admission_test.go <<'EOF'
package v1

import (
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	webappv1 "example.test/guestbook/api/v1"
)

var _ = Describe("Guestbook", func() {
	It("is admitted by both webhooks, which no request passes without", func() {
		book := &webappv1.Guestbook{ObjectMeta: metav1.ObjectMeta{Name: "first", Namespace: "default"}}
		Expect(k8sClient.Create(ctx, book)).To(Succeed())
		Expect(k8sClient.Delete(ctx, book)).To(Succeed())
	})
})
EOF

suites=$(grep -rl '"sigs.k8s.io/controller-runtime/pkg/envtest"' --include='*_test.go' .)
# shellcheck disable=SC2086 # one argument for each file
sed -i 's,"sigs.k8s.io/controller-runtime/pkg/envtest",envtest "github.com/berth-dev/berth/berthtest",' $suites
go mod edit -require github.com/berth-dev/berth@v0.0.0 -replace "github.com/berth-dev/berth=$tree"
packages=$(for suite in $suites; do dirname "$suite"; done | sort -u)
for only in false true; do
	echo "suites of the project, BERTHTEST_API_ONLY=$only:"
	# shellcheck disable=SC2086 # one argument for each package
	BERTH_BIN=$bin BERTHTEST_API_ONLY=$only go test -mod=mod -count=1 -timeout 20m -v $packages >"$work/log" 2>&1 || { cat "$work/log" >&2; exit 1; }
	grep -E 'Ran [0-9]+ of|^ok' "$work/log"
done
