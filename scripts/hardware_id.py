"""Print the id of this machine: chip, memory, model; stable across reboots, without serial numbers.

    uv run scripts/hardware_id.py                 the id, which names its folder below hardware/
    uv run scripts/hardware_id.py --json          all that is known of it
    uv run scripts/hardware_id.py --write         write hardware/<id>/machine.yaml; a label that a person gave is kept

Exit codes: 0 done, 2 usage.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

import msgspec

from benchmarks.lab import machine
from benchmarks.lab.errors import EXIT_DONE, LabError


def main(argv: Sequence[str] | None = None) -> int:
    """Print or write; the exit code."""
    parser = argparse.ArgumentParser(
        prog="hardware_id.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--json", action="store_true", help="print all that is known")
    what.add_argument("--write", action="store_true", help="write machine.yaml and print its path")
    options = parser.parse_args(argv)
    try:
        found = machine.describe()
        if options.write:
            print(machine.record(found))
        else:
            print(msgspec.json.encode(found).decode() if options.json else found.id)
    except LabError as error:
        print(f"hardware_id.py: {error}", file=sys.stderr)
        return error.exit_code
    return EXIT_DONE


if __name__ == "__main__":
    raise SystemExit(main())
