"""A folder of submissions in which everything goes wrong that can: each goes wrong alone, and the table says how."""

import json
import signal
import subprocess
import time

import nbformat
import psutil
import pytest
from submissions import GRADE, ROOT, answered, graded, handed_out, make_course, questions, solution, table


@pytest.fixture(scope="module", autouse=True)
def built():
    make_course()


def without(notebook: nbformat.NotebookNode, question: str) -> nbformat.NotebookNode:
    gone = {cell.id for cell in questions(notebook)[question]}
    notebook.cells = [
        cell for cell in notebook.cells if cell.id not in gone and cell.source != f'grader.check("{question}")'
    ]
    return notebook


def without_first(notebook: nbformat.NotebookNode) -> nbformat.NotebookNode:
    del notebook.cells[0]
    return notebook


def unnamed(notebook: nbformat.NotebookNode) -> nbformat.NotebookNode:
    notebook.metadata = {"colab": {"provenance": []}}
    return notebook


IDLE = "while True:\n    pass"
ANSWERS = {  # to question 1: the code, what is lost by it, the remark
    "raises": ("1 / 0", "q1", ""),
    "prints": ("for _ in range(1000):\n    print('x' * 10**6)", "q1", "printed more than 1,000,000 characters"),
    "starts": ("!cat tests/q1.py", "q1", "was refused to start a process"),
    "loops": (IDLE, "all", "stopped: it took longer than 0.5 minutes, in q1"),
    "eats": ("blocks = []\nwhile True:\n    blocks.append(np.ones(10**7))", "all", "stopped: it used more than 1.5 GB"),
    "dies": ("import os\nos._exit(0)", "all", "stopped: its kernel died, in q1"),
    "reads": ("import io\nx = io.open('tests/q1.py').read()", "all", "stopped: it tried to read the hidden tests"),
    "copies": ("import shutil\nshutil.copytree('tests', 'mine')", "all", "stopped: it tried to read the hidden tests"),
    "imports": ("from tests import q1", "all", "stopped: it tried to read the hidden tests"),
}


def in_one_folder() -> dict[str, tuple]:
    """By file: what it holds, the question whose marks it loses, the remark that it gets."""
    name = "geometry"
    answers = {f"{title}.ipynb": (answered(name, q1=code), *rest) for title, (code, *rest) in ANSWERS.items()}
    return answers | {
        "good.ipynb": (solution(name, "Emmy"), "", "same identifier as of Émile/geometry (2).ipynb"),
        "of Émile/geometry (2).ipynb": (solution(name, " emmy "), "", "same identifier as good.ipynb"),
        "cut.ipynb": (without(solution(name), "q2"), "q2", "cells deleted or changed in q2"),
        "no set-up.ipynb": (without_first(solution(name)), "", "cells deleted or changed in q1"),
        "unnamed.ipynb": (unnamed(solution(name)), "", "the name of its set is lost"),
        "exits.ipynb": (answered(name, q2="import sys\ndef diagnose(norm):\n    sys.exit()"), "all", "no result"),
        "other set.ipynb": (handed_out("attention"), "all", "belongs to another set: attention"),
        "a chapter.ipynb": ((ROOT / "chapters/ellipsoid.ipynb").read_bytes(), "all", "not one of this course"),
        "text.ipynb": (b"My answers are in the other file.", "all", "is not a notebook"),
        "half.ipynb": (json.dumps(solution(name)).encode()[:3000], "all", "is not a notebook"),
        "list.ipynb": (b"[1, 2]", "all", "is not a notebook"),
        "essay.pdf": (b"%PDF-1.7 \xff\xfe", "all", "is not a notebook"),
    }


def still_running(mark: str) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("COURSE_TEST") == mark:
                found.append(process)
        except psutil.Error:
            continue
    return found


def test_what_goes_wrong_goes_wrong_alone(tmp_path, monkeypatch):
    monkeypatch.setenv("COURSE_TEST", str(tmp_path))
    folder = in_one_folder()
    contents = {file: content for file, (content, _, _) in folder.items()}
    ignored = {".ipynb_checkpoints/good.ipynb": solution("geometry")}
    lines = graded("geometry", contents | ignored, tmp_path, "--minutes", "0.5", "--gigabytes", "1.5")
    assert set(lines) == set(folder)
    good = lines["good.ipynb"]
    for file, (_, lost, remark) in folder.items():
        total = 0 if lost == "all" else float(good["total"]) - float(good.get(lost, 0))
        assert (float(lines[file]["total"]), remark in lines[file]["remark"]) == (total, True), lines[file]
    assert not still_running(str(tmp_path))


def test_an_interruption_leaves_the_marks_so_far(tmp_path, monkeypatch):
    monkeypatch.setenv("COURSE_TEST", str(tmp_path))
    (tmp_path / "in").mkdir()
    nbformat.write(solution("geometry"), tmp_path / "in" / "good.ipynb")
    nbformat.write(answered("geometry", q1=IDLE), tmp_path / "in" / "loops.ipynb")
    process = subprocess.Popen([*GRADE, "geometry", "in"], cwd=tmp_path)
    while not (tmp_path / "marks.csv").exists() or table(tmp_path / "marks.csv")["good.ipynb"]["remark"]:
        assert process.poll() is None
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=30) != 0
    lines = table(tmp_path / "marks.csv")
    assert lines["good.ipynb"]["total"] == "20"
    assert lines["loops.ipynb"]["remark"] == "not graded"
    assert not still_running(str(tmp_path))
