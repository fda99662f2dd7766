"""Submissions to the problem sets of the course, and their marks by `course/grade.py`; what its tests share."""

import csv
import re
import subprocess
import sys
from pathlib import Path

import nbformat

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "course"))

from grade import CHECK, questions  # noqa: E402

COURSE = ROOT / "_build" / "course"
PYTHON = COURSE / ".venv" / "bin" / "python"
GRADE = [PYTHON, ROOT / "course" / "grade.py"]
SETS = sorted(path.stem for path in (ROOT / "course").glob("*.ipynb"))


def make_course() -> None:
    subprocess.run(["make", "course"], cwd=ROOT, check=True)


def solution(name: str, student: str = "Anna Müller") -> nbformat.NotebookNode:
    return with_identifier(nbformat.read(COURSE / name / "solution.ipynb", as_version=4), student)


def handed_out(name: str, student: str | None = None) -> nbformat.NotebookNode:
    notebook = nbformat.read(COURSE / name / "student" / f"{name}.ipynb", as_version=4)
    return with_identifier(notebook, student) if student else notebook


def with_identifier(notebook: nbformat.NotebookNode, student: str) -> nbformat.NotebookNode:
    setting = re.compile(r"^student = .*$", re.MULTILINE)
    assert sum(len(setting.findall(cell.source)) for cell in notebook.cells) == 1
    for cell in notebook.cells:
        cell.source = setting.sub(f'student = "{student}"', cell.source)
    return notebook


def answers(notebook: nbformat.NotebookNode) -> dict[str, nbformat.NotebookNode]:
    """The first answer cell of each question of a solution notebook."""
    tag = "otter_assign_solution_cell"
    return {
        question: next(cell for cell in cells if cell.cell_type == "code" and tag in cell.metadata.get("tags", []))
        for question, cells in questions(notebook).items()
    }


def answered(name: str, **code: str) -> nbformat.NotebookNode:
    """The solution with other code in the answers to some questions."""
    notebook = solution(name)
    for question, cell in answers(notebook).items():
        cell.source = code.get(question, cell.source)
    return notebook


def of_somebody_else(name: str) -> nbformat.NotebookNode:
    """The numbers of one student under the identifier of another."""
    notebook = solution(name)
    cells = []
    for cell in notebook.cells:
        check = CHECK.fullmatch(cell.source)
        cells += (
            [nbformat.v4.new_code_cell('student = "Bert"'), cell, nbformat.v4.new_code_cell('student = "Anna Müller"')]
            if check
            else [cell]
        )
    notebook.cells = cells
    return notebook


def table(path: Path) -> dict[str, dict]:
    with open(path, encoding="utf-8", newline="") as file:
        return {line["file"]: line for line in csv.DictReader(file)}


def graded(name: str, submissions: dict, folder: Path, *options: str) -> dict[str, dict]:
    for file, content in submissions.items():
        (folder / "in" / file).parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, bytes):
            (folder / "in" / file).write_bytes(content)
        else:
            nbformat.write(content, folder / "in" / file)
    out = folder / "marks.csv"
    subprocess.run([*GRADE, name, folder / "in", "--out", out, *options], cwd=folder, check=True)
    return table(out)
