"""Grade a folder of submissions to one problem set: a table of marks, with a remark where something is wrong.

    _build/course/.venv/bin/python course/grade.py geometry submissions --out marks.csv

Whatever is in the folder gets its line in the table, and a submission that goes wrong goes wrong alone.
`make course` comes first.
"""

import argparse
import csv
import json
import os
import re
import signal
import sys
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor, as_completed
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import nbformat
from runner import INTERRUPTED, UngradedError, run

COURSE = Path(__file__).resolve().parents[1] / "_build" / "course"
CHECK = re.compile(r"""grader\.check\(["'](\w+)["']\)""")
DOTTED = re.compile(r"(^|[\\/])\.")  # a file or folder whose name begins with a dot
IDENTIFIER = re.compile(r"""^[ \t]*student\s*=\s*(["'])(.+?)\1""", re.MULTILINE)


def read(path: Path) -> tuple[nbformat.NotebookNode, str | None]:
    """A notebook without outputs and metadata, and the name of its set if the metadata tell it."""
    make = {"code": nbformat.v4.new_code_cell, "markdown": nbformat.v4.new_markdown_cell}
    if path.stat().st_size > 10**8:
        raise UngradedError("is larger than 100 MB")
    try:
        given = json.loads(path.read_text(encoding="utf-8"))
        kept = [cell for cell in given["cells"] if cell["cell_type"] in make]
        cells = [make[cell["cell_type"]]("".join(cell["source"])) for cell in kept]
        name = given.get("metadata", {}).get("otter", {}).get("assignment_name")
    except Exception as error:  # whatever the file holds
        raise UngradedError(f"is not a notebook ({type(error).__name__})") from None
    return nbformat.v4.new_notebook(cells=cells), name


def problem_sets() -> list[str]:
    return sorted(path.parent.name for path in COURSE.glob("*/autograder.zip"))


@cache
def handed_out(name: str) -> nbformat.NotebookNode:
    return read(COURSE / name / "student" / f"{name}.ipynb")[0]


def texts(cells: Iterable[nbformat.NotebookNode]) -> set[str]:
    return {cell.source.strip() for cell in cells if cell.cell_type == "markdown"}


def questions(notebook: nbformat.NotebookNode) -> dict[str, list[nbformat.NotebookNode]]:
    """The cells of each question: those before its check and after the check of the one before."""
    found, cells = {}, []
    for cell in notebook.cells:
        if check := CHECK.fullmatch(cell.source.strip()):
            found[check[1]], cells = cells, []
        else:
            cells.append(cell)
    return found


def oddities(notebook: nbformat.NotebookNode, name: str | None, wanted: str) -> list[str]:
    """What a submission lacks; raises UngradedError if it belongs to another set."""
    remarks = []
    if name != wanted:
        shared = {other: len(texts(notebook.cells) & texts(handed_out(other).cells)) for other in problem_sets()}
        likely = max(shared, key=shared.get)
        if not shared[likely]:
            raise UngradedError("is a notebook, but not one of this course")
        if likely != wanted:
            raise UngradedError(f"belongs to another set: {likely}")
        remarks.append("the name of its set is lost or changed: recognised by its questions")
    here, changed = questions(notebook), []
    for question, cells in questions(handed_out(wanted)).items():
        found = here.get(question, [])
        code, found_code = (sum(cell.cell_type == "code" for cell in part) for part in (cells, found))
        if not texts(cells) <= texts(found) or found_code < code:
            changed.append(question)
    if changed:
        remarks.append(f"cells deleted or changed in {', '.join(changed)}")
    return remarks


def identifiers(notebook: nbformat.NotebookNode) -> list[str]:
    """What the notebook sets `student` to: one identifier, if all is well."""
    code = "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "code")
    return list(dict.fromkeys(match[2].strip() for match in IDENTIFIER.finditer(code)))


def grade(path: Path, wanted: str, minutes: float, gigabytes: float) -> dict:
    """One line of the table."""
    line, remarks = {"student": "", "total": 0}, []
    try:
        notebook, name = read(path)
        remarks += oddities(notebook, name, wanted)
        students = identifiers(notebook)
        if len(students) != 1:
            remarks.append(f"sets student to {len(students)} identifiers")
        line["student"] = " / ".join(students)
        for cell in notebook.cells:
            if check := CHECK.fullmatch(cell.source.strip()):  # Otter's own check, whatever has become of `grader`
                cell.metadata["otter"] = {"tests": [check[1]]}
                cell.source = f"# {check[0]}"
        marks, noted = run(notebook, COURSE / wanted / "autograder.zip", minutes, gigabytes)
        remarks += noted
        line |= {question: f"{got:g}" for question, (got, _) in marks.items()}
        line["total"] = f"{sum(got for got, _ in marks.values()):g}"
    except UngradedError as error:
        remarks.append(str(error))
    except Exception as error:  # whatever it is, it concerns this submission alone
        remarks.append(f"not graded: {error!r}")
    return line | {"remark": "; ".join(remarks)}


def write(lines: dict[str, dict], columns: list[str], out: Path) -> None:
    """The table, whole at any moment. An identifier that several files share is remarked in each of them."""
    owners = {file: line["student"].casefold() for file, line in lines.items() if line["student"]}
    new = out.with_name(out.name + ".new")
    with open(new, "w", encoding="utf-8", errors="backslashreplace", newline="") as table:
        writer = csv.DictWriter(table, columns, extrasaction="ignore")
        writer.writeheader()
        for file, line in lines.items():
            others = [other for other, owner in owners.items() if owner == owners.get(file) and other != file]
            remarks = [line["remark"], f"same identifier as {', '.join(others)}" if others else ""]
            writer.writerow({"file": file} | line | {"remark": "; ".join(filter(None, remarks))})
    os.replace(new, out)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("set", choices=problem_sets(), help="of which problem set")
    parser.add_argument("folder", type=Path, help="where the submissions are; folders in it are searched as well")
    parser.add_argument("--out", type=Path, default=Path("marks.csv"), help="the table (marks.csv)")
    parser.add_argument("--minutes", type=float, default=5, help="for one submission (5)")
    parser.add_argument("--gigabytes", type=float, default=4, help="of memory for one submission (4)")
    parser.add_argument("--jobs", type=int, default=2, help="how many are graded at a time (2)")
    if not problem_sets() or find_spec("otter") is None:
        parser.error("run `make course` first, then this with _build/course/.venv/bin/python")
    options = parser.parse_args()
    paths = {str(path.relative_to(options.folder)): path for path in sorted(options.folder.rglob("*"))}
    paths = {file: path for file, path in paths.items() if path.is_file() and not DOTTED.search(file)}
    paths = {file: path for file, path in paths.items() if path.resolve() != options.out.resolve()}
    if not paths:
        parser.error(f"no files in {options.folder}")
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // options.jobs)))
    sys.stdout.reconfigure(errors="backslashreplace")  # names of files may be in any encoding
    signal.signal(signal.SIGTERM, signal.default_int_handler)

    columns = ["file", "student", *questions(handed_out(options.set)), "total", "remark"]
    lines = {file: {"student": "", "total": 0, "remark": "not graded"} for file in paths}
    write(lines, columns, options.out)
    with ThreadPoolExecutor(options.jobs) as pool:
        how = options.set, options.minutes, options.gigabytes
        futures = {pool.submit(grade, path, *how): file for file, path in paths.items()}
        try:
            for done, future in enumerate(as_completed(futures), 1):
                file = futures[future]
                lines[file] = future.result()
                write(lines, columns, options.out)
                print(f"{done}/{len(paths)}  {file}: {lines[file]['total']}  {lines[file]['remark']}", flush=True)
        except KeyboardInterrupt:
            INTERRUPTED.set()
            pool.shutdown(cancel_futures=True)
            sys.exit(f"interrupted; {options.out} holds the marks so far")


if __name__ == "__main__":
    main()
