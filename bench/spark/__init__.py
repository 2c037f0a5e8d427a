"""Topics in Spark: how fast they are read and written, beside Spark's own Kafka connector."""
