"""Grafana's dashboards as code. ``python -m dashboards`` writes them into the chart; a test holds them up to date."""
