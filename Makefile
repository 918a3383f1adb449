# `make` sets everything up and opens the app; `make test` sets up what the tests need and runs them all.

PYTHON ?= python3
BIN := .venv/bin

.PHONY: app test check benchmark

app: .venv/ready
	$(BIN)/streamlit run app.py

test: check
	$(BIN)/python -m pytest

check: .venv/ready-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

benchmark: .venv/ready-dev
	$(BIN)/python benchmarks/hover.py
	$(BIN)/python benchmarks/relevance.py
	$(BIN)/python benchmarks/faithfulness.py
	$(BIN)/python benchmarks/forward.py
	$(BIN)/python benchmarks/upload.py
	$(BIN)/python benchmarks/train_speed.py
	$(BIN)/python benchmarks/run_cost.py
	$(BIN)/python benchmarks/watchers.py
	$(BIN)/python benchmarks/cold_start.py
	$(BIN)/python benchmarks/load.py

.venv/ready: requirements.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install -r requirements.txt
	touch $@

.venv/ready-dev: .venv/ready requirements-dev.txt
	$(BIN)/python -m pip install -r requirements-dev.txt
	command -v chromium || command -v chromium-browser || command -v google-chrome \
		|| $(BIN)/playwright install --with-deps chromium \
		|| (apt-get update && apt-get install -y chromium) \
		|| $(BIN)/playwright install chromium
	touch $@
