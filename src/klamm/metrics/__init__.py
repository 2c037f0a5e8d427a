"""The broker's metrics, with Kafka's names, and their export for Prometheus.

A metric has one owner: code of one event loop writes it, and any code may read it. Writing is an attribute increment or
a list append, without lock or lookup, so look a metric up once and keep it.
"""

from __future__ import annotations

from klamm.metrics.broker_topic import BrokerTopicMetrics, BrokerTopicStats
from klamm.metrics.conversions import ConversionStats
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
    "ConversionStats",
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
