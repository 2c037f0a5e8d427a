"""The embedded ZooKeeper server: connections, requests, the transaction log and snapshots."""
