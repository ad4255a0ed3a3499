# One command for each thing; `make help` lists them. Everything a target needs, it makes.
SHELL := /bin/bash
.DEFAULT_GOAL := help
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
MODEL := models/smollm2-135m-instruct
# Variables that pick old OpenBLAS kernels slow a current numpy down.
MEASURE := env -u OPENBLAS_CORETYPE -u OPENBLAS_L2_SIZE $(BIN)/python
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
LOCK := requirements/constraints.txt
# An index for torch alone, where pip's own has no build of it that suits this machine.
TORCH_INDEX ?=
# Compute threads that wait should sleep: several tests run servers beside themselves.
PYTEST := OMP_WAIT_POLICY=PASSIVE $(BIN)/python -m pytest --durations 15

.PHONY: help
help: ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  \1\t\2/' | expand -t 20

$(VENV)/.installed: pyproject.toml $(LOCK) proto/build_stubs.py $(wildcard proto/weir/*/*.proto)
	@echo "installing into $(VENV)"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@# torch on its own first: an index of torch's builds has few of the other packages, and other versions of them.
	$(PIP) install --no-deps $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX)) -c $(LOCK) torch
	@if grep -qE '^Requires-Dist: (cuda|nvidia)' $(VENV)/lib/python3*/site-packages/torch-*.dist-info/METADATA \
	    && ! command -v nvidia-smi >/dev/null; then \
	  echo "this torch is built for CUDA, whose libraries are several GB; without a GPU, stop here, remove $(VENV)," \
	    "and set TORCH_INDEX to an index with CPU builds (README.md, Two commands)"; \
	fi
	$(PIP) install -c $(LOCK) -e '.[dev]'
	$(BIN)/python proto/build_stubs.py
	@touch $@

.PHONY: venv
venv: $(VENV)/.installed ## create .venv with everything development needs

.PHONY: model
model: $(MODEL)/config.json ## fetch the demo model into models/

$(MODEL)/config.json: | $(VENV)/.installed
	$(BIN)/weir fetch smollm2-135m-instruct

.PHONY: kernels
kernels: $(VENV)/.installed ## compile the CPU kernels, where a compiler is
	@$(BIN)/python -m weir_kernels.cpu.build || echo "no CPU kernels: the torch path serves instead"

.PHONY: demo
demo: $(VENV)/.installed model kernels ## a real model answers three questions at once, over gRPC
	@$(BIN)/python scripts/demo.py --model $(MODEL)

.PHONY: serve
serve: $(VENV)/.installed model kernels ## serve the demo model on port 50051 until Ctrl-C
	$(BIN)/weir serve --model $(MODEL)

.PHONY: test
test: $(VENV)/.installed model kernels ## the test suite: units, contracts, parity with the reference, end to end
	$(PYTEST) tests/unit tests/contract tests/cases tests/e2e --ignore tests/unit/kernels/triton

.PHONY: soak
soak: $(VENV)/.installed model kernels ## a server under everything that clients do to it: make soak SECONDS=3600 (900 by default)
	$(BIN)/python -m tests.soak --seconds $(or $(SECONDS),900) $(ARGS)

.PHONY: fuzz
fuzz: $(VENV)/.installed ## 100,000 damaged configs, tokenizers, templates, weights, requests and headers: make fuzz ARGS="--seed 2"
	$(BIN)/python -m tests.fuzz $(ARGS)

.PHONY: test-triton
test-triton: $(VENV)/.installed ## the Triton kernels: interpreted, and compiled for four chips without a GPU
	$(PYTEST) tests/unit/kernels/triton

.PHONY: gpu-check
gpu-check: ## correctness, rates against the roof and whole models on a GPU, with the torch and triton of PYTHON
	$(PYTHON) tests/gpu/check.py

.PHONY: test-chart
test-chart: $(VENV)/.installed tools ## the Helm chart under two Helm majors and three Kubernetes schemas
	$(PYTEST) tests/chart

.PHONY: test-monitoring
test-monitoring: $(VENV)/.installed ## alert rules and dashboards in a real Prometheus (Debian's, installed when absent)
	@command -v promtool >/dev/null || (apt-get update -qq && apt-get install -y -qq --no-install-recommends prometheus)
	$(PYTEST) tests/monitoring

.PHONY: tools
tools: .tools/helm-4 ## fetch Helm for the chart tests

.tools/helm-4: scripts/fetch_helm.sh
	scripts/fetch_helm.sh
	@touch $@

.PHONY: chart-docs
chart-docs: $(VENV)/.installed tools ## write the chart's schema, values table and golden renders anew
	$(BIN)/python scripts/chart_docs.py
	PATH=$(abspath $(BIN)):$$PATH scripts/render_examples.sh

.PHONY: image
image: ## build an image: make image TARGET=cpu (cuda, cpu or sidecar)
	scripts/build_image.sh $(or $(TARGET),cuda)

.PHONY: push-images
push-images: ## build and push all images, and print their values: make push-images REGISTRY=registry.example.com/team
	scripts/push_images.sh $(REGISTRY) $(TARGETS)

.PHONY: chart-package
chart-package: tools ## package the chart into dist/; OCI=oci://REGISTRY/PATH pushes it, DIGEST= and SIDECAR_DIGEST= name images
	scripts/package_chart.sh $(OCI)

.PHONY: image-test
image-test: model ## build the CPU image on a bare Debian, run it, and stop it in the middle of a stream (needs root)
	@command -v buildah >/dev/null && command -v debootstrap >/dev/null \
	  || (apt-get update -qq && apt-get install -y -qq --no-install-recommends buildah debootstrap)
	scripts/test_image.sh

.PHONY: lint
lint: $(VENV)/.installed ## ruff, mypy, import rules, buf
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy service kernels
	$(BIN)/lint-imports
	cd proto && ../$(BIN)/buf lint

.PHONY: check-lock
check-lock: $(VENV)/.installed ## the pinned versions resolve on an ordinary index, for three Pythons; downloads no package
	$(BIN)/python scripts/check_lock.py

.PHONY: proto
proto: $(VENV)/.installed ## lint the API and generate its Python stubs
	cd proto && ../$(BIN)/buf lint
	$(BIN)/python proto/build_stubs.py

# ARGS passes flags on, as in `make bench ARGS="--workloads prefill"`.
.PHONY: bench
bench: $(VENV)/.installed model kernels ## weir on this machine, each figure beside the machine's limit
	$(MEASURE) -m benchmarks.suite $(ARGS)

.PHONY: bench-peers
bench-peers: $(VENV)/.installed model kernels ## weir, vLLM, OpenVINO GenAI, llama.cpp and transformers in turn (installs them)
	$(MEASURE) -m benchmarks.peers --write docs/performance.md --plot docs/images/peers.svg $(ARGS)

.PHONY: bench-ablation
bench-ablation: $(VENV)/.installed model kernels ## what each technique of the engine is worth
	$(MEASURE) -m benchmarks.ablation --write docs/how-it-works.md --plot docs/images/ablation.svg $(ARGS)
