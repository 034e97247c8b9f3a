# Set up, try and check cbdybw. All that is installed goes into .venv, which need not be activated.
# PYTHON names the Python that a new .venv is made of: 3.11, 3.12 or 3.13.

PYTHON ?= python3
VENV := .venv
REQUIREMENTS := $(VENV)/.requirements

DRILLS := $(VENV)/bin/python -m pytest -m cluster -rs tests/cluster

.PHONY: drills-nfs drills-slurm help setup demo test test-cluster lint horovod clean environment

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' Makefile

setup: environment ## install all that is needed into .venv: 2-4 minutes at first, then nothing
	@echo "Nothing more to be done: $(VENV) is up to date."

demo: environment ## measure cb-DyBW against cb-Full on six MPI workers; write runs/demo/report.html
	@$(VENV)/bin/python -m experiments.demo

test: environment ## run the whole test suite, the tests on MPI included
	@$(VENV)/bin/python -m pytest

test-cluster: environment ## drills on real NFS, Slurm and several hosts (root on Debian; under 15 min)
	@$(DRILLS) --ignore-glob='*/test_slurm_*' --ignore-glob='*/test_nfs_*'
	@$(MAKE) --no-print-directory --jobs=2 --output-sync drills-nfs drills-slurm

# They mostly wait, so two at once do not disturb each other; those above are about time.
drills-nfs:
	@$(DRILLS) --ignore-glob='*/test_[!n]*'

drills-slurm:
	@$(DRILLS) --ignore-glob='*/test_[!s]*' --ignore-glob='*/test_setup_*'

lint: $(REQUIREMENTS) ## check style and formatting
	@$(VENV)/bin/ruff check .
	@$(VENV)/bin/ruff format --check .

horovod: $(REQUIREMENTS) ## build Horovod once more, after a build that failed
	@rm -f $(VENV)/.horovod
	@.ci/horovod
	@grep -q '^built' $(VENV)/.horovod

clean: ## remove .venv and all caches; keep runs/ and data/
	rm -rf $(VENV) .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -prune -exec rm -r {} +

# .ci/horovod itself knows whether there is anything to do.
environment: $(REQUIREMENTS)
	@.ci/horovod

# pip installs only what differs from the file, so an environment that is there already is adopted.
$(REQUIREMENTS): requirements.txt | $(VENV)/bin/pip
	@echo "Installing requirements.txt (TensorFlow, Open MPI, ...; 1.9 GB on disk, about a minute)"
	@$(VENV)/bin/python -m pip install -qq -r requirements.txt
	@touch $@

$(VENV)/bin/pip:
	@version=$$($(PYTHON) -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null); \
	case "$$version" in \
	  3.11 | 3.12 | 3.13) echo "Making $(VENV) with Python $$version (a few seconds)" ;; \
	  *) echo "PYTHON=$(PYTHON): found $${version:-nothing}, but cbdybw runs on Python 3.11, 3.12 and" \
	          "3.13; name one of these, as in: make setup PYTHON=python3.12" >&2; exit 2 ;; \
	esac
	@$(PYTHON) -m venv $(VENV)
