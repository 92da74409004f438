# Berth's own commands. `make` alone lists them.
SHELL := /bin/sh
.DEFAULT_GOAL := help

BIN := $(CURDIR)/bin
GO ?= go
VERSION ?= $(shell ./hack/version.sh)
COMMIT ?= $(shell git rev-parse --short HEAD 2>/dev/null)
LDFLAGS := -s -w -X github.com/berth-dev/berth/version.Berth=$(VERSION) -X github.com/berth-dev/berth/version.Commit=$(COMMIT)

# A recipe that runs until it is stopped ends with exec: make passes SIGTERM on to the recipe's own process alone.

# apt packages that building (runc's seccomp), running (Pods' networking, file systems of disks) and testing (strace, the tests' shell) need.
PACKAGES := gcc libc6-dev libseccomp-dev pkg-config iproute2 iptables nftables strace busybox-static e2fsprogs xfsprogs

.PHONY: help
help: ## list these commands
	@awk -F ':.*## ' '/^[a-z%-]+:.*## /{printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: deps
deps: ## install what building and running need (apt; does nothing where all is installed)
	@./hack/install.sh $(PACKAGES)

.PHONY: build
build: deps ## build everything into bin/ (about 6 minutes the first time, seconds after)
	@mkdir -p $(BIN)/images
	@echo "[1/5] berth"
	@$(GO) build -trimpath -ldflags "$(LDFLAGS)" -o $(BIN)/berth ./cmd/berth
	@for i in isolate supervisor; do $(GO) build -trimpath -ldflags "-s -w" -o $(BIN)/berth-$$i ./cmd/berth-$$i || exit 1; done
	@echo "[2/5] image: demo"
	@CGO_ENABLED=0 $(GO) build -trimpath -ldflags "-s -w" -o $(BIN)/images/demo ./images/demo
	@echo "[3/5] containers: containerd, shims, runc, CNI plugins, pause"
	@./containers/build.sh $(BIN)
	@echo "[4/5] dns: CoreDNS"
	@cd dns && $(GO) build -trimpath -ldflags "-s -w" -o $(BIN)/berth-dns .
	@echo "[5/5] control plane: etcd, API server, controller manager, scheduler, kube-proxy; kubectl"
	@cd controlplane && $(GO) build -trimpath -ldflags "$$(./ldflags.sh)" -o $(BIN)/berth-controlplane ./cmd/berth-controlplane
	@cd controlplane && $(GO) build -trimpath -ldflags "$$(./ldflags.sh)" -o $(BIN)/kubectl k8s.io/kubernetes/cmd/kubectl
	@echo "built: $(BIN)"

PREFIX ?= /usr/local

.PHONY: install
install: build ## install below PREFIX (/usr/local): berth, and kubectl-why for `kubectl why`
	@mkdir -p $(PREFIX)/bin $(PREFIX)/lib/berth
	@cd $(BIN) && cp -R --remove-destination berth berth-controlplane berth-dns berth-isolate berth-supervisor kubectl containerd containerd-shim-runc-v2 containerd-shim-berth-v1 runc cni images $(PREFIX)/lib/berth/
	@for name in berth kubectl-why; do ln -sf ../lib/berth/berth $(PREFIX)/bin/$$name; done
	@echo "installed: $(PREFIX)/bin/berth, $(PREFIX)/bin/kubectl-why"

.PHONY: run
run: build ## start a real Kubernetes on this machine with the demo on it (root; Ctrl-C stops it)
	@exec $(BIN)/berth up --demo $(ARGS)

.PHONY: panics
panics: build ## inject 1,000 panics into a cluster under load (root; PANICS=N for another number)
	@mkdir -p $(BIN)/panics
	@for f in berth-controlplane berth-dns berth-isolate berth-supervisor kubectl containerd containerd-shim-runc-v2 containerd-shim-berth-v1 runc cni images; do ln -sfn ../$$f $(BIN)/panics/$$f; done
	@$(GO) build -trimpath -tags panicinjection -ldflags "$(LDFLAGS)" -o $(BIN)/panics/berth ./cmd/berth
	@$(GO) test -tags integration,panics -count=1 -timeout 60m -v -run '^TestPanicsHarmNothingElse$$' ./test/integration

.PHONY: corrupt
corrupt: build ## start a cluster on each state file damaged in each way, and then on pairs: STARTS=2000 (root; 10 s a start; SEED=… FROM=… go on)
	@$(GO) test -tags integration -count=1 -timeout 0 -v -run '^TestStartsOnDamagedFiles$$' ./test/integration -damage-starts $(or $(STARTS),2000) \
		-seed $(or $(SEED),0) -damage-from $(or $(FROM),0) -damage-only '$(ONLY)' -keep-logs $(BIN)/logs

.PHONY: syscall-faults
syscall-faults: build ## fail each system call of the writers of state files, the CSI driver and a Pod with each error that it may return, of starts one in 50 (root; hours)
	@./hack/install.sh strace
	@$(GO) test -count=1 -timeout 8h -v -run '^TestSystemCallsMayFail$$' $$(grep -rl --include=*_test.go '^func TestSystemCallsMayFail' . | xargs -n1 dirname | sort) -fault-every 1
	@$(GO) test -tags integration -count=1 -timeout 24h -v -run '^TestSystemCallsOfA(Pod|Start)MayFail$$' ./test/integration -fault-every 1 -start-fault-step $(or $(STARTSTEP),50)

.PHONY: thirdparty
thirdparty: ## build or unpack the programs that tests run: the sidecars of CSI, a provisioner, Helm, an operator, Prometheus, upstream's device plugin and DRA driver
	@mkdir -p $(BIN)/thirdparty
	@! command -v apt-get >/dev/null || ./hack/unpack.sh prometheus $(BIN)/thirdparty/prometheus
	@cd test/thirdparty/csi && $(GO) build -trimpath -ldflags "-s -w" -o $(BIN)/thirdparty/ tool
	@cd test/thirdparty/helm && $(GO) build -trimpath -ldflags "-s -w" -o $(BIN)/thirdparty/ tool
	@cd test/thirdparty/localpath && CGO_ENABLED=0 $(GO) build -trimpath -ldflags "-s -w" -o $(BIN)/thirdparty/ tool
	@cd conformance && $(GO) build -trimpath -o $(BIN)/thirdparty/sample-device-plugin k8s.io/kubernetes/test/images/sample-device-plugin
	@cd conformance && $(GO) build -trimpath -o $(BIN)/thirdparty/dra-test-driver k8s.io/kubernetes/test/e2e/dra/test-driver
	@cd test/commits && CGO_ENABLED=0 $(GO) build -trimpath -ldflags "-s -w" -o $(BIN)/thirdparty/commits .
	@cd test/operator && CGO_ENABLED=0 $(GO) build -trimpath -ldflags "-s -w" -o $(BIN)/thirdparty/operator .

.PHONY: last-release
last-release: ## build the programs of the last release, from which a test upgrades a cluster, into bin/last-release
	@./hack/last-release.sh $(BIN)/last-release

.PHONY: test
test: build thirdparty last-release ## run every test: vet, unit tests with the race detector, real clusters, a part of upstream's suite (root)
	@./hack/test.sh

.PHONY: unit
unit: ## run the unit tests alone
	@$(GO) test ./...

.PHONY: picture
picture: build ## draw the picture of the README anew: the start of the demo's Pod, on a cluster of its own (root)
	@./hack/picture.sh $(BIN) docs/pod.svg

.PHONY: page-script
page-script: ## bundle the script of the page: page/script into page/static/app.js
	@cd test/page && $(GO) test -count=1 -run '^TestTheBundleIsMadeOfItsSource$$' . -update

.PHONY: page
page: build ## show the page in a browser, on a real cluster: screenshots in bin/page (root; needs chromium and npm)
	@./hack/install.sh chromium fonts-dejavu-core
	@command -v npm >/dev/null || ./hack/install.sh npm
	@mkdir -p $(BIN)/npm && cp test/page/package.json test/page/package-lock.json test/page/.npmrc $(BIN)/npm/ && cd $(BIN)/npm && npm ci --ignore-scripts --no-audit --no-fund --silent
	@cd test/page && $(GO) test -tags browser -count=1 -timeout 30m -v . -bin $(BIN) -out $(BIN)/page $(ARGS)

.PHONY: integration
integration: build thirdparty last-release ## run the tests on a real cluster alone (root)
	@$(GO) test -tags integration -count=1 -timeout 60m ./test/integration/... ./up/containerd/... $(ARGS)

.PHONY: envtest
envtest: build ## run controller-runtime's own suites with berthtest.Environment, the API server alone and whole clusters: ARGS='-packages client' (root)
	@cd test/envtest && $(GO) run . -bin $(BIN) -api-only $(ARGS) && $(GO) run . -bin $(BIN) $(ARGS)

.PHONY: kubebuilder
kubebuilder: build ## make a project by kubebuilder, and run its suites with berthtest in the place of envtest (root)
	@cd test/thirdparty/kubebuilder && $(GO) build -trimpath -ldflags "-s -w" -o $(BIN)/thirdparty/ tool
	@./hack/kubebuilder.sh $(BIN)

.PHONY: kill-tests
kill-tests: build ## kill a Go test with a cluster at 100 random moments, KILLS=…: nothing may be left (root; 10 minutes)
	@$(GO) test -tags integration -count=1 -timeout 2h -v -run '^TestKilledTestLeavesNothing$$' ./berthtest -kills $(or $(KILLS),100)

.PHONY: envtest-upstream
envtest-upstream: build ## run the same suites with envtest's own etcd and kube-apiserver (10 minutes to build these the first time)
	@mkdir -p $(BIN)/envtest
	@cd conformance && for p in k8s.io/kubernetes/cmd/kube-apiserver:kube-apiserver go.etcd.io/etcd/server/v3:etcd; do \
		./build-static.sh $(BIN)/envtest/$${p#*:} $${p%:*} "$$(../controlplane/ldflags.sh)" || exit 1; done
	@ln -sf ../kubectl $(BIN)/envtest/kubectl
	@cd test/envtest && $(GO) run . -upstream $(BIN)/envtest $(ARGS)

.PHONY: neighbours
neighbours: build ## run bad neighbours on a real cluster: fork bomb, floods, dead file server and more (root; 6 minutes)
	@$(GO) test -tags integration -count=1 -timeout 30m -run "^Test(More)?BadNeighbours$$" -v ./test/integration -more-neighbours $(ARGS)

.PHONY: kills
kills: build ## kill components of a cluster and shims at random while 500 Pods start and end, PODS=… RUNTIME=… (root; half an hour)
	@BERTH_TEST_RUNTIME=$(RUNTIME) $(GO) test -tags integration -count=1 -timeout 90m -run "^TestKills$$" ./test/integration -v -pods $(or $(PODS),500) -at-once 12 \
		-keep-logs $(BIN)/logs

.PHONY: critest
critest: build ## run upstream's tests of container runtimes on containerd with each runtime, FOCUS=… (root)
	@mkdir -p $(BIN)/thirdparty
	@cd test/thirdparty/critest && CGO_ENABLED=0 $(GO) test -c -vet=off -trimpath -o $(BIN)/thirdparty/critest sigs.k8s.io/cri-tools/cmd/critest
	@$(GO) test -tags integration -count=1 -timeout 60m -v -run '^TestCritest$$' ./up/containerd -critest $(BIN)/thirdparty/critest \
		-critest-web "$$(cd test/thirdparty/critest && $(GO) run . | tr '\n' ' ')" -critest-focus '$(FOCUS)'

.PHONY: leaks
leaks: build ## run EXECS=10000 commands and PODS=1000 Pods over CRI and look for what they leave, RUNTIME=… (root; half an hour)
	@BERTH_TEST_RUNTIME=$(RUNTIME) $(GO) test -tags integration -count=1 -timeout 120m -v -run '^TestManyExecsAndPodsLeaveNothing$$' ./up/containerd \
		-leak-execs $(or $(EXECS),10000) -leak-pods $(or $(PODS),1000)

.PHONY: faults
faults: build ## run Pods with a failing runtime and without an API server, PODS=… AWAY=2m RUNTIME=… (root)
	@BERTH_TEST_RUNTIME=$(RUNTIME) $(GO) test -tags integration -count=1 -timeout 60m -run "^(TestRuntimeFaults|TestAPIServerAway)$$" ./test/integration -v \
		-pods $(or $(PODS),400) -away $(or $(AWAY),2m) -keep-logs $(BIN)/logs

.PHONY: soak
soak: build ## cause FAULTS=10000 faults of all kinds at random; goes on where it was interrupted (root; bin/soak.json)
	@$(GO) test -tags integration -count=1 -timeout 0 -v -run '^TestSoak$$' ./test/integration -soak-faults $(or $(FAULTS),10000) \
		-soak-state $(BIN)/soak.json -seed $(or $(SEED),0) -keep-logs $(BIN)/logs

ROUNDS ?= 500
.PHONY: volume-rounds
volume-rounds: build ## kill kubelet, driver, containerd and controllers while Pods use volumes: ROUNDS=500 (root; 5 s a round)
	@$(GO) test -tags integration -count=1 -timeout 8h -run TestVolumesSurviveWhateverDies -v ./test/integration -volume-rounds $(ROUNDS)

.PHONY: postgres-rounds
postgres-rounds: build thirdparty ## kill everything below a PostgreSQL, restore its snapshots, expand its disk: ROUNDS=200 (root; 15 s a round; SEED=… FROM=… go on)
	@$(GO) test -tags integration -count=1 -timeout 0 -run '^TestPostgresLosesNothing$$' -v ./test/integration -postgres-rounds $(if $(filter file,$(origin ROUNDS)),200,$(ROUNDS)) \
		-seed $(or $(SEED),0) -postgres-from $(or $(FROM),0) -keep-logs $(BIN)/logs $(ARGS)

# In a mount namespace of its own: other namespaces would get copies of its mounts, which keep a disk mounted.
.PHONY: postgres-moves
postgres-moves: build thirdparty ## move a PostgreSQL between two nodes that are drained, lose their power, are cut off: MOVES=30 (root; a minute a move)
	@unshare --mount sh -c 'mount --make-rshared / && exec "$$@"' sh $(GO) test -tags integration -count=1 -timeout 0 \
		-run '^(TestPostgresIsNeverMountedTwice|TestWitnessSeesDoubleMounts)$$' -v ./test/integration -postgres-moves $(or $(MOVES),30) \
		-seed $(or $(SEED),0) -postgres-from $(or $(FROM),0) -keep-logs $(BIN)/logs $(ARGS)

# What the virtual machine of the tests is made and run with.
VM_PACKAGES := qemu-system-x86 qemu-utils mmdebstrap distro-info-data e2fsprogs

.PHONY: vm
vm: ## boot a Debian or Ubuntu machine with systemd and run RUN='…' in it: ARGS='-release noble -cpus 8 -numa 2' (root)
	@./hack/install.sh $(VM_PACKAGES)
	@cd vm && $(GO) build -trimpath -o $(BIN)/vm-run ./cmd/vm
	@exec $(BIN)/vm-run -cache $(BIN)/vm $(ARGS) -- "$$RUN"

.PHONY: vm-test
vm-test: build ## run Berth's tests that need systemd or cgroup v2 in virtual machines (root; half an hour without KVM)
	@./hack/install.sh $(VM_PACKAGES)
	@cd vm && $(GO) test -tags vm -count=1 -timeout 90m -v -skip '^(TestKubeadm|TestPostgresSurvivesPowerCuts)$$' . $(ARGS)

.PHONY: vm-postgres
vm-postgres: build thirdparty ## cut the power of a virtual machine while a PostgreSQL commits in it: CUTS=10 (root; 3 to 5 minutes a cut without KVM)
	@./hack/install.sh $(VM_PACKAGES)
	@cd vm && $(GO) test -tags vm -count=1 -timeout 0 -v -run '^TestPostgresSurvivesPowerCuts$$' . -power-cuts $(or $(CUTS),10) -power-seed $(or $(SEED),0) $(ARGS)

.PHONY: vm-power-cuts
vm-power-cuts: build ## cut the power of a machine CUTS=200 times at random moments; goes on where it was interrupted (root; bin/power-cuts.json)
	@./hack/install.sh $(VM_PACKAGES)
	@cd vm && $(GO) test -tags vm -count=1 -timeout 0 -v -run '^TestPowerCuts$$' . -cuts $(or $(CUTS),200) -cuts-state $(BIN)/power-cuts.json $(ARGS)

.PHONY: vm-power-moments
vm-power-moments: build ## start a cluster on what a power cut leaves of a recorded disk at MOMENTS=200 moments: SEED=… DIR=… keeps the recording (root; 10 s each)
	@RUN=true $(MAKE) --no-print-directory vm
	@cd vm && $(GO) test -tags vm -c -o $(BIN)/vm.test . && exec ../hack/netns.sh $(BIN)/vm.test -test.timeout 0 -test.v \
		-test.run '^TestPowerCutAtAnyMoment$$' -moments $(or $(MOMENTS),200) -moments-load 8m -moments-seed $(or $(SEED),0) \
		-moments-dir "$(abspath $(DIR))" $(ARGS)

.PHONY: vm-short
vm-short: ## run the part of vm-test that CI runs: a kubelet under systemd (root; after make build; 10 minutes at most)
	@./hack/vm-short.sh $(VM_PACKAGES)

.PHONY: vm-kubeadm
vm-kubeadm: build ## build a cluster of two virtual machines with kubeadm and our kubelet (root; half an hour without KVM)
	@./hack/install.sh $(VM_PACKAGES)
	@./conformance/build-kubeadm.sh $(BIN)
	@cd vm && $(GO) test -tags vm -count=1 -timeout 120m -v -run '^TestKubeadm$$' . $(ARGS)

.PHONY: conformance
conformance: build ## run upstream's e2e suite: FOCUS=… SKIP=… PARALLEL=… (root; see conformance/README.md)
	@FOCUS="$(FOCUS)" SKIP="$(SKIP)" PARALLEL="$(PARALLEL)" LIST="$(LIST)" DRIVER="$(DRIVER)" MOCK="$(MOCK)" exec ./conformance/run.sh $(ARGS)

.PHONY: conformance-machine
conformance-machine: build ## run upstream's storage specs that stop the kubelet in a virtual machine: DRIVER=berth-loop FOCUS=… (root; an hour without KVM)
	@./hack/install.sh $(VM_PACKAGES)
	@cd vm && $(GO) build -trimpath -o $(BIN)/vm-run ./cmd/vm
	@FOCUS="$(FOCUS)" SKIP="$(SKIP)" PARALLEL="$(PARALLEL)" LIST="$(LIST)" DRIVER="$(DRIVER)" RELEASE="$(RELEASE)" exec ./conformance/run-machine.sh $(ARGS)

.PHONY: conformance-all
conformance-all: build ## run all 446 [Conformance] specs of upstream's suite on two nodes: PARALLEL=… (root; 35 minutes)
	@ALL=1 PARALLEL="$(PARALLEL)" exec ./conformance/run.sh $(ARGS)

.PHONY: judge-resources
judge-resources: ## compare decisions on CPUs and memory with upstream's own managers: MACHINES=400 random ones from SEED=0 (RECORD=1 keeps them for make test)
	@mkdir -p $(BIN)/conformance
	@cd conformance && $(GO) build -trimpath -o $(BIN)/conformance/resourcejudge ./cmd/resourcejudge
	@$(GO) test -tags judge -count=1 -timeout 60m -v -run '^TestDecisionsEqualUpstreams$$' ./kubelet/resources -judge $(BIN)/conformance/resourcejudge -judge-lives $(or $(MACHINES),400) \
		-judge-seed $(or $(SEED),0) $(if $(RECORD),-judge-record)

.PHONY: conformance-node
conformance-node: build ## run upstream's suite of one node in a virtual machine: KUBELET=upstream RUNTIME=berth NATIVE=1 NUMA=1 SMT=1 SWAP=1 QUOTA=1 RELEASE=noble FOCUS=… (root)
	@[ -n "$(NATIVE)" ] || { ./hack/install.sh $(VM_PACKAGES) && cd vm && $(GO) build -trimpath -o $(BIN)/vm-run ./cmd/vm; }
	@KUBELET="$(KUBELET)" RUNTIME="$(RUNTIME)" NATIVE="$(NATIVE)" NUMA="$(NUMA)" SMT="$(SMT)" SWAP="$(SWAP)" QUOTA="$(QUOTA)" RELEASE="$(RELEASE)" FOCUS="$(FOCUS)" SKIP="$(SKIP)" PARALLEL="$(PARALLEL)" LIST="$(LIST)" \
		LIMIT="$(LIMIT)" AGAIN="$(AGAIN)" exec ./conformance/run-node.sh $(ARGS)

.PHONY: bench
bench: build ## measure ours and upstream's side by side, write docs/benchmarks.md (root; 40 minutes; ARGS='-rounds 3 -budget 20m')
	@./bench/build.sh $(BIN) && cd bench && exec $(BIN)/bench/bench -bin $(BIN) $(ARGS)

bench-%: build ## measure one of them, make bench-pod for instance
	@./bench/build.sh $(BIN) && cd bench && exec $(BIN)/bench/bench -bin $(BIN) $(ARGS) $*

LIVES ?= 500
.PHONY: resource-lives
resource-lives: build thirdparty ## kill kubelet, plugin, driver and containerd while Pods have CPUs, devices, claims: LIVES=500 (root; 2 s a Pod)
	@$(GO) test -tags integration -count=1 -timeout 8h -run '^TestResourcesSurviveWhateverDies$$' -v ./test/integration -resource-lives $(LIVES)

.PHONY: exchange-kubelets
exchange-kubelets: build thirdparty ## replace our kubelet by upstream's and back, on a node in use (root; 2 minutes)
	@mkdir -p $(BIN)/conformance
	@cd conformance && $(GO) build -trimpath -ldflags "$$(../controlplane/ldflags.sh)" -o $(BIN)/conformance/kubelet k8s.io/kubernetes/cmd/kubelet
	@$(GO) test -tags integration -count=1 -timeout 30m -run '^TestKubeletsAreExchanged$$' -v ./test/integration -upstream-kubelet $(BIN)/conformance/kubelet

.PHONY: lint
lint: ## check format and vet, and golangci-lint where it is installed
	@unformatted=$$(gofmt -l $$(git ls-files '*.go')); [ -z "$$unformatted" ] || { echo "run gofmt -w on:"; echo "$$unformatted"; exit 1; }
	@$(GO) vet ./...
	@if command -v golangci-lint >/dev/null; then golangci-lint run ./...; fi

.PHONY: sbom
sbom: build ## list what all programs are made of, with licences: bin/sbom.spdx.json, bin/THIRD_PARTY_NOTICES.txt
	@$(GO) run ./hack/notices -bin $(BIN) -version $(VERSION) -sbom $(BIN)/sbom.spdx.json -notices $(BIN)/THIRD_PARTY_NOTICES.txt
	@echo "written: $(BIN)/sbom.spdx.json, $(BIN)/THIRD_PARTY_NOTICES.txt"

# Packages: for this machine's processor what make build made, for another one what hack/cross.sh builds.
HOST_ARCH := $(shell $(GO) env GOARCH)
ARCH ?= $(HOST_ARCH)

.PHONY: dist
dist: build ## make packages: bin/dist/berth_….deb, .rpm, .tar.gz, SHA256SUMS (ARCH=arm64 builds for that processor; root)
	@if [ $(ARCH) = $(HOST_ARCH) ]; then ./hack/dist.sh $(BIN) $(ARCH) $(VERSION) $(BIN)/dist; else \
		./hack/cross.sh $(ARCH) $(BIN)/$(ARCH) $(VERSION) $(COMMIT) && ./hack/dist.sh $(BIN)/$(ARCH) $(ARCH) $(VERSION) $(BIN)/dist; fi

.PHONY: dist-check
dist-check: ## check the packages of make dist: contents, and installed on a small Debian; and start each program, ARCH=arm64 by qemu (root)
	@if [ $(ARCH) = $(HOST_ARCH) ]; then ./hack/smoke.sh $(BIN) $(ARCH) $(VERSION); else ./hack/smoke.sh $(BIN)/$(ARCH) $(ARCH) $(VERSION); fi
	@./hack/dist-check.sh $(BIN)/dist $(ARCH)

.PHONY: package-life
package-life: build ## install, restart, kill, reboot, upgrade, remove and purge the package on a Debian with systemd in namespaces (root; cgroup v1)
	@./hack/package-life.sh $(BIN) $(BIN)/package-life

.PHONY: reproducible
reproducible: ## build all programs twice, in two directories with empty caches, and compare (half an hour; committed files only): ARGS='berth containers'
	@./hack/reproducible.sh $(ARGS)

.PHONY: vulncheck
vulncheck: ## look for known vulnerabilities in the code that is called (STRICT=1: fail if their database cannot be reached)
	@./hack/vulncheck.sh

FUZZTIME ?= 10m
.PHONY: fuzz
fuzz: ## fuzz every parser of foreign input for FUZZTIME=10m each, or those below BELOW=./imagestore
	@FUZZTIME="$(FUZZTIME)" ./hack/fuzz.sh $(BELOW)

.PHONY: fuzz-corpus
fuzz-corpus: ## add inputs of the last make fuzz that run new code to the corpora in testdata/fuzz, which go test tries (BELOW=./imagestore)
	@./hack/fuzz-corpus.sh $(BELOW)

.PHONY: clean
clean: ## delete what was built
	@rm -rf $(BIN)
