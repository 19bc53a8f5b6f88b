"""Results of a bench, as data: `benches/results/README.md` describes the format.

A bench adds `--output` to its arguments with `add_output`, builds tables from `column`s and rows, and passes them to `save`. Only
`cargo xtask results record` knows the record's format, the machine and the commit.
"""

import json
import os
import resource
import shlex
import subprocess
import sys
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def add_output(parser):
    """Adds the argument for the path of the record."""
    parser.add_argument("--output", metavar="FILE.json",
                        help="write the record there, not to benches/results; /dev/null keeps no record")


def add_program(parser):
    """Adds the argument for the path of the program; `check_program` checks it."""
    parser.add_argument("--forebay", metavar="PATH", default=os.path.join(ROOT, "target", "release", "forebay"))


def check_program(parser, program):
    """Ends with an error if a path is not that of a program."""
    if not os.access(program, os.X_OK):
        parser.error(f"{program} is not a program; build it with `cargo build --release`, or name one with --forebay")


def column(name, unit=None, digits=None, statistic=None):
    """The description of a table column; the unit is None for text, counts and ratios."""
    described = {"name": name, "unit": unit, "digits": digits, "statistic": statistic}
    return {key: value for key, value in described.items() if value is not None}


def table(name, columns, rows):
    """A table; rows are lists of numbers, texts and None, one for each column."""
    return {"name": name, "columns": columns, "rows": [list(row) for row in rows]}


def command():
    """How this program was called, from the repository's root, without the path of its record."""
    script = os.path.relpath(os.path.abspath(sys.argv[0]), ROOT)
    words, given = [], iter(sys.argv[1:])
    for word in given:
        if word == "--output":
            next(given, None)
        elif not word.startswith("--output="):
            words.append(word)
    return shlex.join(["python3", script, *words])


class OtherWork:
    """How many processors were busy with anything but this process and its children, from construction on."""

    def __init__(self):
        self.begin, self.busy, self.own = time.monotonic(), self._busy(), self._own()

    def processors(self):
        """The mean number, or None on systems without /proc/stat."""
        busy, own, seconds = self._busy(), self._own(), time.monotonic() - self.begin
        return None if busy is None else max(0.0, (busy - self.busy - (own - self.own)) / seconds)

    @staticmethod
    def _busy():
        """Processor seconds of the machine."""
        try:
            with open("/proc/stat", encoding="ascii") as file:
                user, nice, system, _, _, irq, softirq, *_ = map(int, file.readline().split()[1:])
        except OSError:
            return None
        return (user + nice + system + irq + softirq) / os.sysconf("SC_CLK_TCK")

    @staticmethod
    def _own():
        return sum(usage.ru_utime + usage.ru_stime for usage in
                   (resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)))


def figures(bench, what, tables, software=None, conditions=None, machine=None):
    """A record without the time, the commit, and what `machine` omits about the machine."""
    found = {"bench": bench, "what": what, "command": command(), "tables": tables, "software": software or {},
             "conditions": conditions}
    return {**found, "machine": machine} if machine else found


def save(output, bench, what, tables, **more):
    """Writes a record to `output`, or to the bench's folder if that is None; `more` is as for `figures`.

    If that fails, the figures are printed: a run may have taken hours.
    """
    text = json.dumps(figures(bench, what, tables, **more), indent=1)
    call = ["cargo", "xtask", "results", "record"] + (["--output", os.path.abspath(output)] if output else [])
    try:
        done = subprocess.run(call, cwd=ROOT, input=text, text=True)
    except OSError as error:
        raise SystemExit(f"{text}\nnot recorded: cannot start {call[0]}: {error}") from error
    if done.returncode != 0:
        raise SystemExit(f"{text}\nnot recorded; pass the lines above to `cargo xtask results record`")
