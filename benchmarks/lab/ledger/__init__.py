"""The ledger: append-only files of one JSON object per line, and what their lines mean together.

file: writing, reading, versions · counts: what counts, resuming · retracting: selectors and retractions · soundness:
`check`. It does not know what a kind's own keys mean (rows), which rows may be pooled (series), rates (stats, report).
"""

from benchmarks.lab.ledger.counts import Effective, Resume, SlotKey, effective, resume, slot_of
from benchmarks.lab.ledger.file import (
    ENVELOPE,
    UPGRADERS,
    VERSION,
    Ledger,
    Row,
    encode,
    new_id,
    read,
    stamps,
    trial,
    typed,
)
from benchmarks.lab.ledger.retracting import resolve, retraction
from benchmarks.lab.ledger.soundness import check

__all__ = [
    "ENVELOPE",
    "UPGRADERS",
    "VERSION",
    "Effective",
    "Ledger",
    "Resume",
    "Row",
    "SlotKey",
    "check",
    "effective",
    "encode",
    "new_id",
    "read",
    "resolve",
    "resume",
    "retraction",
    "slot_of",
    "stamps",
    "trial",
    "typed",
]
