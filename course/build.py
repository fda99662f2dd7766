"""Make what one problem set hands out, from its master notebook: `python course/build.py course/geometry.ipynb`.

Into _build/course/<set>: the student notebook, the autograder archive (for Gradescope and `otter run`) and the solution
notebook. The solution is graded on the way, with the archive as it is handed out, and must get full marks.
"""

import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import nbformat
import yaml
from grade import COURSE
from packaging.utils import canonicalize_name
from runner import run

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "_ext"))

from setup_cell import setup_cell  # noqa: E402

MAMBA = "# install dependencies with mamba\n"  # a line of Otter's setup.sh
PIN = re.compile(r"^([\w.-]+)==([\w.]+)", re.MULTILINE)
BLOCK = re.compile(r"^[ \t]*# (BEGIN|END) SOLUTION.*\n?", re.MULTILINE)
MARKER = re.compile(r"[ \t]*# SOLUTION.*")
SETUP = """\
# @title Set-up: run this cell first
{library}
if importlib.util.find_spec("otter") is None:
    subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", "otter-grader=={version}"], check=True)

# The public tests: they look at the form of an answer. Those that give the marks come with grading.
public_tests = pathlib.Path("{name}-tests")
public_tests.mkdir(exist_ok=True)
{tests}

import otter
grader = otter.Notebook(tests_dir=str(public_tests))"""
TEST = """\
(public_tests / "{file}").write_text(r'''
{source}
''', encoding="utf-8")"""
VERSIONS = """\
export PIP_CONSTRAINT=/autograder/source/constraints.txt
export PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu

"""
LIBRARY = """
# the library with its data, from where the students have it
git clone --quiet --depth 1 --branch {branch} {url} /autograder/book
mamba run -n otter-env python -m pip install -e "/autograder/book[attention,figures]"
mamba run -n otter-env python -m pip install --no-deps -r /autograder/book/requirements-colab.txt
"""


def pins() -> dict[str, str]:
    """The exact versions that the course is tested with: the book's, and Otter's where the two differ."""
    found = {}
    for file in ("requirements.txt", "requirements-colab.txt", "course/requirements.txt"):
        lines = (ROOT / file).read_text(encoding="utf-8")
        found |= {canonicalize_name(name): version for name, version in PIN.findall(lines)}
    return found


def first_cell(name: str, tests: dict[str, str]) -> nbformat.NotebookNode:
    """Fetches what is missing and writes the public tests; Colab and Jupyter show it folded."""
    written = "\n".join(TEST.format(file=file, source=source.strip()) for file, source in tests.items())
    version = pins()["otter-grader"]
    source = SETUP.format(library=setup_cell().source, version=version, name=name, tests=written)
    compile(source, "the first cell", "exec")
    metadata = {"cellView": "form", "jupyter": {"source_hidden": True}, "editable": False, "deletable": False}
    return nbformat.v4.new_code_cell(source, metadata=metadata)


def finish(notebook: nbformat.NotebookNode, first: nbformat.NotebookNode, repository: dict) -> nbformat.NotebookNode:
    """Otter's notebook with our first cell for its own two, links into the published book, and lasting identifiers."""
    owner, name = repository["url"].rsplit("/", 2)[1:]
    assert "otter.Notebook" in notebook.cells[1].source, "Otter begins a notebook otherwise than it did"
    notebook.cells = [first, *notebook.cells[2:]]
    for index, cell in enumerate(notebook.cells):
        cell.id = f"cell-{index}"
        if cell.cell_type == "markdown":
            cell.source = cell.source.replace("](book:", f"](https://{owner}.github.io/{name}/")
    return notebook


def write_archive(made: Path, archive: Path, repository: dict) -> None:
    """Otter's archive, which installs the exact versions and the library; the same input gives the same bytes."""
    with zipfile.ZipFile(made) as file:
        contents = {name: file.read(name).decode() for name in file.namelist()}
    start, install = contents["setup.sh"].replace("apt-get install -y wget", "apt-get install -y git wget").split(MAMBA)
    contents["setup.sh"] = start + VERSIONS + MAMBA + install + LIBRARY.format(**repository)
    contents["constraints.txt"] = "".join(f"{name}=={version}\n" for name, version in sorted(pins().items()))
    with zipfile.ZipFile(archive, "w") as file:
        for name, content in sorted(contents.items()):
            if name.startswith("tests/"):
                compile(content, name, "exec")
            entry = zipfile.ZipInfo(name)  # of 1980
            entry.external_attr = 0o755 << 16
            file.writestr(entry, content)


def build(master: Path) -> None:
    name, out = master.stem, COURSE / master.stem
    repository = yaml.safe_load((ROOT / "_config.yml").read_text(encoding="utf-8"))["repository"]
    with tempfile.TemporaryDirectory() as work:
        shutil.copy(master, work)
        assign = [sys.executable, "-m", "otter", "assign", "--no-pdfs", "--no-run-tests", master.name, "otter"]
        subprocess.run(assign, cwd=work, check=True)
        made = Path(work) / "otter"
        tests = {path.name: path.read_text(encoding="utf-8") for path in sorted(made.glob("student/tests/*.py"))}
        first = first_cell(name, tests)
        student, solution = (
            finish(nbformat.read(made / kind / master.name, as_version=4), first, repository)
            for kind in ("student", "autograder")
        )
        (out / "student").mkdir(parents=True, exist_ok=True)
        write_archive(next(made.glob("autograder/*.zip")), out / "autograder.zip", repository)
    if left := [cell.source for cell in student.cells if "SOLUTION" in cell.source]:
        sys.exit(f"{master}: a solution is left in the student notebook: {left[0]}")
    for cell in solution.cells:
        cell.source = MARKER.sub("", BLOCK.sub("", cell.source))
    nbformat.write(student, out / "student" / master.name)
    marks, remarks = run(solution, out / "autograder.zip", minutes=10, gigabytes=8)
    lost = {question: f"{got:g}/{points:g}" for question, (got, points) in marks.items() if got != points}
    if lost or remarks:
        sys.exit(f"{master}: the reference solution loses marks: {lost} {remarks}")
    nbformat.write(solution, out / "solution.ipynb")
    print(f"{out}: {len(marks)} questions, {sum(points for _, points in marks.values()):g} points")


if __name__ == "__main__":
    build(Path(sys.argv[1]))
