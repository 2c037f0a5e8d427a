"""The broker's metrics, with Kafka's names, and their export for Prometheus.

A metric has one owner: the code of one event loop writes it, anybody reads it. Writing is an attribute increment or
a list append, never a lock or a lookup: resolve a metric once and keep it.
"""

from __future__ import annotations

from klamm.metrics.broker_topic import BrokerTopicMetrics, BrokerTopicStats
from klamm.metrics.http import MetricsServer
from klamm.metrics.instruments import (
    BusyRatio,
    Gauge,
    GaugeTable,
    Histogram,
    HistogramColumn,
    Meter,
    SampleTable,
    Timer,
)
from klamm.metrics.registry import MetricsRegistry

__all__ = [
    "BrokerTopicMetrics",
    "BrokerTopicStats",
    "BusyRatio",
    "Gauge",
    "GaugeTable",
    "Histogram",
    "HistogramColumn",
    "Meter",
    "MetricsRegistry",
    "MetricsServer",
    "SampleTable",
    "Timer",
]
