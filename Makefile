# make run     the whole product on this machine          make test          what every change must pass (about 8 minutes)
# make vscode  VS Code in the browser as one more template of make run (a build of some minutes, once)
# make check   lint, types, import contracts              make test-faults   kills, two storms, databases and API servers that go away
# make test-nightly   storms, floods, matrices, fuzzing, known faults in a copy, make flakes, the Manager on real control planes
# make bench   figures against the peers (bench-kubernetes: in containers)       make clean      remove what was built (var/, your state, stays)
# make kubernetes        build a real Kubernetes for this machine, once      make run CLUSTER=kubernetes   the product on it
# make test-kubernetes   contract, journeys and failures there (as root)   make test-kubernetes CLUSTER=kubeconfig   on $KUBECONFIG's
# make sbom    what the product's images hold of PyPI and npm, as CycloneDX, in build/sbom
# make images  container images for Kubernetes, with docker, podman or buildah: BUILDER, PREFIX, TAG, BASE, NAMES

PYTHON ?= python3
PORT ?= 8000
SSH_PORT ?= 2222
STATE ?= var
WORKERS ?= 3
VENV := .venv
BIN := $(VENV)/bin
PEOPLE := $(VENV)/python
CHP := hub_config/images/proxy
PIP := $(BIN)/pip install --quiet --quiet --disable-pip-version-check --constraint constraints.txt

# What the tests find on this machine; a test that skips because something is missing fails here. KUBECONFIG would point the contract suite at another cluster: only on purpose.
TEST_ENV := env -u KUBECONFIG DLSPAWNER_TESTS_COMPLETE=1 PATH="$$PATH:$(CURDIR)/$(VENV)/debian/usr/bin:/usr/sbin" \
	DLSPAWNER_KUBECTL=$(CURDIR)/$(VENV)/debian/usr/bin/kubectl

# A real cluster for one command: started and stopped again, or the one of $KUBECONFIG (DLSPAWNER_IMAGE_PREFIX and
# DLSPAWNER_IMAGE_TAG say what its images are called, DLSPAWNER_KUBECTL which kubectl is not the one of PATH; Debian's is too
# old for a real cluster; tests that need a cluster of ours skip there).
THEIRS = KUBECONFIG="$$KUBECONFIG" DLSPAWNER_KUBECTL="$$(command -v "$${DLSPAWNER_KUBECTL:-kubectl}")" DLSPAWNER_TESTS_COMPLETE=
ON_KUBERNETES = $(if $(filter kubeconfig,$(CLUSTER)),$(THEIRS),$(BIN)/python -m tests.kubernetes $(FOR_TESTS) with)
# Other people's SSH clients, OpenSSH's own tests, and what of their libraries a small machine lacks; for tests/component/gateway/clients.
SSH_CLIENTS := putty-tools dropbear-bin libtomcrypt1 libtommath1 lftp sshfs libfuse3-3 openssh-tests
# What stands in front of them, and of the pages; for tests/component/gateway/test_haproxy.py and manager/test_ingress.py.
BALANCER := haproxy liblua5.3-0 libopentracing-c-wrapper0 libopentracing1
# For tests/component/manager/test_ldap.py.
DIRECTORY := slapd libltdl7 libodbc2 libwrap0

# An ordinary user, as far as the kernel is concerned, wherever the checkout and the cache lie.
WITHOUT_ROOT := unshare --user --map-user=1000 --map-group=1000

.PHONY: run vscode test test-faults test-nightly test-kubernetes test-on-control-planes flakes kubernetes check format bench bench-kubernetes simulations reference labextension tour images sbom clean

ifeq ($(CLUSTER),kubernetes)
run: $(VENV)/.tests
ifneq ($(origin PORT) $(origin SSH_PORT),file file)
	@echo "PORT and SSH_PORT are for make run alone: on Kubernetes the ports are 30080 and 30022."; exit 2
endif
	@exec $(BIN)/python -m tests.kubernetes --state $(STATE)/kubernetes --keep with $(BIN)/python -m tests.kubernetes.demo
else
run: $(VENV)/.jobs
	@exec $(BIN)/python -m dlspawner.local --state $(STATE) --port $(PORT) --ssh-port $(SSH_PORT)
endif

test: $(VENV)/.tests
	$(TEST_ENV) $(BIN)/pytest -n $(WORKERS) --dist loadfile -m "not slow and not longer and not kubernetes"

test-faults: $(VENV)/.tests
	$(TEST_ENV) $(BIN)/pytest -n $(WORKERS) --dist loadfile -m "faults and not kubernetes"

# Tests that pass by luck: slow commits, a busy loop beside them, three orders.
FLAKES := $(addprefix tests/component/manager/test_,approval_decisions.py approval_rest.py dispatcher.py notices_rest.py preemption.py termination.py queue_decisions.py explain.py)
flakes: $(VENV)/.tests
	@python3 -c 'while True: pass' & busy=$$!; trap "kill $$busy" EXIT; for seed in 1 2 3; do \
	  $(TEST_ENV) DLSPAWNER_TESTS_SLOW_COMMITS=0.25 $(BIN)/pytest -n $(WORKERS) --dist loadfile --reruns 0 --randomly-seed=$$seed \
	    -m "not slow and not longer and not kubernetes" $(FLAKES) || exit 1; done

test-nightly: $(VENV)/.tests $(VENV)/.vscode
	@.ci/packages torchrun=python3-torch
	$(TEST_ENV) $(BIN)/pytest -n $(WORKERS) --dist loadfile -m "(slow or longer) and not faults and not kubernetes"
	$(TEST_ENV) $(BIN)/python -m tests.mutations
	$(MAKE) flakes
	$(MAKE) test-on-control-planes
	$(TEST_ENV) DLSPAWNER_E2E=deployed $(BIN)/python -m tests.kubernetes with $(BIN)/pytest -m slow tests/e2e/test_kills.py tests/e2e/test_evictions.py
	$(TEST_ENV) DLSPAWNER_E2E=chart $(BIN)/python -m tests.kubernetes with $(BIN)/pytest -m "not slow and not launcher" $(ON_CHART)
	$(TEST_ENV) DLSPAWNER_E2E=deployed $(BIN)/python -m tests.kubernetes --ipv6 with $(BIN)/pytest -m "not slow and not launcher" $(ON_IPV6)
	for way in ingress gateway-api; do \
	  $(TEST_ENV) DLSPAWNER_E2E=$$way $(BIN)/python -m tests.kubernetes with $(BIN)/pytest -m "not slow and not launcher" $(BY_HTTPS) || exit 1; done
	$(TEST_ENV) $(BIN)/python -m tests.kubernetes with $(BIN)/pytest tests/kubernetes/test_enforced.py
	$(TEST_ENV) $(BIN)/python -m tests.kubernetes with $(BIN)/pytest tests/kubernetes/test_upgrade.py

# Journeys on a cluster of IPv6 alone.
ON_IPV6 := $(addprefix tests/e2e/test_,ssh.py notebook.py several_pods.py tensorboard.py hostile.py)

# Journeys in the browser behind a controller of Ingress, or of the Gateway API.
BY_HTTPS := $(addprefix tests/e2e/test_,notebook.py tensorboard.py)

# Journeys on the product as the Helm chart installs it; others name the manifests' objects.
ON_CHART := $(addprefix tests/e2e/test_,ssh.py notebook.py several_pods.py replicas.py hostile.py)

# The contract, the cluster's own tests, the product in containers, and what takes the node away.
test-kubernetes: FOR_TESTS := --test-images
test-kubernetes: LOST := tests/kubernetes/test_lost_node.py
test-kubernetes: $(VENV)/.tests
ifeq ($(CLUSTER),kubeconfig)
	@command -v "$${DLSPAWNER_KUBECTL:-kubectl}" >/dev/null || { echo "kubectl 1.24 or newer is needed, in PATH or as DLSPAWNER_KUBECTL."; exit 1; }
endif
	$(TEST_ENV) DLSPAWNER_E2E=deployed $(ON_KUBERNETES) sh -c '$(BIN)/pytest -m "not slow" tests/contract tests/kubernetes --ignore $(LOST) && $(BIN)/pytest -m "not slow and not launcher" tests/e2e && $(BIN)/pytest $(LOST)'

# Without a node: the embedded node, without root, and the Manager's tests with a Hub on real control planes.
test-on-control-planes: $(VENV)/.tests
	$(TEST_ENV) $(WITHOUT_ROOT) $(BIN)/python -m tests.kubernetes --control-plane with sh -c 'DLSPAWNER_E2E_KUBECONFIG=$$KUBECONFIG exec $(BIN)/pytest -m "not slow and not kubernetes" tests/e2e --ignore tests/e2e/test_launcher.py'
	$(TEST_ENV) DLSPAWNER_TESTS_CLUSTER=kubernetes $(BIN)/pytest -n $(WORKERS) --dist loadfile tests/component/manager -m real

# Kubernetes, etcd and CoreDNS, the node's programs and the product's images, into the cache of this user.
kubernetes: $(VENV)/.jobs
	@$(BIN)/python -m tests.kubernetes build

check: $(VENV)/.lint
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

format: $(VENV)/.lint
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(VENV)/.tests
	$(TEST_ENV) $(BIN)/python -m tests.bench

bench-kubernetes: $(VENV)/.tests
	$(TEST_ENV) $(ON_KUBERNETES) $(BIN)/python -m tests.bench.kubernetes

# The figures of hub_config/POLICY.md, from public traces that are not part of the project: make simulations TRACES=DIRECTORY
simulations: $(VENV)/.tests
	@test -n '$(TRACES)' || { echo "make simulations TRACES=DIRECTORY: with philly.csv, interactive_sessions.csv and interactive_trainings.csv."; exit 2; }
	$(BIN)/python -m tests.bench.simulations '$(TRACES)'

# The README's screenshots.
tour: $(VENV)/.tests
	$(TEST_ENV) $(BIN)/python -m tests.e2e.tour

# hub_config/images/README.md says what each image holds and what can be set.
images:
	@BUILDER='$(BUILDER)' PREFIX='$(PREFIX)' TAG='$(TAG)' BASE='$(BASE)' hub_config/images/build $(NAMES)

# SECURITY.md says who reads them. The environments are made anew: that of the tests holds more.
sbom:
	@rm -rf build/sbom && mkdir -p build/sbom
	@$(PYTHON) -m venv build/sbom/tool && build/sbom/tool/bin/pip install --quiet --disable-pip-version-check cyclonedx-bom==7.5.0
	@set -e; bill() { name=$$1; shift; $(PYTHON) -m venv build/sbom/env; \
	  build/sbom/env/bin/pip install --quiet --disable-pip-version-check --constraint constraints.txt "$$@"; \
	  build/sbom/tool/bin/cyclonedx-py environment --output-reproducible -o build/sbom/$$name.json build/sbom/env; rm -rf build/sbom/env; }; \
	bill hub '.[postgresql,tracing]'; bill job jupyterhub jupyterlab jupyter-server-proxy tensorboard 'setuptools<81' ./jupyter_extension
	@npm sbom --prefix $(CHP) --package-lock-only --omit=dev --sbom-format cyclonedx >build/sbom/proxy.json
	@rm -r build/sbom/tool && ls -l build/sbom

# hub_config/REFERENCE.md from the traits.
reference: $(VENV)/.tests
	$(BIN)/python -m tests.reference

# The module for JupyterLab is built from jupyter_extension/src, and kept in the repository: no user needs its 200 MB of tools.
labextension: $(VENV)/.jobs
	rm -rf build/labextension && mkdir -p build && cp -r jupyter_extension build/labextension && rm -rf build/labextension/labextension
	cd build/labextension && npm ci --loglevel=error --no-fund --no-audit --ignore-scripts && npx tsc
	cd build/labextension && PATH='$(CURDIR)/$(BIN)':$$PATH jupyter labextension build .
	rm -rf jupyter_extension/labextension && cp -r build/labextension/labextension jupyter_extension/
	$(BIN)/python -m tests.labextension

clean:
	rm -rf $(VENV) templates/jobs/vscode.yaml build *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis

# The environment grows in three steps, so that `make run` installs no more than it needs.
$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed; name one with PYTHON=…")'
	@command -v npm >/dev/null || { echo "Node.js with npm is needed for JupyterHub's proxy (Node 20 is tested)."; exit 1; }
	@$(PYTHON) -c 'import ensurepip' 2>/dev/null || .ci/packages ensurepip=python3-venv
	$(PYTHON) -m venv $(VENV)
	@$(BIN)/pip install --quiet --disable-pip-version-check --upgrade 'pip>=25'  # Debian's takes minutes to resolve

# With the Python of people (kernels, terminals, ssh), where `pip install` breaks nothing of the product's.
$(VENV)/.jobs: setup.py constraints.txt $(CHP)/package-lock.json $(wildcard jupyter_extension/*.toml jupyter_extension/*/*.* jupyter_extension/*/*/*.*) | $(VENV)/bin/python
	@echo "Installing JupyterHub, KubeSpawner and what jobs run (a minute or two, once) …"
	@$(PIP) --editable '.[jobs]' ./jupyter_extension
	@$(BIN)/python -m venv $(PEOPLE) && PIP_PYTHON=$(PEOPLE)/bin/python $(PIP) 'pip>=25' ipykernel
	@$(BIN)/python -m venv --without-pip --system-site-packages $(PEOPLE)  # afterwards: nothing of the system's instead
	@$(PEOPLE)/bin/python -m ipykernel install --prefix=$(VENV) --env PATH '$(CURDIR)/$(PEOPLE)/bin:$${PATH}' >/dev/null 2>&1
	@cp $(CHP)/package.json $(CHP)/package-lock.json $(VENV) && npm ci --loglevel=error --no-fund --no-audit --prefix $(VENV)
	@.ci/packages sshd=openssh-server ssh=openssh-client setpriv=util-linux
	@touch $@

vscode: $(VENV)/.vscode

$(VENV)/.vscode: hub_config/images/job/code-server | $(VENV)/.jobs
	@.ci/packages g++=g++ make=make krb5-config=libkrb5-dev
	@echo "Building VS Code for the browser (some minutes, once) …"
	@hub_config/images/job/code-server $(CURDIR)/$(VENV)/code-server
	@ln -sf ../code-server/bin/code-server $(BIN)/code-server
	@ln -sf ../optional/vscode.yaml templates/jobs/vscode.yaml
	@touch $@

$(VENV)/.tests: $(VENV)/.jobs
	@echo "Installing what the tests need …"
	@$(PIP) --editable '.[jobs,test]'
	@$(BIN)/pip install --quiet --quiet --disable-pip-version-check --upgrade --no-deps --target $(VENV)/jupyterhub-5.5 jupyterhub==5.5.0
	@.ci/packages --unpack $(VENV)/debian kubernetes-client prometheus $(SSH_CLIENTS) $(BALANCER) $(DIRECTORY)
	@.ci/packages chromium=chromium rsync=rsync git=git xauth=xauth mpirun=openmpi-bin /usr/lib/postgresql/15/bin/postgres=postgresql-15
	@touch $@

$(VENV)/.lint: $(VENV)/.tests
	@$(PIP) --editable '.[jobs,test,lint]'
	@touch $@
