"""A node's cards: what is granted on them, what is used, and how they are."""

from __future__ import annotations

from grafana_foundation_sdk.builders.dashboard import Dashboard

from dashboards.parts import Query, board, choice, grown, line, put, rows

CHOSEN = 'max by (uuid, node, index) (cardwise_card_info{node=~"$node", uuid=~"$uuid"})'
NAME = "{{node}} {{index}}"


def of_cards(expr: str) -> str:
    """The chosen cards' values, with node and number. expr: one series per ``uuid``."""
    return f"max by (uuid) ({expr}) * on (uuid) group_left (node, index) {CHOSEN}"


def of_slices(expr: str) -> str:
    """The chosen cards' slices."""
    return f"sum by (namespace, pod, container, uuid) ({expr}) and on (uuid) {CHOSEN}"


def made() -> Dashboard:
    """The dashboard."""
    page = board(
        "node",
        "Nodes and cards",
        "What is granted on each card, what its slices use, and how the card is. DCGM's exporter is read where it is.",
        choice("node", "Node", "label_values(cardwise_card_info, node)"),
        choice("uuid", "Card", 'label_values(cardwise_card_info{node=~"$node"}, uuid)'),
    )
    slices = "{{namespace}}/{{pod}} {{container}}"
    put(
        page,
        "Granted and used",
        line("Memory granted", "percentunit", Query(of_cards("uuid:cardwise_memory_granted:share"), NAME), usually=1),
        line("Memory used", "percentunit", Query(of_cards("uuid:cardwise_memory_used:share"), NAME), most=1),
        line("Compute granted", "percentunit", Query(of_cards("uuid:cardwise_compute_granted:share"), NAME), usually=1),
        line(
            "Busy",
            "percentunit",
            Query(of_cards("uuid:cardwise_busy:share"), NAME),
            why="SMs that work (DCGM's SM_ACTIVE), else time in which any kernel ran.",
            most=1,
        ),
    )
    put(
        page,
        "Slices",
        line("Memory granted", "mbytes", Query(of_slices("cardwise_slice_memory_granted_mib"), slices)),
        line("Memory used", "mbytes", Query(of_slices("cardwise_slice_memory_used_mib"), slices)),
        line("Memory beyond the grant", "mbytes", Query(of_slices("cardwise_slice_memory_over_mib"), slices)),
        line("SMs, of the card", "percent", Query(of_slices("cardwise_slice_sm_percent"), slices)),
    )
    put(
        page,
        "The card",
        line("Memory bandwidth", "percentunit", Query(of_cards("uuid:cardwise_memory_busy:share"), NAME), most=1),
        line("SM clock", "rotmhz", Query(of_cards("cardwise_card_sm_clock_mhz"), NAME)),
        line("Temperature", "celsius", Query(of_cards("cardwise_card_temperature_celsius"), NAME)),
        line("Power", "watt", Query(of_cards("cardwise_card_power_watts"), NAME)),
    )
    put(
        page,
        "Buses and CPU",
        line(
            "PCIe",
            "Bps",
            Query(of_cards("uuid:cardwise_pcie_sent:bytes_per_second"), f"{NAME} sent"),
            Query(of_cards("uuid:cardwise_pcie_received:bytes_per_second"), f"{NAME} received"),
        ),
        line("Memory clock", "rotmhz", Query(of_cards("cardwise_card_memory_clock_mhz"), NAME)),
        line(
            "Degrees to the slowdown",
            "celsius",
            Query(of_cards("cardwise_card_slowdown_margin_celsius"), NAME),
            why="Below 0 the card is slowed down.",
            least=None,
        ),
        line(
            "CPU of pods with slices",
            "short",
            Query(
                f"pod:cardwise_cpu:cores5m and on (namespace, pod) ({of_slices('cardwise_slice_memory_granted_mib')})",
                "{{namespace}}/{{pod}}",
            ),
            why="Cores, from the kubelet's cAdvisor. A busy CPU beside an idle card: the CPU starves it.",
            usually=1,
        ),
    )
    put(
        page,
        "Lending and health",
        line(
            "Lent beyond the card",
            "mbytes",
            Query(of_cards("cardwise_card_memory_lendable_mib"), f"{NAME} may be"),
            Query(of_cards("cardwise_card_memory_lent_mib"), f"{NAME} is"),
            Query(of_cards("cardwise_card_memory_short_mib"), f"{NAME} lacks"),
        ),
        line("Memory: 0 calm, 1 wary, 2 reclaim", "none", Query(of_cards("cardwise_card_memory_level"), NAME), most=2),
        line("Health: 0 healthy, 1 degraded, 2 fenced", "none", Query(of_cards("cardwise_card_health"), NAME), most=2),
        line(
            "Xids",
            "none",
            Query(
                f"{grown('cardwise_card_xids_total', 'uuid, xid')} and on (uuid) {CHOSEN}",
                "{{xid}} {{uuid}}",
            ),
        ),
    )
    put(
        page,
        "Limits",
        rows("Cards", 'cardwise_card_info{node=~"$node", uuid=~"$uuid"}', ["Value", "job", "instance"]),
        line(
            "How firmly slices are held: 0 not, 1 asks, 2 in any case",
            "none",
            *(
                Query(of_cards(f"cardwise_card_holds_{what}"), f"{NAME} {what}")
                for what in ("memory", "compute", "faults")
            ),
            most=2,
        ),
    )
    return page
