"""The report of a comparison: one page that needs nothing else, Markdown, tables, and figures for a paper."""

from __future__ import annotations

from comparison.report.writing import write_report

__all__ = ["write_report"]
