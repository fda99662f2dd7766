"""Run one submission through Otter, in processes and a folder of its own, within limits."""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path

import nbformat
import psutil

__all__ = ["INTERRUPTED", "UngradedError", "run"]

INTERRUPTED = threading.Event()  # set it to end all runs


class UngradedError(Exception):
    """Why a submission has no marks, in one line."""


class NotStartedError(UngradedError):
    """The kernel never started, which is not the submission's doing: two that start at once may want the same port."""


def run(notebook: nbformat.NotebookNode, archive: Path, minutes: float, gigabytes: float) -> tuple[dict, list[str]]:
    """The result of `run_once`, tried again if the kernel does not start."""
    for _ in range(2):
        with suppress(NotStartedError):
            return run_once(notebook, archive, minutes, gigabytes)
    return run_once(notebook, archive, minutes, gigabytes)


def run_once(
    notebook: nbformat.NotebookNode, archive: Path, minutes: float, gigabytes: float
) -> tuple[dict[str, tuple[float, float]], list[str]]:
    """For each question the marks and how many there are to get; and remarks on what happened.

    Raises UngradedError if there are no marks: a limit was hit, or the notebook's kernel died.
    """
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        folder = Path(folder).resolve()
        notebook.metadata = {
            "kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"},
            "otter": {"assignment_name": archive.parent.name},
        }
        nbformat.write(notebook, folder / "submission.ipynb")
        startup = folder / "profile_default" / "startup"
        startup.mkdir(parents=True)
        shutil.copy(Path(__file__).with_name("limits.py"), startup)
        variables = ("IPYTHONDIR", "JUPYTER_RUNTIME_DIR", "TMPDIR", "GRADING_FOLDER")
        environment = os.environ | dict.fromkeys(variables, str(folder)) | {"GRADING_ARCHIVE": str(archive)}
        command = [sys.executable, "-m", "otter", "run", "--no-logo", "-a", archive, "-o", folder, "submission.ipynb"]
        with open(folder / "log", "w") as log:
            process = subprocess.Popen(
                command, cwd=folder, env=environment, stdout=log, stderr=log, start_new_session=True
            )
            stopped = watch(process, minutes, gigabytes)
        remarks = list(dict.fromkeys(text(folder / "remarks").splitlines()))
        if stopped is None and not (folder / "results.json").exists():
            if "Kernel died before replying to kernel_info" in text(folder / "log"):
                raise NotStartedError("not graded: the kernel did not start; grade it again")
            log = text(folder / "log").strip()
            stopped = (
                "stopped: its kernel died" if "DeadKernelError" in log else f"Otter failed: {log.splitlines()[-1]}"
            )
            if remarks and remarks[-1].startswith("stopped"):
                stopped = remarks.pop()
        if stopped:
            raise UngradedError("; ".join([*remarks, stopped + place(text(folder / "cell"), notebook)]))
        results = json.loads(text(folder / "results.json"))["tests"]
    marks = {test["name"]: (test["score"], test["max_score"]) for test in results if "max_score" in test}
    if not marks:
        raise UngradedError("; ".join([*remarks, "no result: an answer ended its test (by exit, perhaps)"]))
    return marks, remarks


def place(cell: str, notebook: nbformat.NotebookNode) -> str:
    """In which question a cell stands: the one that is checked in it or next."""
    sources = [other.source for other in notebook.cells]
    later = sources[sources.index(cell) :] if cell in sources else []
    check = re.search(r"""\.check\(["'](\w+)["']\)""", "\n".join([cell, *later]))
    return f", in {check[1]}" if check else ""


def text(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""


def watch(process: subprocess.Popen, minutes: float, gigabytes: float) -> str | None:
    """Wait for a process, then end what it has started (a kernel has a session of its own); say which limit it hit."""
    root, family = psutil.Process(process.pid), set()
    deadline = time.monotonic() + 60 * minutes
    try:
        while process.poll() is None:
            used = 0
            with suppress(psutil.Error):  # one that ends meanwhile
                family |= {root, *root.children(recursive=True)}
            for member in family:
                with suppress(psutil.Error):
                    used += member.memory_info().rss
            if used > 1e9 * gigabytes:
                return f"stopped: it used more than {gigabytes:g} GB of memory"
            if time.monotonic() > deadline:
                return f"stopped: it took longer than {minutes:g} minutes"
            if INTERRUPTED.wait(0.1):
                return "not graded: grading was interrupted"
    finally:
        for member in family:
            with suppress(psutil.Error):
                member.kill()
        process.wait()
