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
    Counter,
    Gauge,
    GaugeTable,
    Histogram,
    HistogramColumn,
    Meter,
    Peak,
    SampleTable,
    Timer,
)
from klamm.metrics.loop_meter import LoopMeter
from klamm.metrics.registry import MetricsRegistry

__all__ = [
    "BrokerTopicMetrics",
    "BrokerTopicStats",
    "BusyRatio",
    "ConversionStats",
    "Counter",
    "Gauge",
    "GaugeTable",
    "Histogram",
    "HistogramColumn",
    "LoopMeter",
    "Meter",
    "MetricsRegistry",
    "MetricsServer",
    "Peak",
    "SampleTable",
    "Timer",
]
