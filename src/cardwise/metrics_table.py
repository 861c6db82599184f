"""All series that the programs export, in one table, without starting any: dashboards and rules go by it."""

from __future__ import annotations

from cardwise.agent import metrics as agent
from cardwise.controller import metrics as controller
from cardwise.engine import metrics as engine
from cardwise.gateway import metrics as gateway
from cardwise.scheduler import metrics as scheduler
from cardwise.series import LABELS, Series

PROGRAMS: dict[str, tuple[Series, ...]] = {
    "agent": agent.SERIES,
    "scheduler": scheduler.SERIES,
    "gateway": gateway.SERIES,
    "controller": controller.SERIES,
    "engine": engine.SERIES,
}
"""By program, as its Deployment or DaemonSet is called."""
_HEAD = """# Metrics

Every series of ours, generated from the code. Of a histogram there are `_bucket`, `_sum` and `_count`; of some counters
and histograms `_created`, the Unix time of their beginning, too.
"""
_JOINS = """
## Labels

The same word means the same thing in every series, so that they join:

| from | to | by |
|---|---|---|
| slice | card | `uuid` |
| card | node and model | `uuid`, in `cardwise_card_info` |
| slice | service | `namespace`, `pod`, in `cardwise_gateway_replica_info` |
| card | DCGM's exporter | `uuid`, there `UUID` |
| slice | an engine's own series, cAdvisor's | `namespace`, `pod` |

So what the cards of each service are busy with is:

```text
max by (service, uuid) (
  cardwise_slice_sm_percent
  * on (namespace, pod) group_left (service)
  max by (namespace, pod, service) (cardwise_gateway_replica_info)
)
```

No label's values are chosen by who sends requests. How many there are at most:

| label | values | at most |
|---|---|---|
"""


def page() -> str:
    """The reference page, as Markdown."""
    parts = [_HEAD]
    for program, table in PROGRAMS.items():
        rows = "\n".join(map(_row, table))
        parts.append(
            f"\n## cardwise {program}\n\n| name | type | unit | labels | meaning |\n|---|---|---|---|---|\n{rows}\n"
        )
    parts.append(_JOINS)
    parts += [f"| `{name}` | {label.meaning} | {label.most} |\n" for name, label in sorted(LABELS.items())]
    return "".join(parts)


def _row(series: Series) -> str:
    labels = " ".join(f"`{label}`" for label in series.labels)
    only = f" ({series.only})" if series.only else ""
    return f"| `{series.name}` | {series.kind.value} | {series.unit} | {labels} | {series.meaning}{only} |"
