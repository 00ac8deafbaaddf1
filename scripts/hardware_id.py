"""Print the id of this machine: chip, memory, model; stable across reboots, without serial numbers.

    uv run scripts/hardware_id.py                 the id, which names its folder below hardware/
    uv run scripts/hardware_id.py --json          all that is known of it
    uv run scripts/hardware_id.py --write         write hardware/<id>/machine.yaml; a label that a person gave is kept

Exit codes: 0 done, 2 usage, 3 unwritable, 130 interrupted, 141 nobody reads the output any more.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import msgspec

from benchmarks.lab import flags, machine, program
from benchmarks.lab.errors import EXIT_DONE


def main(argv: Sequence[str] | None = None) -> int:
    """Print or write; the exit code."""
    return program.answer("hardware_id.py", lambda: _main(_parser().parse_args(argv)))


def _main(options: argparse.Namespace) -> int:
    found = machine.describe()
    if options.write:
        print(machine.record(found))
    else:
        print(msgspec.json.encode(found).decode() if options.json else found.id)
    return EXIT_DONE


def _parser() -> argparse.ArgumentParser:
    parser = flags.Parser(
        prog="hardware_id.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--json", action="store_true", help="print all that is known")
    what.add_argument("--write", action="store_true", help="write machine.yaml and print its path")
    return parser


if __name__ == "__main__":
    program.leave("hardware_id.py", main)
