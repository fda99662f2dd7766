"""What a submission may do while it is graded: IPython runs this file in its kernel before the first cell.

A notebook that opens the hidden tests ends there; it starts no other process; what it prints is dropped past a limit.
Each leaves a remark for the table of marks. This keeps accidents and curiosity from doing harm. Whoever knows Python
well gets round it: what runs in the kernel of the tests can find them.
"""


def _limit():  # in a function, which is deleted at the end: these names are not the student's
    import errno
    import os
    import resource
    import sys
    from importlib.util import find_spec

    from ipykernel.iostream import OutStream
    from IPython import get_ipython

    folder = os.environ.pop("GRADING_FOLDER")
    hidden = tuple(map(os.path.realpath, ("tests", "../source", os.environ.pop("GRADING_ARCHIVE"))))
    otter = os.path.dirname(find_spec("otter").origin)
    notebook = get_ipython().user_global_ns
    openings = {"open", "os.rename", "os.link", "os.symlink"}
    processes = {"subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.fork", "os.forkpty"}

    def remark(text):
        with open(os.path.join(folder, "remarks"), "a", encoding="utf-8") as file:
            file.write(text + "\n")

    def asked_by():
        frame = sys._getframe(1)
        while frame := frame.f_back:  # from the function that opens to those that have called it
            if frame.f_globals is notebook:
                return "notebook"
            if frame.f_code.co_filename.startswith(otter):
                return "otter"

    def audit(event, args):
        if event in processes:
            remark(f"was refused to start a process ({event})")
            raise PermissionError(errno.EPERM, "no other process can be started while a submission is graded")
        if event not in openings or isinstance(args[0], int):
            return
        if not os.path.realpath(os.fsdecode(args[0])).startswith(hidden):
            return
        who = asked_by()
        if who == "notebook":
            remark("stopped: it tried to read the hidden tests")
            os._exit(1)
        if who is None:  # IPython, for the lines of a traceback
            raise PermissionError(errno.EPERM, "a hidden test")

    sys.addaudithook(audit)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10**9, 10**9))  # bytes in one file

    limit, written, write = 10**6, 0, OutStream.write

    def write_some(stream, text):
        nonlocal written
        before, written = written, written + len(text)
        if written <= limit:
            return write(stream, text)
        if before <= limit:
            remark(f"printed more than {limit:,} characters: the rest was dropped")
        return len(text)

    OutStream.write = write_some

    def note(info):  # which cell it is, should it have to be stopped
        with open(os.path.join(folder, "cell"), "w", encoding="utf-8") as file:
            file.write(info.raw_cell)

    get_ipython().events.register("pre_run_cell", note)


_limit()
del _limit
