"""What all dashboards are made of: panels of a row that share its width, queries with their words, and variables.

The only module that knows Grafana's library. Refuses a query without a legend where several lines are drawn, and any
data source but the one that is chosen on the page.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from grafana_foundation_sdk.builders import common, dashboard, prometheus, stat, table, timeseries
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.common import (
    BigValueGraphMode,
    LegendDisplayMode,
    LegendPlacement,
    SortOrder,
    TooltipDisplayMode,
)
from grafana_foundation_sdk.models.dashboard import (
    DashboardCursorSync,
    DashboardLinkType,
    DataSourceRef,
    DataTransformerConfig,
    Threshold,
    ThresholdsMode,
    ValueMap,
    ValueMappingResult,
    VariableRefresh,
    VariableSort,
)
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

WIDTH, HEIGHT = 24, 8
COUNT = "none"
"""Grafana's word for the unit of whole numbers, here: their axes have no halves. What has halves is "short"."""
Steps: TypeAlias = Sequence[tuple[float | None, str]]
"""From which value on which colour; the first from None."""
PLAIN: Steps = ((None, "text"),)
"""Neither good nor bad. Without steps of ours Grafana would draw each number from 80 on in red."""
NONE_BAD: Steps = ((None, "text"), (1, "red"))
"""Should be 0."""
NONE_MISSING: Steps = ((None, "red"), (1, "text"))
"""Should not be 0."""
JUST_ONE: Steps = ((None, "red"), (1, "text"), (2, "red"))
SOURCE = DataSourceRef(type_val="prometheus", uid="${datasource}")
Panel: TypeAlias = timeseries.Panel | stat.Panel | table.Panel


@dataclass(frozen=True, slots=True)
class Query:
    """PromQL, and how its lines are called."""

    expr: str
    legend: str = ""


def grown(series: str, by: str) -> str:
    """By how much a counter grew."""
    return f"sum by ({by}) (increase({series}[$__rate_interval]))"


def line(
    title: str,
    unit: str,
    *queries: Query,
    why: str = "",
    least: float | None = 0,
    most: float | None = None,
    usually: float | None = None,
) -> timeseries.Panel:
    """Lines over time. unit: Grafana's word for it.

    least, most: ends of the axis, beyond which nothing is drawn; least may be None. usually: its upper end as long as
    nothing is above, so that panels side by side can be compared.
    """
    legend = common.VizLegendOptions().display_mode(LegendDisplayMode.LIST).placement(LegendPlacement.BOTTOM)
    tooltip = common.VizTooltipOptions().mode(TooltipDisplayMode.MULTI).sort(SortOrder.DESCENDING)
    panel = timeseries.Panel().title(title).unit(unit).datasource(SOURCE).height(HEIGHT)
    panel = panel.legend(legend.show_legend(True)).tooltip(tooltip).line_width(1).fill_opacity(8)
    if unit == COUNT:
        panel = panel.decimals(0)
        usually = 1 if most is None else usually  # else all zeros have an axis up to 100
    if least is not None:
        panel = panel.min(least)
    if most is not None:
        panel = panel.max(most)
    if usually is not None:
        panel = panel.axis_soft_max(usually)
    for ref, query in zip("ABCDEFGHIJ", queries, strict=False):
        panel = panel.with_target(_target(ref, query))
    return panel.description(why) if why else panel


def number(
    title: str, unit: str, expr: str, why: str = "", *, steps: Steps = PLAIN, words: Mapping[int, str] | None = None
) -> stat.Panel:
    """One number, as it is now. words: what stands for some values."""
    colours = [Threshold(value=value, color=colour) for value, colour in steps]
    panel = stat.Panel().title(title).unit(unit).datasource(SOURCE).height(HEIGHT // 2)
    panel = panel.graph_mode(BigValueGraphMode.AREA).no_value("no data").with_target(_target("A", Query(expr)))
    panel = panel.reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]))
    panel = panel.thresholds(dashboard.ThresholdsConfig().mode(ThresholdsMode.ABSOLUTE).steps(colours))
    if words:
        told = {str(value): ValueMappingResult(text=text) for value, text in words.items()}
        panel = panel.mappings([ValueMap(options=told)])
    return panel.description(why) if why else panel


def rows(title: str, query: str, hidden: Sequence[str] = ()) -> table.Panel:
    """A table of what is true now: one line per series, one column per label. hidden: labels that say nothing here."""
    target = _target("A", Query(query)).format(PromQueryFormat.TABLE).instant()
    drop = DataTransformerConfig(
        id_val="organize", options={"excludeByName": dict.fromkeys(("Time", "__name__", *hidden), True)}
    )
    return table.Panel().title(title).datasource(SOURCE).height(HEIGHT).with_target(target).with_transformation(drop)


def board(uid: str, title: str, text: str, *variables: dashboard.QueryVariable) -> dashboard.Dashboard:
    """An empty dashboard. uid: stays, for links lead to it."""
    links = dashboard.DashboardLink("cardwise").type(DashboardLinkType.DASHBOARDS).tags(["cardwise"])
    made = dashboard.Dashboard(f"cardwise / {title}").uid(f"cardwise-{uid}").description(text).tags(["cardwise"])
    made = made.timezone("browser").refresh("30s").time("now-1h", "now").tooltip(DashboardCursorSync.CROSSHAIR)
    made = made.link(links.as_dropdown(True).include_vars(True).keep_time(True)).editable()
    made = made.with_variable(dashboard.DatasourceVariable("datasource").label("Data source").type("prometheus"))
    for variable in variables:
        made = made.with_variable(variable)
    return made


def choice(name: str, label: str, query: str, *, several: bool = True) -> dashboard.QueryVariable:
    """What may be chosen on the page. query: Grafana's label_values(...)."""
    made = dashboard.QueryVariable(name).label(label).datasource(SOURCE).query(query)
    made = made.refresh(VariableRefresh.ON_TIME_RANGE_CHANGED).sort(VariableSort.ALPHABETICAL_ASC)
    return made.multi(True).include_all(True).all_value(".*") if several else made


def put(made: dashboard.Dashboard, title: str, *panels: Panel) -> None:
    """Add a row of panels of the same width; eight at most."""
    made.with_row(dashboard.Row(title))
    for panel in panels:
        made.with_panel(panel.span(WIDTH // len(panels)))


def text_of(made: dashboard.Dashboard) -> str:
    """As JSON; the same for the same dashboard. Panels are numbered in their order: a link to one names its number."""
    built = made.build()
    for number_of_panel, panel in enumerate(built.panels or [], 1):
        panel.id_val = number_of_panel
    return JSONEncoder(sort_keys=True, indent=1).encode(built) + "\n"


def _target(ref: str, query: Query) -> prometheus.Dataquery:
    made = prometheus.Dataquery().expr(" ".join(query.expr.split())).ref_id(ref).datasource(SOURCE)
    return made.legend_format(query.legend) if query.legend else made
