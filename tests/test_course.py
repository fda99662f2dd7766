"""The course as those meet it who use it: what is handed out, and the marks of good and bad answers."""

import os
import re
import subprocess
import tomllib
import zipfile

import nbformat
import pytest
from submissions import (
    CHECK,
    COURSE,
    PYTHON,
    ROOT,
    SETS,
    answered,
    graded,
    handed_out,
    make_course,
    of_somebody_else,
    questions,
    solution,
)

from norm_geometry.course import generator


@pytest.fixture(scope="module", autouse=True)
def built():
    make_course()


@pytest.fixture(scope="module")
def mistakes() -> dict[str, dict]:
    return {name: tomllib.loads((ROOT / "tests" / "mistakes" / f"{name}.toml").read_text("utf-8")) for name in SETS}


@pytest.fixture(scope="module", params=SETS)
def marks(request, mistakes, tmp_path_factory) -> tuple[str, dict[str, dict]]:
    """The marks of many submissions to one set; number i of the wrong ones makes the i-th mistake in each question."""
    name, wrong = request.param, mistakes[request.param]
    submissions = {
        "right": solution(name, "Çağla 47"),
        "numbers of another student": of_somebody_else(name),
        "as handed out": handed_out(name),
        "with an identifier alone": handed_out(name, "Anna Müller"),
    }
    for number in range(max(map(len, wrong.values()))):
        code = {question: made[number]["code"] for question, made in wrong.items() if number < len(made)}
        submissions[f"wrong {number}"] = answered(name, **code)
    files = {f"{title}.ipynb": notebook for title, notebook in submissions.items()}
    lines = graded(name, files, tmp_path_factory.mktemp(name), "--jobs", str(max(2, os.cpu_count() or 2)))
    return name, {file.removesuffix(".ipynb"): line for file, line in lines.items()}


def test_the_reference_solution_gets_full_marks_under_any_identifier(marks):
    _, lines = marks
    assert float(lines["right"]["total"]) == 20
    assert lines["right"]["student"] == "Çağla 47"
    assert lines["right"]["remark"] == ""


def test_an_empty_submission_gets_none(marks):
    name, lines = marks
    for title in ("as handed out", "with an identifier alone"):
        assert float(lines[title]["total"]) == 0
        assert {lines[title][question] for question in questions(handed_out(name))} == {"0"}
    assert lines["as handed out"]["remark"] == "sets student to 0 identifiers"


def test_numbers_of_another_student_do_not_serve(marks):
    _, lines = marks
    assert float(lines["numbers of another student"]["total"]) < 20
    assert lines["numbers of another student"]["remark"] == "sets student to 2 identifiers"


def test_every_mistake_loses_marks_in_its_question_alone(marks, mistakes):
    name, lines = marks
    assert set(mistakes[name]) == set(questions(handed_out(name)))
    for question, made in mistakes[name].items():
        full = float(lines["right"][question])
        assert len(made) >= 2, question
        for number in range(sum(title.startswith("wrong") for title in lines)):
            got = float(lines[f"wrong {number}"][question])
            if number < len(made):
                assert got < full, f"{question}: {made[number]['misconception']}"
            else:
                assert got == full, question


@pytest.mark.parametrize("name", SETS)
def test_the_student_notebook_holds_no_solution_and_no_hidden_test(name):
    text = (COURSE / name / "student" / f"{name}.ipynb").read_text(encoding="utf-8")
    with zipfile.ZipFile(COURSE / name / "autograder.zip") as archive:
        tests = "".join(archive.read(file).decode() for file in archive.namelist() if file.startswith("tests/"))
    hidden = re.findall(r"@test_case\(points=\S+ hidden=True.*?\ndef (\w+)", tests, re.DOTALL)
    assert len(hidden) >= len(questions(handed_out(name)))
    assert not [function for function in hidden if re.search(rf"\b{function}\b", text)]
    assert "SOLUTION" not in text
    assert "**Solution" not in text
    assert "](book:" not in text


@pytest.mark.parametrize("name", SETS)
def test_the_student_notebook_alone_runs_in_an_empty_folder(name, tmp_path):
    nbformat.write(handed_out(name, "Anna Müller"), tmp_path / f"{name}.ipynb")
    execute = [PYTHON, "-m", "nbconvert", "--to", "notebook", "--execute", "--allow-errors", "--inplace"]
    subprocess.run([*execute, f"{name}.ipynb"], cwd=tmp_path, check=True)
    notebook = nbformat.read(tmp_path / f"{name}.ipynb", as_version=4)
    assert notebook.cells[0].outputs == []
    checks = [cell for cell in notebook.cells if CHECK.fullmatch(cell.source)]
    assert [CHECK.fullmatch(cell.source)[1] for cell in checks] == list(questions(handed_out(name)))
    for cell in checks:
        (output,) = cell.outputs
        assert "Test case failed" in output.data["text/plain"]


def test_the_same_master_gives_the_same_bytes():
    files = [COURSE / SETS[0] / file for file in ("autograder.zip", "solution.ipynb", f"student/{SETS[0]}.ipynb")]
    before = [file.read_bytes() for file in files]
    subprocess.run([PYTHON, "course/build.py", f"course/{SETS[0]}.ipynb"], cwd=ROOT, check=True)
    assert [file.read_bytes() for file in files] == before


def test_everybody_has_numbers_of_their_own():
    def numbers(student, question="q1"):
        return generator(student, question).normal(size=4).tolist()

    assert numbers("Anna Müller") == numbers(" anna müller ")
    assert numbers("Anna Müller") != numbers("Anna Mueller") != numbers("Anna Mueller", "q2")
    for nobody in ("", "  ", ..., None):
        with pytest.raises(ValueError, match="set it to your identifier"):
            generator(nobody, "q1")
