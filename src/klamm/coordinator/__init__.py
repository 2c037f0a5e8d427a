"""Consumer groups: members, leaders and committed offsets. Kafka's classic group protocol.

The rules (`join`, `membership`, `rebalance`, `offsets`) are plain functions of (group, input, now) and leave effects
behind; `GroupMetadataManager` owns the groups of every offsets partition and writes them to `__consumer_offsets`;
`GroupCoordinator` is what the API handlers call. Nothing here awaits: `shell` joins it to an event loop.
"""
