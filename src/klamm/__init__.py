"""klamm: an event-streaming cluster in Python that speaks Apache Kafka's wire protocol."""

__version__ = "0.1.0"
