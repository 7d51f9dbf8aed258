# Each target makes the virtual environment it needs (.venv-GROUP, see scripts/run) and does everything else itself.
# PYTHON=... chooses the Python, ARGS=... adds arguments; DATABASE_URL in the environment chooses the server.

.PHONY: help demo demo-check test browser faults lint format docs bench clean
.DEFAULT_GOAL := help
export PYTHON DJANGO ONLY PEERS ROUNDS SCALE FAULTS_SCALE

help: ## Say what there is
	@sed -n 's/^\([a-z-]*\):.*## /\1: /p' $(MAKEFILE_LIST)

demo: ## Serve a map whose tiles are rendered by workers, a form whose mails they send, and what they do, live
	@scripts/run --newest demo python testproject/manage.py demo $(ARGS)

demo-check: ## The same without a browser: exits 0 when every tile of a screenful is there, and three mails fared as they should
	@scripts/run --newest demo python testproject/manage.py demo --check $(ARGS)

test: ## Run the tests
	@scripts/run test pytest -n 4 --dist loadgroup -m "not browser" $(ARGS)

browser: ## Walk through the admin in Chromium, which is to be installed
	@scripts/run test pytest -m browser $(ARGS)

faults: ## Kill, cut, fill up and stop everything, and see that nothing is lost; FAULTS_SCALE=10 for the full counts
	@scripts/run --newest faults pytest tests/faults $(ARGS)

lint: ## ruff, mypy and the import layers
	@scripts/run lint sh scripts/lint

format: ## Let ruff rewrite what it can
	@scripts/run lint sh -c 'ruff check --fix . && ruff format .'

docs: ## Build the documentation into site/
	@scripts/run docs zensical build --strict --clean $(ARGS)

bench: ## Measure us and our peers side by side: ONLY=drain,enqueue PEERS=pgqueuer ROUNDS=3 SCALE=1
	@scripts/run --newest bench python -m benchmarks $(ARGS)

clean: ## Remove what the other targets made
	@rm -rf .venv-* .demo .cache .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis site \
		benchmarks/.venvs benchmarks/.results
