"""Consumer groups: members, leaders and committed offsets. Kafka's classic group protocol.

The rules (`join`, `membership`, `rebalance`, `offsets`) are plain functions of (group, input, now) that record effects;
`GroupMetadataManager` owns the groups of every offsets partition and writes them to `__consumer_offsets`;
API handlers call `GroupCoordinator`. Nothing here awaits: `broker_adapters` connects it to an event loop.
"""
