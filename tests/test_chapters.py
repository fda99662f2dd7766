"""The chapters as files: what Jupyter, Colab and GitHub must be able to show, and what the first cell does there."""

import ast
import importlib.metadata
import json
import os
import re
import shutil
import subprocess
import sys
import urllib.request
from pathlib import Path

import nbformat
import pytest
import yaml
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "_ext"))

from setup_cell import setup_cell  # noqa: E402

CHAPTERS = sorted((ROOT / "chapters").glob("*.ipynb"))
EXERCISE = re.compile(r"^> \*\*Exercise", re.MULTILINE)
MYST = re.compile(r"^(:::|```\{)|\{[\w:-]+\}`", re.MULTILINE)  # a directive or a role


@pytest.fixture(params=CHAPTERS, ids=lambda path: path.stem)
def chapter(request) -> nbformat.NotebookNode:
    return nbformat.read(request.param, as_version=4)


def sources(chapter: nbformat.NotebookNode, cell_type: str) -> list[str]:
    return [cell.source for cell in chapter.cells if cell.cell_type == cell_type]


def test_the_table_of_contents_lists_every_chapter():
    toc = yaml.safe_load((ROOT / "_toc.yml").read_text(encoding="utf-8"))
    listed = [toc["root"]] + [entry["file"] for part in toc["parts"] for entry in part["chapters"]]
    files = [path for path in (ROOT / "chapters").iterdir() if path.suffix in (".ipynb", ".md")]
    assert sorted(listed) == sorted(f"chapters/{path.stem}" for path in files)


def test_the_first_cell_is_the_stamped_one(chapter):
    assert chapter.cells[0] == setup_cell(), "run: python _ext/setup_cell.py"


def test_no_output_is_stored(chapter):
    for cell in chapter.cells:
        if cell.cell_type == "code":
            assert cell.outputs == []
            assert cell.execution_count is None


def test_markdown_is_what_every_notebook_viewer_shows(chapter):
    for source in sources(chapter, "markdown"):
        assert not MYST.search(source), source
        assert not re.search(r"\S.*```", source), "a fence begins its line"


def test_exercises_have_answers(chapter):
    text = "\n\n".join(sources(chapter, "markdown"))
    exercises = EXERCISE.split(text)[1:]
    assert len(exercises) >= 3
    for exercise in exercises:
        assert "<details>" in exercise, exercise[:80]


def test_code_that_belongs_in_the_library_is_there(chapter):
    for source in sources(chapter, "code"):
        for node in ast.walk(ast.parse(source)):
            assert not isinstance(node, ast.ClassDef), node.name
            if isinstance(node, ast.FunctionDef):
                assert node.end_lineno - node.lineno < 5, node.name


# What a Colab runtime brings along, as far as the book uses it.
COLAB = (
    "numpy",
    "torch",
    "transformers",
    "pandas",
    "scipy",
    "scikit-learn",
    "matplotlib",
    "plotly",
    "ipywidgets",
    "tqdm",
    "pyyaml",
    "requests",
)
UNTOUCHED = ("numpy", "torch", "transformers")


def with_requirements(names: tuple[str, ...]) -> dict[str, importlib.metadata.Distribution]:
    """The named distributions of this environment and all that they need, by name."""
    found, waiting = {}, list(names)
    while waiting:
        name = waiting.pop()
        try:
            distribution = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            continue
        if distribution.name not in found:
            found[distribution.name] = distribution
            needed = map(Requirement, distribution.requires or [])
            waiting += [need.name for need in needed if not need.marker or need.marker.evaluate({"extra": ""})]
    return found


def link_or_copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.link(source, target)
    except OSError:  # another file system
        shutil.copy2(source, target)


@pytest.fixture
def colab_python(tmp_path: Path) -> Path:
    """A Python that has what Colab has, and nothing of the book."""
    environment = tmp_path / "environment"
    subprocess.run([sys.executable, "-m", "venv", environment], check=True)
    site_packages = next(environment.glob("lib/python*/site-packages"))
    for distribution in with_requirements(COLAB).values():
        for file in distribution.files:
            if ".." not in file.parts and file.locate().exists():
                link_or_copy(file.locate(), site_packages / file)
    return environment / "bin" / "python"


@pytest.fixture
def published(tmp_path: Path) -> Path:
    """A repository that holds the working tree, standing in for the public one."""
    repository = tmp_path / "published"
    list_files = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    for file in filter(None, subprocess.check_output(list_files, cwd=ROOT, text=True).split("\0")):
        if (ROOT / file).is_file():
            link_or_copy(ROOT / file, repository / file)
    author = ["-c", "user.name=test", "-c", "user.email=test@example.org"]
    for command in (["init", "--quiet"], ["add", "--all"], [*author, "commit", "--quiet", "--message", "test"]):
        subprocess.run(["git", *command], cwd=repository, check=True)
    return repository


@pytest.fixture
def package_index() -> None:
    try:
        urllib.request.urlopen("https://pypi.org/simple/gguf/", timeout=10).close()
    except OSError as error:
        pytest.skip(f"the package index cannot be reached: {error}")


def files_of(python: Path) -> dict[str, tuple[int, int]]:
    """Every file of the packages that must not change, with its identity and its time."""
    site_packages = next(python.parents[1].glob("lib/python*/site-packages"))
    paths = [site_packages / file for name in UNTOUCHED for file in importlib.metadata.files(name)]
    states = {str(path): path.stat() for path in paths if path.exists() and path.suffix != ".pyc"}
    return {path: (state.st_ino, state.st_mtime_ns) for path, state in states.items()}


VERSIONS = """
import json, numpy, torch, transformers
print(json.dumps([(package.__version__, package.__file__) for package in (numpy, torch, transformers)]))
"""
USE_OF_THE_LIBRARY = """
from norm_geometry.norms import layer_norm
assert abs(layer_norm(numpy.array([1.0, 2.0, 6.0])).sum()) < 1e-9
"""


def test_the_first_cell_prepares_colab_and_leaves_its_packages_alone(
    package_index, colab_python: Path, published: Path, tmp_path: Path
):
    chapter = nbformat.read(CHAPTERS[0], as_version=4)
    address = yaml.safe_load((ROOT / "_config.yml").read_text(encoding="utf-8"))["repository"]["url"]
    script = "\n".join((VERSIONS, chapter.cells[0].source, USE_OF_THE_LIBRARY, VERSIONS))
    redirection = {
        "GIT_CONFIG_COUNT": "2",
        "GIT_CONFIG_KEY_0": f"url.file://{published}.insteadOf",
        "GIT_CONFIG_VALUE_0": address,
        "GIT_CONFIG_KEY_1": "protocol.file.allow",
        "GIT_CONFIG_VALUE_1": "always",
    }
    work = tmp_path / "work"
    work.mkdir()
    files = files_of(colab_python)
    output = subprocess.check_output([colab_python, "-c", script], cwd=work, env=os.environ | redirection, text=True)
    before, after = map(json.loads, output.splitlines())
    assert before == after
    assert len(files) > 1000
    assert files_of(colab_python) == files
