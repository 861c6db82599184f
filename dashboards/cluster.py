"""How full the cluster is, how busy, and what is wrong: the first page."""

from __future__ import annotations

from grafana_foundation_sdk.builders.dashboard import Dashboard

from dashboards.parts import NONE_BAD, Query, board, grown, line, number, put, rows

GRANTED = "1 - max(cardwise_scheduler_memory_free_mib) / max(cardwise_scheduler_memory_allocatable_mib)"


def made() -> Dashboard:
    """The dashboard."""
    page = board("cluster", "Cluster", "How full and how busy the cards are, who waits, and what is wrong.")
    put(
        page,
        "Now",
        number("Nodes", "none", "max(cardwise_scheduler_nodes)", "With cards, as the scheduler knows them."),
        number("Cards", "none", "max(cardwise_scheduler_cards)"),
        number("Cards that take nothing", "none", "max(cardwise_scheduler_cards_sick)", steps=NONE_BAD),
        number("Pods that wait", "none", "max(cardwise_scheduler_pods_waiting)"),
        number("Memory granted", "percentunit", GRANTED),
        number("Busy", "percentunit", "avg(uuid:cardwise_busy:share)"),
    )
    put(
        page,
        "Full and busy",
        line(
            "Memory",
            "percentunit",
            Query(GRANTED, "granted"),
            Query("avg(uuid:cardwise_memory_used:share)", "used"),
            why="Of what may be handed out. Granted and not used is what requests ask for too much.",
            most=1,
        ),
        line(
            "Compute",
            "percentunit",
            Query("1 - max(cardwise_scheduler_compute_free_cards) / max(cardwise_scheduler_cards)", "granted"),
            Query("avg(uuid:cardwise_busy:share)", "busy"),
            why="Busy: SMs that work where DCGM's exporter tells it, else time in which any kernel ran.",
            usually=1,
        ),
        line(
            "Cards by state",
            "none",
            Query("count(max by (uuid) (cardwise_card_health) == 0)", "healthy"),
            Query("count(max by (uuid) (cardwise_card_health) == 1)", "degraded"),
            Query("count(max by (uuid) (cardwise_card_health) == 2)", "fenced"),
        ),
    )
    put(
        page,
        "Where",
        line("Memory granted by node", "percentunit", Query("node:cardwise_memory_granted:share", "{{node}}"), most=1),
        line("Busy by node", "percentunit", Query("node:cardwise_busy:share", "{{node}}"), most=1),
        line(
            "Cards by model",
            "none",
            Query("count by (model) (max by (uuid, model) (cardwise_card_info))", "{{model}}"),
        ),
    )
    put(
        page,
        "Who",
        line("SMs by service, of one card", "percent", Query("service:cardwise_sm:percent", "{{service}}")),
        line(
            "Memory by service",
            "mbytes",
            Query("service:cardwise_memory_granted:mib", "{{service}} granted"),
            Query("service:cardwise_memory_used:mib", "{{service}} used"),
        ),
        line("Requests per second", "reqps", Query("service:cardwise_requests:rate5m", "{{service}}")),
    )
    put(
        page,
        "What is wrong",
        rows("Alerts", 'ALERTS{alertname=~"Cardwise.*", alertstate="firing"}', ["alertstate", "Value"]),
        line(
            "Alarms and refusals",
            "none",
            Query(grown("cardwise_card_xids_total", "xid"), "Xid {{xid}}"),
            Query(grown("cardwise_agent_mps_alarms_total", "kind"), "MPS {{kind}}"),
            Query(grown("cardwise_agent_mismatches_total", "reason"), "start {{reason}}"),
        ),
    )
    return page
