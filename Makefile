# Two commands do everything on a fresh machine: `make demo` and `make test`. Both make the environment first.
SHELL := /bin/bash
.DEFAULT_GOAL := help

VENV := .venv
RUN := $(VENV)/bin
READY := $(VENV)/.ready
UV = $(or $(shell command -v uv),.tools/uv/bin/uv)
# Many images set it. Here it costs time: the suite and the demo start hundreds of processes, and each would compile our modules again.
unexport PYTHONDONTWRITEBYTECODE

help:  ## this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  make \1\t\2/' | expand -t 20

$(READY): pyproject.toml uv.lock scripts/bootstrap.sh
	@scripts/bootstrap.sh $(VENV)

env: $(READY)  ## make the environment (.venv), fetching uv if it is missing

java:
	@scripts/need-java.sh

demo: $(READY) java  ## broker, warehouse and Airflow; ships LOG (or a sample), loads every hour, proves it [LOG=file] [REPORT=file.json]
	@$(RUN)/logbus demo $(if $(LOG),--log "$(LOG)") $(if $(REPORT),--report "$(REPORT)")

cluster: $(READY) java  ## three brokers, their ZooKeeper and a PostgreSQL until Ctrl-C; what they store stays in .logbus/cluster [BROKERS=3]
	@$(RUN)/logbus up --home .logbus/cluster --brokers $(or $(BROKERS),3)

cluster-down:  ## end what `make cluster` runs, from another terminal
	@scripts/cluster-down.sh .logbus/cluster

# Three workers, also for two cores since many tests wait for processes, in the order of the folders: those with real processes, which wait most, begin first.
WORKERS ?= 3
SUITE := tests/e2e tests/contract tests/fault tests/integration tests/proof tests/sim tests/property tests/unit
PYTEST := $(RUN)/python -m pytest

test: $(READY) java  ## five minutes: whether all of it works, down to an hour through Airflow and Spark [ARGS="-k name": any tests] [WORKERS=3]
	@scripts/test-tools.sh
	@$(if $(ARGS),$(PYTEST) $(ARGS),LOGBUS_EXAMPLES=0.1 $(PYTEST) -n $(WORKERS) --no-loadscope-reorder --part first $(SUITE))

test-all: $(READY) java  ## a quarter of an hour: all that `make test` leaves, properties again with all their examples
	@scripts/test-tools.sh
	@$(PYTEST) -n $(WORKERS) --no-loadscope-reorder --part rest $(SUITE)

test-disturbed: $(READY) java  ## the suite beside six busy processes, what it starts stopped at random [ARGS="--busy 8 tests/fault"]
	@$(RUN)/python -m tests.disturbed $(if $(ARGS),$(ARGS),-n $(WORKERS) --no-loadscope-reorder $(SUITE))

proof: $(READY)  ## the proof machine: seeded histories in which nothing false may be called exact [SEEDS=3000] [SEED=17] [FAULT=election] [SWITCHED_OFF=fence]
	@$(RUN)/python -m tests.proof $(if $(SEEDS),--seeds $(SEEDS)) $(if $(SEED),--seed $(SEED)) $(if $(FAULT),--fault $(FAULT)) $(if $(SWITCHED_OFF),--switched-off $(SWITCHED_OFF))

sim: $(READY)  ## seeded histories of brokers in simulated machines, judged by what their clients saw [BROKERS=1] [SEEDS=500] [SEED=17] [FAULT="power cut"] [WITHOUT="a leader is confirmed"]
	@$(RUN)/python -m tests.sim $(if $(BROKERS),--brokers $(BROKERS)) $(if $(SEEDS),--seeds $(SEEDS)) $(if $(SEED),--seed $(SEED)) $(if $(FAULT),--fault "$(FAULT)") $(if $(WITHOUT),--without "$(WITHOUT)")

soak: $(READY)  ## the long tests: properties on new cases, a hundred kill -9 under load, a million mutated requests [ARGS="-k kill"]
	@LOGBUS_EXAMPLES=$${LOGBUS_EXAMPLES:-20} $(RUN)/python -m pytest -rP -m "" tests/soak tests/property tests/sim tests/proof tests/fault/pipeline/test_every_statement.py $(ARGS)
	@$(RUN)/python -m pytest -rP -m long tests/contract tests/fault tests/integration tests/e2e

check: $(READY)  ## formatting, lint, types and the import arrows
	@$(RUN)/ruff format --check .
	@$(RUN)/ruff check .
	@$(RUN)/mypy -p logbus_broker -p logbus -p logbus_spark
	@$(RUN)/lint-imports --no-cache

grid: $(READY)  ## whether the requirements resolve beside each Airflow, for each Python, as of its release, and with the oldest of everything
	@$(RUN)/python -m scripts.grid

first-hour: $(READY) java  ## how long it takes until the first hour is proven in an Airflow and from a Kafka that exist
	@$(RUN)/python -m scripts.first_hour

bench: $(READY) java  ## what lies in benchmarks/, against peers in the same run [NAME=paper] [ARGS="--quick --docs"]
	@$(RUN)/python -m benchmarks $(NAME) $(ARGS)

compose-up:  ## the whole platform in containers (docs/compose.md): secrets to .env, the image, everything started and healthy [PROFILE=cluster]
	@PROFILE=$(PROFILE) scripts/compose-env.sh
	@chmod -R a+rX dags docker docs/prometheus docs/grafana  # mounted; PostgreSQL, Prometheus and Grafana read them as users of their own
	@docker compose -f docker-compose.airflow.yml up --build --detach --wait

sbom: $(READY)  ## what each of the two distributions installs, with hashes, as CycloneDX: build/sbom/NAME.cdx.json
	@mkdir -p build/sbom
	@for name in logbus logbus-broker; do $(UV) export --quiet --frozen --no-dev --all-extras --preview-features sbom-export \
		--format cyclonedx1.5 --package $$name --output-file build/sbom/$$name.cdx.json >/dev/null && echo build/sbom/$$name.cdx.json; done

audit: $(READY)  ## known vulnerabilities of what uv.lock has, asked of https://api.osv.dev (OSV=URL: another that speaks its API)
	@$(UV) audit --frozen --preview-features audit $(if $(OSV),--service-url $(OSV)); status=$$?; \
	if [ $$status -eq 2 ]; then echo "make audit: no answer on vulnerabilities: it needs $(or $(OSV),https://api.osv.dev) (behind a proxy, set HTTPS_PROXY)" >&2; fi; \
	exit $$status

docs: $(READY)  ## the documentation site, into site/
	@$(RUN)/python -m scripts.site build/pages
	@NO_MKDOCS_2_WARNING=1 $(RUN)/python -m mkdocs build --strict

docs-serve: $(READY)  ## the same on http://127.0.0.1:8000, made again when a page changes
	@$(RUN)/python -m scripts.site build/pages
	@NO_MKDOCS_2_WARNING=1 $(RUN)/python -m mkdocs serve --watch README.md --watch docs --watch scripts/site

pictures: $(READY)  ## docs/pictures, from the running pages (needs Chromium)
	@$(RUN)/python -m scripts.pictures

clean:  ## remove the environment, the demo's data and caches
	rm -rf $(VENV) .tools .logbus benchmarks/out .mypy_cache .ruff_cache .pytest_cache .hypothesis site build

.PHONY: help env java demo cluster cluster-down test test-all test-disturbed proof sim soak check grid first-hour bench compose-up sbom audit docs docs-serve pictures clean
