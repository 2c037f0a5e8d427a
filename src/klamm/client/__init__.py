"""The Kafka client: one core without I/O, an asyncio shell for brokers and a blocking shell for Spark and the CLI.

The core is `exchange` (frames and correlation ids), `versions` (ApiVersions), `cluster_metadata` (brokers and leaders)
and `patience` (deadlines and retries). `asyncio_connection` and `blocking_connection` only move bytes; `cluster_client`
drives the core over blocking connections.
"""
