"""The same report as plain values, for `summarize.py --json`: numbers unrounded, null for what is not known."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from benchmarks.lab.report.figures import Figures
from benchmarks.lab.report.gather import Column, Gathered, Section


def plain(gathered: Gathered, computed: Sequence[Figures]) -> dict[str, Any]:
    """Sections with their columns and figures, controls and retractions of one machine. Times in seconds."""
    sections = zip(gathered.sections, computed, strict=True)
    return {
        "machine": gathered.machine,
        "sections": [_section(section, found) for section, found in sections],
        "controls": msgspec.to_builtins(gathered.controls),
        "retracted": msgspec.to_builtins(gathered.retracted),
        "duplicates": gathered.duplicates,
        "unstamped": gathered.unstamped,
    }


def _section(section: Section, found: Figures) -> dict[str, Any]:
    return {
        "kind": section.kind,
        "locked": section.locked,
        "latest": section.latest,
        "shared": dict(section.shared),
        "columns": [_column(column) for column in section.columns],
        **msgspec.to_builtins(found),
    }


def _column(column: Column) -> dict[str, Any]:
    counted = [trial for trial in column.trials if trial.counted]
    return {
        "letter": column.letter,
        "backend": column.backend,
        "client": column.client,
        "purpose": column.purpose,
        "series": column.series,
        "latest": column.latest,
        "counted": len(counted),
        "void": len(column.trials) - len(counted),
        "first": column.trials[0].at,
        "last": column.trials[-1].at,
        "stamp": dict(column.values),
    }
