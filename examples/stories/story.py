"""Code shared by the stories in this folder: arguments, the `forebay` command, and checks of claims.

A story makes its model and its data, runs the commands of the guide, and ends with an error if a claim of the guide is false.
"""
import argparse
import json
import os
import shlex
import shutil
import subprocess
import sys
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def parser(text, name):
    """The arguments that every story takes."""
    found = argparse.ArgumentParser(description=text.split("\n\n")[0], epilog=text, formatter_class=argparse.RawDescriptionHelpFormatter)
    found.add_argument("--folder", default=os.path.join("target", "stories", name), help="where models and data go [default: %(default)s]")
    found.add_argument("--forebay", help="the program [default: target/release/forebay, otherwise the installed one]")
    found.add_argument("--prepare", action="store_true", help="make the model and the data, and stop")
    found.add_argument("--quick", action="store_true", help="a small form of the story, which takes seconds")
    found.add_argument("--threads", type=int, help="threads of Forebay and of PyTorch [default: all]")
    found.add_argument("--without-torch", action="store_true", help="leave PyTorch out, even if it is installed")
    found.add_argument("--output", help="also write the figures to this file as JSON")
    return found


class Story:
    """A run of a story: its folder and its results."""

    def __init__(self, arguments):
        self.arguments = arguments
        self.folder = arguments.folder
        self.figures = {}
        os.makedirs(self.folder, exist_ok=True)
        built = os.path.join(ROOT, "target", "release", "forebay")
        self.program = arguments.forebay or (built if os.path.exists(built) else shutil.which("forebay"))
        if not self.program and not arguments.prepare:
            sys.exit("error: cannot find the program 'forebay'; build it with `cargo build --release`, or name another with --forebay")

    def path(self, *names):
        """A path in the folder."""
        return os.path.join(self.folder, *names)

    def command(self, *words):
        """A command with its words, as it is run."""
        words = [str(word) for word in words]
        return [self.program, *words, *(["--threads", str(self.arguments.threads)] if self.arguments.threads else [])]

    def forebay(self, *words):
        """Runs the program, which has to succeed, and returns its report."""
        words = [str(word) for word in words]
        print("$ " + shlex.join(["forebay", *words]), flush=True)
        start = time.monotonic()
        done = subprocess.run([*self.command(*words), "--json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        if done.returncode != 0:
            sys.exit(f"error: this command exited with {done.returncode}:\n{done.stderr[-2000:]}")
        print(f"  {time.monotonic() - start:.1f} s", flush=True)
        return json.loads(done.stdout)

    def found(self, name, value, text):
        """Stores a figure and prints it."""
        self.figures[name] = value
        print(f"  {text}", flush=True)

    def check(self, holds, claim):
        """Ends the story if a claim of the guide is false."""
        if not holds:
            sys.exit(f"error: this does not hold: {claim}; found: {json.dumps(self.figures)}")
        print(f"  holds: {claim}", flush=True)

    def end(self):
        """Writes the figures."""
        if self.arguments.output:
            with open(self.arguments.output, "w", encoding="utf-8") as file:
                json.dump(self.figures, file, indent=2)


def same_bytes(one, other):
    """Whether two files are the same."""
    with open(one, "rb") as first, open(other, "rb") as second:
        return first.read() == second.read()


def mib(count):
    """A number of bytes as text."""
    return f"{count / 2**20:.1f} MiB"
