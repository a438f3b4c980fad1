# `make` or `make help` lists the targets. Every target makes .venv by itself the first time (scripts/setup).
.DEFAULT_GOAL := help
SHELL := /bin/bash
BIN := .venv/bin
JOBS ?= 2
MODELS ?= ../shared/models
POET_PROBLEMS ?= ../shared/poet
C_SOURCES = $(shell find poetc demo tests -name '*.[ch]')
PYTEST_ARGS ?=
# A worker begins with its own half of the tests and takes from the other at the end: what the tests of a file share is made once.
PYTEST = $(BIN)/python -m pytest -n $(JOBS) --dist worksteal
# Tests start Python hundreds of times: without stored bytecode each compiles all modules anew, which is half of its time.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help
help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: setup
setup: ## make .venv with poetc in it, and nothing else
	@scripts/setup run

.PHONY: setup-test
setup-test:
	@scripts/setup test

.PHONY: setup-arm
setup-arm: ## install the compilers and emulators of the boards
	@scripts/setup-arm

.PHONY: setup-browser
setup-browser: ## install the browser that tests lay out reports with
	@scripts/setup-browser

.PHONY: setup-arm64-python
setup-arm64-python:
	@scripts/setup-arm64-python --optional

.PHONY: demo
demo: setup ## train the shipped digits model on a new writer: solve, compare bits, train, write a better ONNX file
	@$(BIN)/python demo/demo.py

.PHONY: demo-text
demo-text: setup ## tune SmolLM2-135M on two dozen chats in 128 MB: perplexity and an answer before and after, an adapter for peft
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[text]'
	@$(BIN)/python demo/text.py

.PHONY: demo-arm
demo-arm: setup setup-arm ## train LeNet on an emulated Cortex-M3 with 64 KiB and an SD card (CLASS=m0 m4f m7 m55 a72 ...)
	@$(BIN)/python demo/boards/demo.py $(CLASS)

.PHONY: lint
lint: setup-test ## ruff, mypy, the format of the C, the layers of imports and the length of sentences
	@$(MAKE) --no-print-directory --output-sync -j2 lint-types lint-text

.PHONY: lint-types lint-text
lint-types:
	$(BIN)/mypy

lint-text:
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/clang-format --dry-run --Werror $(C_SOURCES)
	$(BIN)/lint-imports --no-logo
	$(BIN)/python scripts/prose

.PHONY: format
format: setup-test ## rewrite the sources in the project's format
	$(BIN)/ruff check --fix-only .
	$(BIN)/ruff format .
	$(BIN)/clang-format -i $(C_SOURCES)

.PHONY: test
test: lint setup-arm setup-browser ## lint and all tests but the long ones: about 5 minutes on two idle cores, longer the first time
	$(PYTEST) -m "not long and not conformance" $(PYTEST_ARGS)

.PHONY: test-all
test-all: setup-test setup-arm ## the long tests too: whole networks counted, and every other class of boards
	@$(MAKE) --no-print-directory --output-sync -j3 lint-types lint-text setup-browser setup-arm64-python
	$(PYTEST) -m "not conformance" $(PYTEST_ARGS)

.PHONY: test-times
test-times: setup-test setup-arm setup-browser ## processor time of every test, in tables
	@rm -f build/test-times.jsonl
	$(PYTEST) -p tests.support.times -m "not conformance" $(PYTEST_ARGS)
	@$(BIN)/python -m tests.support.times

.PHONY: conformance
conformance: setup-test ## outside models and references in place: make conformance MODELS=../shared/models
	@test -d "$(MODELS)" || { echo "conformance: no folder $(MODELS) (make conformance MODELS=/path/to/models)" >&2; exit 2; }
	POETC_MODELS="$(abspath $(MODELS))" $(PYTEST) -m conformance tests/conformance $(PYTEST_ARGS)

.PHONY: pages
pages: setup ## write the pages of docs/reference that are made from the code
	@$(BIN)/python scripts/operators_page.py
	@$(BIN)/python scripts/site_pages.py

.PHONY: docs
docs: setup-test ## build the documentation into site/, every link checked
	$(BIN)/python -m pip install --quiet --no-compile --disable-pip-version-check -e '.[docs]'
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

.PHONY: docs-serve
docs-serve: docs ## then show it on http://localhost:8000, with search
	$(BIN)/python -m http.server --directory site 8000

.PHONY: pictures
pictures: setup ## solve the demonstration and draw its memory timeline anew, for README.md
	$(BIN)/poetc solve demo/digits.onnx --batch 16 --device stm32f746 --budget 40% --time-limit 60 --quiet -o build/pictures.poetc
	$(BIN)/poetc report build/pictures.poetc --timeline docs/assets/timeline.svg --quiet

.PHONY: bench-kernels
bench-kernels: setup ## whole training steps beside PyTorch and onnxruntime-training: ratios of medians, memory
	bench/setup_peers
	$(BIN)/python bench/kernels.py --torch build/peers/torch/bin/python --ort build/peers/ort/bin/python \
		--mnn build/peers/mnn/bin/python $(BENCH_ARGS)

.PHONY: bench-training
bench-training: setup ## losses of 200 steps beside PyTorch's on the same batches: build/bench-training/losses.csv
	bench/setup_peers
	$(BIN)/python -m bench.training --torch build/peers/torch/bin/python $(BENCH_ARGS)

.PHONY: bench-memory
bench-memory: setup ## peak memory of whole processes that train, beside PyTorch and onnxruntime-training
	bench/setup_peers
	$(BIN)/python bench/memory.py --torch build/peers/torch/bin/python --ort build/peers/ort/bin/python $(BENCH_ARGS)

.PHONY: bench-demos
bench-demos: setup ## losses of onnxruntime's on-device demos beside PyTorch and onnxruntime-training: build/bench-demos/losses.csv
	bench/setup_peers
	$(BIN)/python -m bench.demos --torch build/peers/torch/bin/python --ort build/peers/ort/bin/python $(BENCH_ARGS)

.PHONY: bench-shapes
bench-shapes: setup ## every convolution and product of ResNet-18 and BERT alone, in per cent of the core's peak
	bench/setup_peers
	$(BIN)/python -m bench.shapes $(BENCH_ARGS)

.PHONY: bench-solver
bench-solver: setup ## proven gaps and seconds of poetc solve on real networks; resumable: build/bench-solver.csv
	$(BIN)/python -m bench.solver --models $(MODELS) $(BENCH_ARGS)

.PHONY: bench-ablation
bench-ablation: setup ## energies and bounds without each stage of poetc's engine; resumable: build/bench-ablation.csv
	$(BIN)/python -m bench.ablation --models $(MODELS) $(BENCH_ARGS)

.PHONY: bench-operators
bench-operators: setup ## seconds, gaps and memory of poetc solve for 2 to 96 layers; resumable: build/bench-operators.csv
	$(BIN)/python -m bench.operators run $(BENCH_ARGS)

.PHONY: bench-poet
bench-poet: setup ## POET's own problems: its formulation beside poetc, same HiGHS, same run (POET_PROBLEMS=folder)
	$(BIN)/python -m bench.poet --problems "$(POET_PROBLEMS)" $(BENCH_ARGS)

.PHONY: bench-edge-fleet
bench-edge-fleet: setup-test ## EdgeFlowerTune's protocols on Flower clients: docs/results/federated.md
	$(BIN)/python -m bench.edge_fleet docs/explanation/*.md docs/how-to/*.md $(BENCH_ARGS)

.PHONY: papers
papers: setup ## the tables of the papers behind this project; resumable: build/papers.jsonl, docs/results/papers.md
	$(BIN)/python -m bench.papers run $(MODELS)/zoo $(BENCH_ARGS)
	$(BIN)/python -m bench.papers page

.PHONY: bench-zoo
bench-zoo: setup-test ## analyze and solve every outside model file; resumable: build/zoo.csv
	$(BIN)/python -m bench.zoo --models "$(MODELS)" $(BENCH_ARGS)

.PHONY: bench-fusion
bench-fusion: setup-test ## what operator fusion gives on every network of the zoo; resumable: build/fusion.csv
	$(BIN)/python -m bench.fusion --models "$(MODELS)/zoo" $(BENCH_ARGS)

.PHONY: bench-truth
bench-truth: setup-test setup-arm ## predicted against measured steps of outside models; resumable: build/truth.csv (BENCH_ARGS="--on qemu:BOARD")
	$(BIN)/python -m bench.truth --models "$(MODELS)/zoo" $(BENCH_ARGS)

# Boards whose kernels are counted, and boards that run the same code and differ in their store.
COUNTED := mps2-an385 mps2-an385-m0 mps2-an386 mps2-an500 mps3-an547 virt-a72 virt-a76
STORED := microbit lm3s6965evb raspi3b

.PHONY: fit-qemu
fit-qemu: setup-test setup-arm ## count the kernels' instructions anew and fit the profiles of the emulated boards
	@mkdir -p build
	@set -e; for board in $(COUNTED); do scripts/fit_board $$board; done
	@set -e; for board in $(STORED); do scripts/fit_board $$board --store-only; done

.PHONY: sizes
sizes: setup-test setup-arm ## measure the code of the runtime anew, for predictions, and the sizes that tests track
	$(BIN)/python scripts/code_sizes.py
	$(BIN)/pytest -q -n $(JOBS) tests/arm/test_sizes.py --update-golden

.PHONY: fuzz
fuzz: setup-test ## every parser under a coverage-guided fuzzer, 10 minutes each (SECONDS_EACH=... TARGETS="lock store")
	@scripts/setup-fuzz
	$(BIN)/python -m tests.fuzz $(TARGETS) --seconds $(or $(SECONDS_EACH),600) --jobs $(JOBS)

.PHONY: fuzz-models
fuzz-models: setup-test ## 100,000 damaged and distorted models through the importer (CASES=...)
	$(BIN)/python -m bench.fuzz --cases $(or $(CASES),100000) --jobs $(JOBS)

.PHONY: versions
versions: setup setup-arm ## a solve, training and a sample of tests with every Python from 3.11 on, with the lowest versions, and on aarch64
	scripts/check-versions
	scripts/check-versions python3.11 --lowest
	scripts/check-arm64

.PHONY: dist
dist: setup ## wheel and sdist in dist/, checked by twine and check-wheel-contents; the hook, run by pre-commit
	scripts/release dist

.PHONY: sbom
sbom: setup ## the package and its dependencies as CycloneDX: dist/poetc-VERSION.cdx.json
	scripts/release sbom

.PHONY: coverage
coverage: setup-test setup-arm setup-browser ## lines and branches that the quick tests take, of Python and of C: docs/results/coverage.md
	@$(BIN)/python -c 'import coverage' 2>/dev/null || $(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[coverage]'
	$(BIN)/python -m tests.coverage --jobs $(JOBS) --write $(PYTEST_ARGS)

.PHONY: power-loss
power-loss: setup-test setup-arm ## every test with the marker power_loss: 10,000 cuts on this machine, 200 on emulated boards
	POETC_POWER_CUTS=$(or $(CUTS),2500) POETC_BIT_FLIPS=$(or $(FLIPS),2500) POETC_BOARD_CUTS=$(or $(BOARD_CUTS),67) \
		$(PYTEST) -m power_loss $(PYTEST_ARGS)

.PHONY: random-networks
random-networks: setup ## random PyTorch networks beside PyTorch; resumable: build/random-networks.jsonl (CASES= SEED=; installs PyTorch)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[torch]'
	$(BIN)/python -m tests.random_networks --cases $(or $(CASES),200) --seed $(or $(SEED),0) \
		--newer 0.125 --c 0.02 --record build/random-networks.jsonl $(BENCH_ARGS)

.PHONY: opinfo
opinfo: setup-test ## PyTorch's own test suite of operators and modules, a step of two samples each; resumable (SAMPLES=3)
	bench/setup_peers opinfo
	nice build/peers/opinfo/bin/python bench/peer_opinfo.py build/opinfo/cases --samples $(or $(SAMPLES),2)
	nice $(BIN)/python -m bench.opinfo build/opinfo/cases --write $(BENCH_ARGS)

.PHONY: decoders
decoders: setup-test ## tiny language models of transformers through both exporters, beside PyTorch and onnxruntime
	bench/setup_peers decoders
	nice build/peers/decoders/bin/python -P bench/peer_decoders.py build/decoders
	nice $(BIN)/python -m bench.decoders build/decoders

.PHONY: fuzz-bounds
fuzz-bounds: setup-test ## lower bounds beside the exhaustive optima of 2,000 random small problems (CASES=...)
	$(BIN)/python -m bench.bounds --cases $(or $(CASES),2000) --jobs $(JOBS)

.PHONY: clean
clean: ## remove everything that was made, .venv too
	rm -rf .venv build dist site *.egg-info *.poetc demo/out .mypy_cache .ruff_cache .import_linter_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
