"""What a bench found, as data: `benches/results/README.md` describes the format.

A bench adds `--output` to its arguments by `add_output`, makes tables of `column`s and rows, and hands them to `save`. The record's format,
the machine and the commit are `cargo xtask results record`'s to know, so that they are known in one place.
"""

import json
import os
import shlex
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def add_output(parser):
    """Adds the argument that says where the record goes."""
    parser.add_argument("--output", metavar="FILE.json",
                        help="write the record there, not to benches/results; /dev/null keeps none")


def column(name, unit=None, digits=None, statistic=None):
    """What a column of a table holds; the unit is none for text, counts and ratios."""
    described = {"name": name, "unit": unit, "digits": digits, "statistic": statistic}
    return {key: value for key, value in described.items() if value is not None}


def table(name, columns, rows):
    """A table; rows are lists of numbers, texts and None, one for each column."""
    return {"name": name, "columns": columns, "rows": [list(row) for row in rows]}


def command():
    """How this program was called, from the repository's root, without where its record goes."""
    script = os.path.relpath(os.path.abspath(sys.argv[0]), ROOT)
    words, given = [], iter(sys.argv[1:])
    for word in given:
        if word == "--output":
            next(given, None)
        elif not word.startswith("--output="):
            words.append(word)
    return shlex.join(["python3", script, *words])


def figures(bench, what, tables, software=None, conditions=None, machine=None):
    """A record but for the moment, the commit, and what `machine` leaves out of the machine."""
    found = {"bench": bench, "what": what, "command": command(), "tables": tables, "software": software or {},
             "conditions": conditions}
    return {**found, "machine": machine} if machine else found


def save(output, bench, what, tables, **more):
    """Writes a record to `output`, or to the bench's folder where that is None; `more` is as for `figures`.

    Where that fails, the figures are printed: a run may have taken hours.
    """
    text = json.dumps(figures(bench, what, tables, **more), indent=1)
    call = ["cargo", "xtask", "results", "record"] + (["--output", os.path.abspath(output)] if output else [])
    try:
        done = subprocess.run(call, cwd=ROOT, input=text, text=True)
    except OSError as error:
        raise SystemExit(f"{text}\nnot recorded: {call[0]} does not start: {error}") from error
    if done.returncode != 0:
        raise SystemExit(f"{text}\nnot recorded: hand the lines above to `cargo xtask results record`")
