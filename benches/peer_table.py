"""A table of networks with the fastest times of Forebay, of an older build of it and of a peer: what such benches have in common."""
import math
import statistics

import recording


def add_arguments(parser, rounds, seconds):
    """Adds the arguments that choose programs and networks, and how long to measure."""
    recording.add_program(parser)
    parser.add_argument("--before", metavar="PATH", help="an older build of the program, measured as well")
    parser.add_argument("--only", metavar="TEXT", help="networks with this in their names only")
    parser.add_argument("--threads", type=int, default=1, help="threads of each contender [default: 1]")
    parser.add_argument("--rounds", type=int, default=rounds, help=f"turns of each contender [default: {rounds}]")
    parser.add_argument("--seconds", type=float, default=seconds, help=f"about how long a turn takes [default: {seconds}]")
    recording.add_output(parser)


def chosen(parser, arguments, networks):
    """The names of the chosen networks, and the programs by their name in the table."""
    names = [name for name in networks if (arguments.only or "") in name]
    if not names:
        parser.error(f"--only {arguments.only}: no network's name contains it; the networks are {'; '.join(networks)}")
    programs = {"before": arguments.before, "Forebay": arguments.forebay} if arguments.before else {"Forebay": arguments.forebay}
    for program in programs.values():
        recording.check_program(parser, program)
    return names, programs


def table(names, measure, peer, others, what, digits):
    """Measures and prints a row for each network, and the geometric means of the ratios to the peer.

    `measure(name)` returns the seconds of the peer and of the others by their names, by how much results (`what`) differ, and how many
    processors other work had. `digits` is the number of decimals of times."""
    rows, ratios = [], {label: [] for label in others}
    for name in names:
        seconds, difference, other_work = measure(name)
        own = {label: seconds[label] / seconds[peer] for label in others}
        for label, ratio in own.items():
            ratios[label].append(ratio)
        rows.append([name, seconds[peer] * 1e3, *(value for label in others for value in (seconds[label] * 1e3, own[label])),
                     difference, other_work])
        print(f"{name:28} {peer} {seconds[peer] * 1e3:7.{digits}f} ms; "
              + "; ".join(f"{label} {seconds[label] * 1e3:7.{digits}f} ms, {own[label]:.2f}" for label in others)
              + f"; {what} differ by {difference:.0e}"
              + ("" if other_work is None else f"; other work: {other_work:.1f} processors"), flush=True)
    means = {label: math.exp(statistics.mean(map(math.log, all))) for label, all in ratios.items()}
    rows.append(["geometric mean", None, *(value for label in others for value in (None, means[label])), None, None])
    print("geometric mean: " + ", ".join(f"{label} {mean:.3f}" for label, mean in means.items()))
    columns = [recording.column("network"), recording.column(peer, "ms", digits, "best")]
    for label in others:
        columns += [recording.column(label, "ms", digits, "best"), recording.column(f"{label}, ratio", digits=2)]
    columns += [recording.column(f"{what} differ by"), recording.column("other work", "processors", 1, "mean")]
    return recording.table("networks", columns, rows)
