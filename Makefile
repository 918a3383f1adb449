# `make` sets everything up and opens the app. `make test` installs what the tests need, including a browser, and runs them.
# `make test-all` also runs linters, types and the exhaustive tests, as CI does; `make quick` runs the tests without pages and browser.

PYTHON ?= python3
BIN := .venv/bin

CHROMIUM := $(BIN)/python tests/browser/serving.py
WORKERS ?= 3

.PHONY: app test test-all quick ranges check check-js browser firefox firefox-test webkit webkit-test cluster cluster-test mlflow mlflow-test benchmark

app: .venv/ready
	$(BIN)/streamlit run app.py

# Empty, so that Python writes bytecode: the tests start many processes, and each would compile every module again.
test test-all quick: export PYTHONDONTWRITEBYTECODE :=

DEFAULT_TESTS := not cluster and not mlflow and not firefox and not webkit
PARALLEL := -n $(WORKERS) --dist loadfile --no-loadscope-reorder

test: browser
	$(BIN)/python -m pytest $(PARALLEL) -m "$(DEFAULT_TESTS) and not exhaustive"

test-all: check test
	$(BIN)/python -m pytest $(PARALLEL) -m "$(DEFAULT_TESTS) and exhaustive"

QUICK := --ignore tests/browser --ignore tests/firefox --ignore tests/webkit --ignore tests/pages -m "not slow and not exhaustive and not mlflow"

quick: .venv/ready-dev
	$(BIN)/python -m pytest $(PARALLEL) $(QUICK)

check: .venv/ready-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# Checks of the JavaScript. The app itself needs neither npm nor Node.
check-js: node_modules/.package-lock.json
	node_modules/.bin/eslint --max-warnings 0 .
	node_modules/.bin/tsc
	node --test tests/web/*.test.js

node_modules/.package-lock.json: package.json package-lock.json
	npm ci --no-audit --no-fund
	touch $@

# Installs Chromium unless one starts. It never fails: without Chromium the tests report which of them they skip.
browser: .venv/ready-dev
	@$(CHROMIUM) || { \
		if [ "$$(id -u)" = 0 ]; then \
			echo "Installing Chromium for the browser tests: Debian's package, or Playwright's build with its libraries."; \
			{ apt-get update && { apt-get install -y --no-install-recommends chromium-headless-shell \
				|| apt-get install -y --no-install-recommends chromium; }; } \
				|| $(BIN)/playwright install --with-deps chromium; \
		else \
			echo "Installing Playwright's build of Chromium into your home folder, for the browser tests."; \
			$(BIN)/playwright install chromium; \
		fi; \
		$(CHROMIUM) || echo "No Chromium could be installed. As administrator: make browser."; }

# Installs Debian's packages $(1), as administrator or with sudo.
DEBIAN = { \
	echo "Installing Debian's $(1), which needs administrator rights."; \
	if [ "$$(id -u)" = 0 ]; then as=; elif command -v sudo > /dev/null; then as=sudo; \
	else echo "You are not administrator, and there is no sudo. As administrator: apt-get install $(1)"; exit 1; fi; \
	$$as apt-get update && $$as apt-get install -y --no-install-recommends $(1); }

# Uses the installed Firefox, or installs Debian's; Mozilla's driver for it comes from the package index.
firefox: .venv/ready-dev
	$(BIN)/python -m pip install -r requirements-firefox.txt
	@command -v firefox-esr > /dev/null || command -v firefox > /dev/null || $(call DEBIAN,firefox-esr)

firefox-test: .venv/ready-dev
	$(BIN)/python -m pytest -m firefox tests/firefox

# WebKitGTK with its driver, and a display without a screen.
webkit:
	@{ command -v WebKitWebDriver && command -v Xvfb; } > /dev/null || $(call DEBIAN,webkit2gtk-driver xvfb)

webkit-test: .venv/ready-dev
	$(BIN)/python -m pytest -m webkit tests/webkit

# For real clusters on this machine: Ray from the package index, Slurm from Debian.
cluster: .venv/ready-dev
	@echo "Installing Ray ($$(tail -n 1 requirements-cluster.txt)) into $(BIN)."
	$(BIN)/python -m pip install -r requirements-cluster.txt
	@{ command -v slurmctld && command -v slurmd && command -v sbatch && command -v munged; } > /dev/null \
		|| $(call DEBIAN,slurmctld slurmd slurm-client munge)

cluster-test: .venv/ready-dev
	VIT_NEED_CLUSTERS=1 $(BIN)/python -m pytest -m cluster -rs tests/training/engines

# MLflow gets its own environment: it needs an older cachetools than the app.
mlflow: .venv-mlflow/ready

# Runs the quick tests with the lowest and with the highest version of each dependency that pyproject.toml allows, each
# in an environment of its own.
ranges: .venv-lowest-direct/tested .venv-highest/tested

.venv-%/tested: pyproject.toml .venv/ready-dev
	$(BIN)/python -m pip install uv
	$(BIN)/uv venv --clear --python $(BIN)/python .venv-$*
	VIRTUAL_ENV=$(CURDIR)/.venv-$* $(BIN)/uv pip install --resolution $* ".[dev]"
	VIRTUAL_ENV=$(CURDIR)/.venv-$* $(BIN)/uv pip uninstall vit-attention-explorer
	.venv-$*/bin/python -m pytest $(PARALLEL) $(QUICK)
	touch $@

mlflow-test: .venv/ready-dev mlflow
	VIT_NEED_MLFLOW=1 VIT_TRACKER_PYTHON=$(CURDIR)/.venv-mlflow/bin/python $(BIN)/python -m pytest -m mlflow -rs tests/training/test_mlflow.py

.venv-mlflow/ready: requirements-mlflow.txt
	$(PYTHON) -m venv .venv-mlflow
	.venv-mlflow/bin/python -m pip install -r requirements-mlflow.txt
	touch $@

benchmark: .venv/ready-dev
	$(BIN)/python benchmarks/hover.py
	$(BIN)/python benchmarks/faithfulness.py
	$(BIN)/python benchmarks/forward.py
	$(BIN)/python benchmarks/train_speed.py
	$(BIN)/python benchmarks/cold_start.py
	$(BIN)/python benchmarks/load.py

.venv/ready: requirements.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install -r requirements.txt
	touch $@

.venv/ready-dev: .venv/ready requirements-dev.txt
	$(BIN)/python -m pip install -r requirements-dev.txt
	touch $@
