"""Runs all five programs: python3 examples/offloading"""

import buffer_overwritten
import event_too_early
import freed_too_early
import gradient_read_early
import read_before_arrival

import forebay

for program in (read_before_arrival, gradient_read_early, buffer_overwritten, event_too_early, freed_too_early):
    print((program.__doc__ or "").splitlines()[0])
    for title, right in (("as published", False), ("as repaired", True)):
        try:
            program.run(right)
        except forebay.RaceError as error:
            print(f"  {title}: {len(error.races)} race{'s' if len(error.races) > 1 else ''}, the first: {error.races[0]}")
        else:
            print(f"  {title}: no race")
