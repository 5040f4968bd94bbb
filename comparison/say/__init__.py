"""The report of a comparison: one page that needs nothing else, Markdown, tables, and figures for a paper.

A report reads what the runs wrote, as data: it imports and executes nothing that a results folder names, and builds no
network. A panel of your own is one function::

    from comparison.say import ReportData, figure_settings, new_figure, register_panel, write_report


    @register_panel("Seconds per run", after="curves")
    def seconds(data: ReportData):
        with figure_settings():
            figure = new_figure(4.5, 2.0)
            means = data.results.groupby("arm", sort=False)["seconds"].mean()
            figure.subplots().barh(means.index, means, color=[data.styles[arm].paper for arm in means.index])
        return "Mean over seeds.", figure


    write_report("runs/digits")
"""

from __future__ import annotations

from comparison.say.data import ReportData
from comparison.say.registry import Html, register_panel
from comparison.say.theme import Drawing, figure_settings, new_figure
from comparison.say.writing import write_report
from comparison.tables import Cell, Table

__all__ = [
    "Cell",
    "Drawing",
    "Html",
    "ReportData",
    "Table",
    "figure_settings",
    "new_figure",
    "register_panel",
    "write_report",
]
